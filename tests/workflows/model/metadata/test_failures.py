"""A failed directory in the metadata: what changes, what does not, and that nothing makes the controller forget it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.model.command_rows import failure_row, read_failure
from storage_node.model.evidence import Evidence, Verdict
from storage_node.model.fields import BadField
from storage_node.model.image import decode
from storage_node.model.packing import pack
from tests.workflows.model.support import apply, cluster, done, refused, registration
from workflows.model.controller.controller import Controller
from workflows.model.metadata import image
from workflows.model.metadata.state import ClusterState


def failed(state: ClusterState, *rows: tuple[int, int], incarnation: str = "i1", topic_id: str = "") -> dict[str, Any]:
    """Node 1 tells that `d1` failed, with partitions of `t` and their generations."""
    id_ = topic_id or state.topics["t"].id
    return {
        "do": "directory_failed",
        "node": 1,
        "incarnation": incarnation,
        "directory": "/a",
        "directory_id": "d1",
        "reason": "it hangs",
        "noticed": 12.5,
        "replicas": [["t", id_, [list(row) for row in rows]]] if rows else [],
    }


def assigned(state: ClusterState, *rows: tuple[int, str, int], node: int = 1) -> ClusterState:
    """A node tells where its replicas of `t` are: partition, directory, generation."""
    told = [["t", index, state.topics["t"].id, directory, generation] for index, directory, generation in rows]
    return done(state, {"do": "assign_directories", "node": node, "replicas": told})


def seen(state: ClusterState) -> list[tuple[int, str]]:
    """Leader and directory of each partition of `t`."""
    return [(each.leader, each.directories[0]) for each in state.topics["t"].partitions]


def online(state: ClusterState, node: int = 1) -> dict[str, bool]:
    return {each.id: each.online for each in state.nodes[node].directories}


@pytest.mark.conformance(106)
@pytest.mark.feature("18-10")
def test_failed_directory_fences_only_its_replicas() -> None:
    state = assigned(cluster(1, t=3), (0, "d1", 0), (1, "e1", 0))
    change = apply(state, failed(state, (0, 0)))
    assert seen(change.state) == [(-1, "d1"), (1, "e1"), (1, "")]
    assert online(change.state) == {"d1": False, "e1": True}
    (result,) = change.results
    assert result["outcome"] == "recorded" and result["offline"] == [["t", [0]]]
    assert result["value"] == state.nodes[1].broker_epoch and result["version"] == change.state.version
    assert not change.quiet, "all nodes are told now"
    assert change.state.topics["t"].partitions[0].isr == (1,), "the last member stays in the ISR"


@pytest.mark.feature("858-09")
@pytest.mark.parametrize(
    ("before", "told", "after"),
    [
        ([], (0, 0), (-1, "d1")),  # the controller has never heard where it is
        ([(0, "e1", 0)], (0, 0), (-1, "d1")),  # it has it elsewhere
        ([(0, "e1", 0)], (0, 1), (-1, "d1")),  # swapped in there, and not told yet
        ([(0, "e1", 2)], (0, 1), (1, "e1")),  # a stale copy failed: the newer one serves on
    ],
)
def test_failure_notice_records_the_replicas_directories(
    before: list[tuple[int, str, int]], told: tuple[int, int], after: tuple[int, str]
) -> None:
    state = assigned(cluster(1, t=1), *before)
    assert seen(done(state, failed(state, told)))[0] == after
    # The same when the registration is the first to tell it.
    row = ["t", told[0], state.topics["t"].id, "d1", told[1]]
    registered = done(state, registration(1, online=False) | {"lost": [row]})
    assert seen(registered)[0] == after


def test_failure_notice_repeated_or_late_changes_nothing() -> None:
    state = assigned(cluster(1, t=2), (0, "d1", 0))
    once = done(state, failed(state, (0, 0)))
    again = apply(once, failed(state, (0, 0)))
    assert again.state is once and again.results[0]["offline"] == [["t", [0]]]
    assert apply(once, failed(state, (0, 0), topic_id="another")).state is once, "a topic of that name, but another one"
    assert apply(once, registration(1, online=False)).state is once


@pytest.mark.conformance(106)
def test_failure_notice_for_another_nodes_directory_is_foreign() -> None:
    state = assigned(cluster(2, t=2), (0, "d1", 0))
    state = assigned(state, (1, "d2", 0), node=2)
    change = apply(state, failed(state, (1, 0)) | {"directory_id": "d2"})
    assert change.state is state and change.results[0]["outcome"] == "foreign"
    assert online(state, 2)["d2"] and seen(state) == [(1, "d1"), (2, "d2")]
    done(state, registration(2, "i3"))  # and nobody takes its disk for a copied one


@pytest.mark.conformance(112)
def test_node_holds_only_replicas_in_online_directories() -> None:
    state = done(cluster(2), registration(1, "i2", online=False))
    node, none = state.nodes[1], replace(state.nodes[1], directories=())
    assert [node.holds(id_) for id_ in ("e1", "d1", "d2", "")] == [True, False, False, True], (
        "named and online; offline; of another node; not known yet"
    )
    assert [none.holds(id_) for id_ in ("e1", "")] == [False, True]
    assert not replace(node, fenced=True).holds("e1")


def test_failure_notice_of_an_earlier_incarnation_is_healed() -> None:
    state = assigned(cluster(1, t=1), (0, "d1", 0))
    back = done(state, registration(1, "i2"))
    change = apply(back, failed(back, (0, 0)))
    assert change.state is back and change.results[0]["outcome"] == "healed"
    # Without it, the notice of the earlier start still tells where the replicas were.
    fresh = cluster(1, t=1)
    without = done(fresh, registration(1, "i2", online=False))
    assert seen(without) == [(1, "")]
    assert seen(done(without, failed(without, (0, 0)))) == [(-1, "d1")]


def test_registration_keeps_unnamed_directories_with_replicas_offline() -> None:
    state = assigned(cluster(1, t=2), (0, "d1", 0), (1, "e1", 0))
    bare = registration(1, "i2") | {"directories": [["f1", "/c", 1]]}
    after = done(state, bare)
    assert online(after) == {"f1": True, "d1": False, "e1": False}
    assert [leader for leader, _ in seen(after)] == [-1, -1]
    # Whoever reads the image sees which replicas are offline, and a controller that is rebuilt from it does, too.
    (text,) = image.whole(after)
    assert {each.id: each.online for each in decode(text).nodes[1].directories} == online(after)
    back = done(after, registration(1, "i3"))
    assert online(back) == {"d1": True, "e1": True}, "an empty one that is not named any more goes"
    assert [leader for leader, _ in seen(back)] == [1, 1]


def test_failure_notice_of_an_unregistered_node_is_rejected() -> None:
    state = cluster(2, t=1)
    code, message = refused(state, failed(state) | {"node": 7})
    assert code == 102 and "Node 7" in message
    code, message = refused(state, failed(state) | {"noticed": "now"})
    assert code == 42 and "$.noticed" in message


def test_failure_notice_of_a_fenced_node_is_recorded() -> None:
    state = assigned(cluster(1, t=1), (0, "d1", 0))
    fenced = done(state, {"do": "lease_ended", "node": 1, "incarnation": "i1"})
    after = done(fenced, failed(fenced, (0, 0)))
    assert online(after)["d1"] is False and after.nodes[1].fenced


def test_failure_notice_while_collecting_is_rejected() -> None:
    it = Controller.start("c", {})
    assert "collects" in it.directory_failed({"node": 1})["message"]
    held = cluster(1, t=1)
    it = Controller.start("c", it.carry() | {"state": pack(held.rows()), "collecting": False})
    answer = it.directory_failed({key: value for key, value in failed(held, (0, 0)).items() if key != "do"})
    assert answer["outcome"] == "recorded" and it.to_push() == [1]
    assert it.directory_failed("nonsense")["error"] == 42


def _steps(state: ClusterState) -> list[Callable[[ClusterState], ClusterState]]:
    """All words about one failure, as they may come: the notice twice, a registration without and with the lost."""
    row = ["t", 0, state.topics["t"].id, "d1", 1]
    return [
        lambda now: apply(now, failed(state, (0, 1))).state,
        lambda now: apply(now, failed(state, (0, 1))).state,
        lambda now: apply(now, registration(1, online=False)).state,
        lambda now: apply(now, registration(1, online=False) | {"lost": [row]}).state,
        lambda now: apply(now, assigning(state, "e1", 0)).state,
    ]


def assigning(state: ClusterState, directory: str, generation: int) -> dict[str, Any]:
    """An older word about where the replica is."""
    rows = [["t", 0, state.topics["t"].id, directory, generation]]
    return {"do": "assign_directories", "node": 1, "replicas": rows}


def test_failures_and_registrations_in_any_order_end_alike() -> None:
    state = cluster(1, t=2)
    ends = set()
    for order in permutations(_steps(state)):
        now = state
        for step in order:
            now = step(now)
        ends.add((tuple(seen(now)), tuple(sorted(online(now).items()))))
    assert ends == {(((-1, "d1"), (1, "")), (("d1", False), ("e1", True)))}


GOOD = {"verdict": "read-only", "operation": "a flush", "path": "/a/t-0", "errno": "EROFS", "time": 12.25}


def test_failure_notice_carries_its_evidence_unchanged() -> None:
    notice = {**failed(cluster(1, t=1)), "evidence": GOOD}
    notice.pop("do")
    read = read_failure(notice)
    assert read.failure.evidence == Evidence(Verdict.READ_ONLY, "a flush", "/a/t-0", "EROFS", 12.25)
    assert failure_row(read)["evidence"] == GOOD
    notice.pop("evidence")
    assert read_failure(notice).failure.evidence is None, "a node of an earlier version sends none"


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({**GOOD, "verdict": "tired"}, "$.evidence.verdict"),
        ({**GOOD, "time": "now"}, "$.evidence.time"),
        ({**GOOD, "path": 3}, "$.evidence.path"),
        ({**GOOD, "more": 1}, "$.evidence.more"),
        ("a flush", "$.evidence"),
    ],
)
def test_malformed_evidence_is_rejected_with_the_path(wrong: Any, path: str) -> None:
    notice = {**failed(cluster(1, t=1)), "evidence": wrong}
    notice.pop("do")
    with pytest.raises(BadField) as found:
        read_failure(notice)
    assert found.value.path == path


_texts = st.text(min_size=1, max_size=5)
_notices = st.fixed_dictionaries(
    {
        "node": st.integers(0, 5),
        "incarnation": _texts,
        "directory": _texts,
        "directory_id": _texts,
        "reason": _texts,
        "noticed": st.floats(0, 1e10),
        "replicas": st.lists(
            st.tuples(_texts, _texts, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3)), max_size=3
        ),
    }
)


@given(_notices, st.sampled_from(["", "node", "noticed", "replicas", "reason", "more"]), st.none() | st.text())
def test_failure_notice_is_read_or_rejected_with_a_path(notice: dict[str, Any], spoilt: str, value: Any) -> None:
    if spoilt:
        notice = notice | {spoilt: value}
    try:
        read = read_failure(notice)
    except BadField as bad:
        assert spoilt and bad.path.startswith("$")
    else:
        assert len(read.failure.replicas) == sum(len(row[2]) for row in notice["replicas"] or [])
        assert replace(read) == read
