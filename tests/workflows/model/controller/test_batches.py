"""A batch that is sent again gets the first response again, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.model.packing import pack, unpack
from tests.workflows.model.support import create, new_id, registration
from workflows.model.controller import batches as batches_module
from workflows.model.controller.batches import Batches
from workflows.model.controller.controller import Controller
from workflows.model.metadata import image


def batch(node: int, number: int, *commands: Any, incarnation: str = "") -> dict[str, Any]:
    return {"node": node, "incarnation": incarnation or f"i{node}", "number": number, "commands": list(commands)}


def reassign(partition: int, *target: int) -> dict[str, Any]:
    return {"do": "alter_reassignments", "partitions": [["t", partition, list(target)]]}


def serving(nodes: int = 3) -> Controller:
    it = Controller.start("c", {})
    for node in range(1, nodes + 1):
        it.submit(batch(node, 1, registration(node)), new_id)
    it.submit(batch(1, 2, create("t", 2)), new_id)
    return it


def continued(it: Controller) -> Controller:
    return Controller.start("c", it.carry())


def results(it: Controller, sent: dict[str, Any]) -> Any:
    return it.submit(sent, new_id)["results"]


def test_repeated_create_gets_its_first_response() -> None:
    it = serving()
    sent = batch(2, 2, create("u"), {"do": "next_producer_ids", "count": 5})
    first = results(it, sent)
    it = continued(it)
    version = it.pair
    assert results(it, sent) == first and first[0][0]["topic_id"]
    assert it.pair == version
    assert results(it, batch(2, 3, create("u")))[0][0]["error"] == 36, "another create is one of its own"


def test_repeated_target_does_not_replace_a_later_one() -> None:
    it = serving()
    sent = batch(2, 2, reassign(0, 2))
    first = results(it, sent)
    it = continued(it)
    results(it, batch(3, 2, reassign(0, 3)))
    assert results(it, sent) == first
    assert it.state is not None and it.state.topics["t"].partitions[0].assignment.target == (3,)


def test_earlier_batch_of_the_same_incarnation_is_rejected() -> None:
    it = serving()
    results(it, batch(2, 3, reassign(0, 3)))
    late = results(continued(it), batch(2, 2, reassign(0, 2), create("u")))
    assert [one["error"] for (one,) in late] == [7, 7]


def test_another_incarnation_counts_from_one() -> None:
    it = serving()
    results(it, batch(2, 9, create("u")))
    again = registration(2, "i2-again")
    found = results(it, batch(2, 1, again, create("v"), incarnation="i2-again"))
    assert [one.get("error", 0) for (one,) in found] == [0, 0]


def test_batch_without_a_number_is_always_applied() -> None:
    it = serving()
    assert [results(it, batch(2, 0, create("u")))[0][0].get("error", 0) for _ in range(2)] == [0, 36]


def test_rejected_batches_of_unregistered_nodes_are_not_remembered() -> None:
    it = serving()
    for node in range(10, 200):
        results(it, batch(node, 5, create("u")))
    assert len(unpack(it.carry()["batches"])) == 3


def test_remembered_results_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "REMEMBERED_RESULTS", 3)
    it = Batches()
    it.remember(1, "i1", 1, [[{"value": 1}], [{"value": 2}]])
    it.remember(2, "i2", 1, [[{"value": 3}], [{"value": 4}]])
    # The older ones have gone, but not that the batch was carried out.
    assert it.results(2, "i2", 1, 2) == [[{"value": 3}], [{"value": 4}]]
    found = it.results(1, "i1", 1, 2)
    assert found is not None and [one["error"] for (one,) in found] == [7, 7]
    assert Batches.of(it.rows()).rows() == it.rows()


def test_characters_of_remembered_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "REMEMBERED_CHARACTERS", 10)
    it = Batches()
    it.remember(1, "i1", 1, [[{"error": 42, "message": "x" * 6}]])
    it.remember(2, "i2", 1, [[{"error": 42, "message": "x" * 5}]])
    assert [row[-1] is None for row in it.rows()] == [True, False]
    it.forget()
    assert [row[:4] for row in it.rows()] == [[1, "i1", 1, 1], [2, "i2", 1, 1]]
    assert [row[-1] for row in it.rows()] == [None, None]


@pytest.mark.parametrize(
    "sent",
    [
        create("\ud800"),
        create("u", configs={"\ud800": "1"}),
        {"do": "alter_configs", "kind": "topic", "name": "t", "changes": {"\ud800": "1"}},
        {"do": "alter_partitions", "node": 2, "partitions": [["\ud800", 0, "", 0, 0, [[2, -1]]]]},
        registration(2) | {"cluster": "\ud800"},
    ],
    ids=lambda sent: sent["do"],
)
def test_message_with_half_a_surrogate_pair_is_carried_unchanged(sent: dict[str, Any]) -> None:
    it = serving()
    first = results(it, batch(2, 2, sent))
    assert first[0][0]["error"] and "\\ud800" in first[0][0]["message"]
    assert results(continued(it), batch(2, 2, sent)) == first


def test_message_that_quotes_its_request_is_bounded() -> None:
    it = serving()
    ((result,),) = results(it, batch(2, 2, create("u", configs={"x" * 1_000_000: "1"})))
    assert result["error"] == 40 and len(result["message"]) <= 1_000


def test_half_a_surrogate_pair_can_be_packed() -> None:
    value = {"\ud800": ["\udfff", "☃", '"\\ud800']}
    assert unpack(pack(value)) == value


def test_repeated_registration_while_collecting_is_applied() -> None:
    """Its answer was lost, and another node has made the controller collect since."""
    it = serving(2)
    assert it.state is not None
    (held,) = image.whole(it.state)
    register = registration(2) | {"image": held}
    sent = batch(2, 2, register) | {"generation": 1, "version": it.state.version}
    results(it, sent)
    results(it, batch(1, 3) | {"generation": 9, "version": 1})
    assert it.state is None and it.to_collect() == [1, 2]
    it.submit(sent, new_id)
    assert it.to_collect() == [1]
    results(it, batch(1, 4, registration(1) | {"image": held}))
    assert it.state is not None and it.state.alive == (1, 2)


def test_repeated_create_while_collecting_gets_its_first_response() -> None:
    it = serving(2)
    sent = batch(2, 2, create("u"))
    first = results(it, sent)
    results(it, batch(1, 3) | {"generation": 9, "version": 1})
    assert it.state is None and results(it, sent) == first


steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(1, 3), st.sampled_from(["u", "v"])),
        st.tuples(st.just("reassign"), st.integers(1, 3), st.sampled_from([(1,), (2,), (3,), (2, 3)])),
        st.tuples(st.just("again"), st.integers(1, 3), st.just(None)),
        st.tuples(st.just("continue"), st.just(0), st.just(None)),
    ),
    max_size=30,
)


@given(steps)
def test_continued_controller_responds_like_a_single_run(story: list[tuple[str, int, Any]]) -> None:
    """Against one that never continues, and to whom no batch comes twice."""
    ids = [f"id{number:020d}" for number in range(100)]
    it, ideal = serving(), serving()
    ideal = Controller.start("c", it.carry())
    made, wished = iter(ids), iter(ids)
    last: dict[int, tuple[dict[str, Any], Any]] = {}
    for step, node, what in story:
        if step == "continue":
            it = continued(it)
        elif step == "again":
            if node in last:
                sent, first = last[node]
                assert it.submit(sent, lambda: next(made))["results"] == first
        else:
            command = create(what) if step == "create" else reassign(0, *what)
            number = last[node][0]["number"] + 1 if node in last else 9
            sent = batch(node, number, command)
            first = ideal.submit(sent, lambda: next(wished))["results"]
            assert it.submit(sent, lambda: next(made))["results"] == first
            last[node] = sent, first
    assert it.state == ideal.state
