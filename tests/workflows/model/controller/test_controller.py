"""What the controller decides, without Temporal: who is told what, who is asked, what survives a continue-as-new."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from storage_node.model.image import decode
from storage_node.model.packing import compressed
from tests.workflows.model.support import cluster, create, lost, new_id, raising_rows, registration
from workflows.model.calls import ImageResult
from workflows.model.controller.controller import Controller, check_batch
from workflows.model.controller.deltas import Deltas
from workflows.model.controller.renewal import Limits, Renewal
from workflows.model.metadata import image
from workflows.model.metadata import state as state_module


def batch(node: int, *commands: Any, pair: tuple[int, int] = (0, 0), incarnation: str = "") -> dict[str, Any]:
    return {
        "node": node,
        "incarnation": incarnation or f"i{node}",
        "generation": pair[0],
        "version": pair[1],
        "commands": list(commands),
    }


def serving(nodes: int = 2) -> Controller:
    it = Controller.start("c", {})
    for node in range(1, nodes + 1):
        it.submit(batch(node, registration(node)), new_id)
    return it


def told(it: Controller) -> None:
    """Every node takes its push."""
    for node in it.to_push():
        assert it.images_for(node)
        assert it.pushed(node, ImageResult(*it.pair, f"i{node}"), it.pair)


def test_first_node_of_a_new_cluster_is_served_at_once() -> None:
    it = Controller.start("c", None)
    reply = it.submit(batch(1, create("t"), registration(1), create("u")), new_id)
    assert [results[0].get("error", 0) for results in reply["results"]] == [102, 0, 0]
    assert reply["generation"] == 1 and decode(reply["image"]).topics.keys() == {"u"}
    assert it.to_lease() == [(1, "i1")]


def test_change_is_due_at_every_other_node_and_a_quiet_one_later() -> None:
    it = serving()
    told(it)
    reply = it.submit(batch(1, create("t", 2), pair=it.pair), new_id)
    assert it.to_push() == [1, 2] and reply["image"]
    told(it)
    assert it.to_push() == []
    it.submit(batch(2, raising_rows(2), pair=it.pair), new_id)
    assert it.to_push() == [] and it.quietly_changed
    it.make_urgent()
    assert it.to_push() == [1, 2] and not it.quietly_changed


def test_change_during_a_push_goes_into_the_next() -> None:
    it = serving()
    due = it.pair
    it.submit(batch(1, create("t"), pair=it.pair), new_id)
    assert it.pushed(2, ImageResult(*due, "i2"), due)
    assert 2 in it.to_push()
    assert not it.pushed(2, ImageResult(0, 0, "i2"), it.pair), "a node that refused a delta gets the whole next time"
    (text,) = it.images_for(2)
    assert decode(text).since == 0


def test_push_applied_by_another_incarnation_is_ignored() -> None:
    it = serving()
    told(it)
    it.submit(batch(1, create("t"), pair=it.pair), new_id)
    it.pushed(2, ImageResult(*it.pair, "another"), it.pair)
    assert 2 in it.to_push()


def test_suspect_is_fenced_or_cleared() -> None:
    it = serving()
    it.suspect(2, "of long ago")
    assert not it.suspects
    it.suspect(2, "i2")
    assert it.suspects == {2: "i2"} and it.to_lease() == [(1, "i1")]
    it.clear_suspect(2, "i2")
    assert it.to_lease() == [(1, "i1"), (2, "i2")]
    it.suspect(2, "i2")
    it.fence(2, "i2")
    it.clear_suspect(2, "i2")
    assert it.to_push() == [1] and it.registered(2) is None and it.may_know(2) and not it.may_know(9)


def test_registering_again_ends_a_suspicion() -> None:
    it = serving()
    it.suspect(2, "i2")
    it.submit(batch(2, registration(2, "new"), incarnation="new"), new_id)
    assert not it.suspects and (2, "new") in it.to_lease()


@pytest.mark.parametrize("what", ["hold_throttles", "release_throttles"])
def test_no_node_holds_a_lease(what: str) -> None:
    it = serving()
    before = it.state
    reply = it.submit(batch(1, {"do": what, "holder": "me", "nodes": {"1": {}}}, {"do": [what]}), new_id)
    assert [results[0]["error"] for results in reply["results"]] == [42, 42] and it.state is before


def test_node_registers_only_itself() -> None:
    it = serving()
    reply = it.submit(batch(1, registration(2)), new_id)
    assert reply["results"][0][0]["error"] == 42


def test_continue_as_new_carries_the_state() -> None:
    it = serving()
    it.submit(batch(1, create("t", 3)), new_id)
    told(it)
    it.suspect(2, "i2")
    after = Controller.start("c", json.loads(json.dumps(it.carry())))
    assert after.state == it.state and after.suspects == {2: "i2"} and after.to_push() == []
    after.submit(batch(1, create("u"), pair=after.pair), new_id)
    (text,) = after.images_for(2)
    assert decode(text).since == it.pair[1], "it still knows what each node has"


def test_newer_format_of_the_carried_state_is_rejected() -> None:
    with pytest.raises(ValueError):
        Controller.start("c", {"v": 2})


def test_batch_with_newer_metadata_makes_the_controller_collect() -> None:
    it = serving()
    memory = it.pair
    reply = it.submit(batch(1, create("t"), pair=(1, memory[1] + 5)), new_id)
    assert reply["results"][0][0]["error"] == 102 and reply["register"] and reply["awaited"] == [1, 2]
    assert it.describe().phase == "collecting" and it.to_collect() == [1, 2]
    assert not it.to_push() and not it.to_lease()
    # Collecting survives a continue-as-new as well; what was answered is asked for again.
    it = Controller.start("c", json.loads(json.dumps(it.carry())))
    assert it.to_collect() == [1, 2]
    held = image.whole(cluster(2, t=2))[0]
    assert it.submit(batch(1, registration(1), pair=(1, 9)), new_id)["results"][0][0]["error"] == 42, "no image"
    damaged = registration(1) | {"image": "?"}
    assert it.submit(batch(1, damaged, pair=(1, 9)), new_id)["results"][0][0]["error"] == 42
    assert it.submit(batch(1, registration(1) | {"image": held}, pair=(1, 9)), new_id)["awaited"] == [2]
    reply = it.submit(batch(2, registration(2) | {"image": held}, pair=(1, 9)), new_id)
    assert reply["generation"] == 2 and not reply["results"][0][0].get("error")
    assert [p.leader for p in it.state.topics["t"].partitions] == [1, 2]  # type: ignore[union-attr]
    assert it.to_push() == [1], "the one that asked has it with the answer"


def test_repeated_registration_while_collecting_needs_no_image() -> None:
    it = Controller.start("c", {})
    (held,) = image.whole(cluster(2, t=2))
    known = decode(held).pair
    bare, whole = registration(1), registration(1) | {"image": held}

    def wants_image(command: dict[str, Any], pair: tuple[int, int] = known) -> bool:
        (result,) = it.submit(batch(1, command, pair=pair, incarnation=command["incarnation"]), new_id)["results"][0]
        return bool(result.get("wants_image"))

    assert wants_image(bare) and not wants_image(whole)
    assert not wants_image(bare) and not wants_image(bare) and it.to_collect() == [2]
    assert wants_image(bare, (known[0], known[1] + 1)), "it knows more by now"
    assert wants_image(registration(1, "another")), "its disks may be others"
    it.give_up(2)
    assert it.state is not None and it.state.topics.keys() == {"t"} and it.state.cluster_generation == 2


def test_run_that_collects_continues_as_new_only_near_the_servers_limits() -> None:
    it = serving()
    assert it.renewal(1_000, 0) is Renewal.WHEN_QUIET and it.renewal(0, 4_000_000) is Renewal.NOW
    it.submit(batch(1, pair=(9, 1)), new_id)
    assert it.collecting is not None
    assert it.renewal(5_000, 0) is it.renewal(0, 20_000_000) is Renewal.NOT_YET
    assert it.renewal(20_000, 0) is it.renewal(0, 30_000_000) is Renewal.NOW


def test_next_run_has_the_programs_limits_unless_the_first_run_named_others() -> None:
    old, new = Limits(bytes=(1, 2)), Limits(bytes=(3, 4))
    carried = Controller.start("c", {}, old).carry()
    again = Controller.start("c", carried, new)
    assert again.continue_at == old, "a run keeps what it began with, in a replay by another program as well"
    assert Controller.start("c", again.carry(), new).continue_at == new
    before = {key: value for key, value in carried.items() if key != "continue_at_named"}
    assert Controller.start("c", Controller.start("c", before, new).carry(), new).continue_at == new
    named = Controller.start("c", {"continue_at": [5, 6]}, old)
    for _ in range(3):
        assert named.continue_at == Limits((5, 6), bytes=(1, 2))
        named = Controller.start("c", json.loads(json.dumps(named.carry())), new)


def test_push_to_a_node_with_newer_metadata_makes_the_controller_collect() -> None:
    it = serving()
    it.pushed(1, ImageResult(4, 1, "i1"), it.pair)
    assert it.describe().phase == "collecting"


def test_registration_of_another_clusters_node_is_rejected() -> None:
    foreign = image.whole(cluster(1))[0]
    for it in (Controller.start("mine", {}), Controller.start("mine", {})):
        reply = it.submit(batch(1, registration(1) | {"image": foreign}, pair=(1, 1)), new_id)
        assert reply["results"][0][0]["error"] == 104
    it = Controller.start("mine", {})
    it.submit(batch(2, registration(2)), new_id)
    assert it.submit(batch(1, registration(1) | {"image": foreign}), new_id)["results"][0][0]["error"] == 104
    assert it.registered(1) is None


def test_registration_without_an_image_is_accepted_unless_collecting() -> None:
    it = serving(2)
    assert it.state is not None
    (held,) = image.whole(it.state)
    bare = registration(2) | {"cluster": "c"}
    assert not it.submit(batch(2, bare, pair=it.pair), new_id)["results"][0][0].get("error")
    (result,) = it.submit(batch(2, bare | {"cluster": "other"}, pair=it.pair), new_id)["results"][0]
    assert result["error"] == 104
    lost_memory = Controller.start("c", {})
    (result,) = lost_memory.submit(batch(1, registration(1), pair=it.pair), new_id)["results"][0]
    assert result["error"] == 42 and result["wants_image"]
    lost_memory.submit(batch(1, registration(1) | {"image": held}, pair=it.pair), new_id)
    lost_memory.submit(batch(2, registration(2) | {"image": held}, pair=it.pair), new_id)
    assert lost_memory.state is not None and lost_memory.state.cluster_generation == 2


def test_replay_of_a_registration_ends_in_the_same_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay of a history costs what its changes cost: images that were sent are not packed again."""
    packs: list[int] = []

    def count(text: bytes) -> str:
        packs.append(1)
        return compressed(text)

    def live_through(*, replaying: bool) -> dict[str, Any]:
        packs.clear()
        it = Controller.start("c", {})
        for node in (1, 2, 3):
            it.submit(batch(node, registration(node)), str, replaying=replaying)
        for number in range(20):
            it.submit(batch(2, create(f"t{number}"), pair=it.pair), str, replaying=replaying)
        it.fence(1, "i1")
        it.submit(batch(1, registration(1, "again"), pair=(1, 3), incarnation="again"), str, replaying=replaying)
        return it.carry()

    monkeypatch.setattr(image, "compressed", count)
    lived = live_through(replaying=False)
    assert len(packs) == 24
    assert live_through(replaying=True) == lived and len(packs) == 4


def test_only_an_awaited_node_can_be_given_up() -> None:
    it = serving()
    with pytest.raises(ValueError, match="serves"):
        it.check_give_up({"node": 1})
    it.submit(batch(1, create("t"), pair=(3, 1)), new_id)
    held = image.whole(cluster(2, t=2))[0]
    it.submit(batch(1, registration(1) | {"image": held}, pair=(3, 1)), new_id)
    with pytest.raises(ValueError, match="awaited: 2"):
        it.check_give_up({"node": 7})
    it.give_up(it.check_give_up({"node": 2}))
    assert it.describe().phase == "serving" and it.registered(1) is not None and it.registered(2) is None


@pytest.mark.parametrize(
    "wrong",
    [None, {}, {"node": 1}, {"node": 1, "incarnation": ""}, batch(1) | {"commands": {}}, batch(1) | {"version": "1"}],
)
def test_invalid_batch_is_rejected_with_the_path(wrong: Any) -> None:
    with pytest.raises(ValueError):
        check_batch(wrong)


def deleted(it: Controller) -> list[str]:
    assert it.state is not None
    return list(it.state.gone.values())


def test_deletion_is_remembered_until_every_node_has_confirmed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, and however long a node is away."""
    monkeypatch.setattr(state_module, "REMEMBERED_DELETIONS", 1)
    it = serving(3)
    told(it)
    it.fence(3, "i3")
    for number in range(3):
        it.submit(batch(1, create(f"t{number}"), {"do": "delete_topics", "names": [f"t{number}"]}), new_id)
        told(it)
    assert deleted(it) == ["t0", "t1", "t2"], "node 3 is registered, and away"
    assert it.describe().deletions == 3
    it = Controller.start("c", json.loads(json.dumps(it.carry())))
    reply = it.submit(batch(3, registration(3, "again"), pair=(1, 3), incarnation="again"), new_id)
    assert list(decode(reply["image"]).gone.values()) == ["t0", "t1", "t2"]
    assert deleted(it) == ["t0", "t1", "t2"], "having been told is not having done it"
    it.submit(batch(1, create("u"), pair=it.pair), new_id)
    due = it.pair
    it.pushed(1, ImageResult(*due, "i1"), due)
    it.pushed(2, ImageResult(*due, "i2"), due)
    assert deleted(it) == ["t0", "t1", "t2"]
    it.pushed(3, ImageResult(*due, "again"), due)
    assert deleted(it) == ["t2"], "of those that all have confirmed so many are kept"
    assert it.describe().deletions == 0


def test_node_with_an_offline_directory_confirms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "REMEMBERED_DELETIONS", 0)
    it = serving(2)
    it.submit(batch(2, registration(2, online=False), pair=it.pair), new_id)
    it.submit(batch(1, create("t"), {"do": "delete_topics", "names": ["t"]}), new_id)
    told(it)
    assert deleted(it) == ["t"]
    it.submit(batch(2, registration(2), pair=it.pair), new_id)
    it.submit(batch(1, create("u"), pair=it.pair), new_id)
    told(it)
    assert deleted(it) == []


@pytest.mark.parametrize("factor", [1, 3])
def test_limits_stay_below_a_second_per_workflow_task(factor: int, own_time: None) -> None:
    """5,000 partitions with three replicas, or 20,000 with one."""
    it = serving(9)
    topics = [
        {"name": f"topic-{number}", "partitions": 20, "replication_factor": factor}
        for number in range(1000 if factor == 1 else 250)
    ]
    spent: dict[str, float] = {}

    def timed(what: str, do: Callable[[], Any]) -> None:
        begin = time.thread_time()
        do()
        it.images_for(2)
        spent[what] = time.thread_time() - begin

    def submit(*command: Any, node: int = 2, incarnation: str = "") -> Any:
        (results,) = it.submit(batch(node, *command, incarnation=incarnation), new_id)["results"]
        assert all(result.get("error", 0) in (0, 108) for result in results)
        return results

    timed("create", lambda: submit({"do": "create_topics", "topics": topics}))
    timed("fence", lambda: submit(lost(1)))
    timed("register", lambda: submit(registration(1, "again"), node=1, incarnation="again"))
    if factor == 3:
        assert it.state is not None
        wanted = [
            [topic.name, each.index, [node for node in range(1, 10) if node not in each.replicas][:3]]
            for topic, each in it.state.partitions()
        ][:1000]
        timed("reassign", lambda: submit({"do": "alter_reassignments", "partitions": wanted}))
        rows = []
        for name, index, _ in wanted:
            topic = it.state.topics[name]
            held = topic.partitions[index]
            if held.leader == 2:
                isr = [[node, -1] for node in held.replicas]
                rows.append([name, index, topic.id, held.leader_epoch, held.partition_epoch, isr])
        assert len(rows) > 90
        timed("complete", lambda: submit({"do": "alter_partitions", "node": 2, "partitions": rows}))
    begin = time.thread_time()
    Controller.start("c", it.carry())
    spent["carry"] = time.thread_time() - begin
    assert max(spent.values()) < 2.0, spent


def test_node_that_led_300_partitions_is_fenced_in_one_change(own_time: None) -> None:
    it = serving(3)
    told(it)
    rows = [{"name": f"t{number}", "assignment": [[1, 2, 3]] * 10} for number in range(30)]
    it.submit(batch(2, {"do": "create_topics", "topics": rows}), new_id)
    told(it)
    begin, before = time.thread_time(), it.pair
    it.fence(1, "i1")
    (text,) = it.images_for(2)
    spent = time.thread_time() - begin
    assert it.pair[1] == before[1] + 31, "a version for the node and one for each topic, in one image"
    held = decode(text)
    assert {each.leader for rows in held.partitions.values() for each in rows} == {2}
    assert sum(map(len, held.partitions.values())) == 300 and not held.topics
    assert spent < 0.5


def test_each_reply_and_push_has_the_digest_of_the_metadata() -> None:
    it = Controller.start("c", None)
    assert it.stamp == (0, 0, "") and it.submit(batch(1, create("t")), new_id)["digest"] == "", "it collects"
    digests = set()
    for command in (registration(1), create("t"), create("u"), {"do": "delete_topics", "names": ["t"]}):
        reply = it.submit(batch(1, command, pair=it.pair), new_id)
        assert it.state is not None and reply["digest"] == it.state.digest
        assert it.stamp == (reply["generation"], reply["version"], reply["digest"])
        digests.add(reply["digest"])
    assert len(digests) == 4


def test_batch_at_zero_gets_the_whole_image(monkeypatch: pytest.MonkeyPatch) -> None:
    it = serving()
    it.submit(batch(1, create("t", 4), create("u", 4), pair=it.pair), new_id)
    told(it)
    reply = it.submit(batch(1, {"do": "tell_version"}), new_id)
    assert decode(reply["image"]).since == 0 and it.to_push() == []
    # One that takes several images is pushed.
    monkeypatch.setattr(image, "since", partial(image.since, limit=100))
    it._deltas = Deltas()  # nothing is packed for this version yet
    reply = it.submit(batch(1, {"do": "tell_version"}), new_id)
    assert reply["image"] == "", "a part alone would leave the node between two versions"
    assert it.to_push() == [1]
    parts = it.images_for(1)
    assert len(parts) > 1 and decode(parts[0]).since == 0
