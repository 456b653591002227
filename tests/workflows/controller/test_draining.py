"""What the controller waits for before its run continues as new, what comes in between, and what it ends first."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.bridge.proto.workflow_activation import WorkflowActivationJob

from storage_node.model.image import decode
from tests.support.runs.hand_activations import Driven, plain
from tests.workflows import driven
from tests.workflows.fakes import FakeMember
from workflows import options
from workflows.cluster import Cluster
from workflows.model import calls
from workflows.model.metadata import image
from workflows.model.metadata.state import ClusterState


def applied(call: Any) -> Any:
    """A node takes the images that it is sent."""
    return {"generation": call["generation"], "version": call["version"], "incarnation": f"i{call['node']}"}


def settled() -> Driven:
    """A controller that serves, and awaits nothing."""
    it = driven.serving()
    for _ in range(6):
        it.resolve({calls.APPLY_IMAGE: applied}, timers=True)
    assert scheduled(it) == []
    return it


def draining() -> Driven:
    """The same once its history is long: it waits until the server has taken a signal."""
    it = settled()
    it.send(it.signal("locate", plain(driven.EXAMPLES["Cluster.locate"])))
    it.length = options.CONTINUE_AT.events[1] + 1
    it.send(it.signal("cancel_run", plain({**driven.RUN, "workflow_id": "c/other"})))
    assert it.ended is None and len(signals_open(it)) == 1, "what comes now is for the next run"
    return it


def signals_open(it: Driven) -> list[int]:
    return [seq for kind, seq in it.open if kind.endswith("external_workflow_execution")]


def scheduled(it: Driven) -> list[tuple[str, int]]:
    """The activities under way, and the nodes that they are for."""
    found = [each.schedule_activity for each in it.open.values() if each.HasField("schedule_activity")]
    return [(each.activity_type, json.loads(each.arguments[0].data)["node"]) for each in found]


def timers(it: Driven) -> list[tuple[float, int]]:
    """The timers that run: for how long, and their numbers."""
    found = {seq: each.start_timer for (kind, seq), each in it.open.items() if kind == "start_timer"}
    return sorted((each.start_to_fire_timeout.ToMilliseconds() / 1000, seq) for seq, each in found.items())


def fire(it: Driven, seq: int) -> None:
    job = WorkflowActivationJob()
    job.fire_timer.seq = seq
    del it.open["start_timer", seq]
    it.send(job)


def told_later(it: Driven) -> None:
    """A change comes that the other nodes are told of a second later."""
    (topic,) = it.query("state")["topics"]
    rows = [["t", 0, topic[1], "", 1]]
    it.send(it.update("submit", plain(FakeMember(1).batch({"do": "raise_generations", "node": 1, "replicas": rows}))))


def push_fails(it: Driven) -> None:
    """A node takes no images: the next attempts come after longer and longer pauses."""
    made = {"do": "create_topics", "topics": [{"name": "u", "partitions": 1}]}
    it.send(it.update("submit", plain(FakeMember(2).batch(made))))
    for _ in range(6):
        it.resolve({calls.APPLY_IMAGE: lambda call: applied(call) if call["node"] == 2 else {}}, timers=True)
    it.resolve({calls.APPLY_IMAGE: lambda call: applied(call) if call["node"] == 2 else {}})


@pytest.mark.parametrize(
    ("rests", "quietly"), [(told_later, False), (push_fails, False), (push_fails, True)],
    ids=["a change that is told later", "a push that failed", "a push that failed, in a quiet second"],
)  # fmt: skip
def test_no_timer_is_open_in_the_task_that_continues_as_new(rests: Callable[[Driven], None], quietly: bool) -> None:
    """The server would refuse it, and the worker replay the whole run before it serves again."""
    it = settled()
    rests(it)
    assert timers(it) and timers(it)[0][0] >= 1
    it.length = options.CONTINUE_AT.events[not quietly] + 1
    it.send(it.signal("cancel_run", plain({**driven.RUN, "workflow_id": "c/other"})))
    it.resolve({})
    if quietly:
        fire(it, timers(it)[0][1])
    (left,) = timers(it)
    assert left[0] == options.CONTINUE_PAUSE.total_seconds() and it.ended is None
    fire(it, left[1])
    assert it.ended is not None and it.ended.HasField("continue_as_new_workflow_execution")


def test_pushes_that_are_too_large_for_one_task_are_left_to_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    it, third = settled(), FakeMember(3)
    it.send(it.update("submit", plain(third.batch(third.registration()))))
    for _ in range(6):
        it.resolve({calls.APPLY_IMAGE: applied}, timers=True)
    monkeypatch.setattr(options, "PUSH_TOGETHER", 1)
    it.length = options.CONTINUE_AT.events[1] + 1
    made = {"do": "create_topics", "topics": [{"name": "u", "partitions": 2}]}
    it.send(it.update("submit", plain(third.batch(made))))
    assert scheduled(it) == [(calls.APPLY_IMAGE, 1)] and it.ended is None
    for _ in range(6):
        if it.ended is None:
            it.resolve({calls.APPLY_IMAGE: applied}, timers=True)
    assert it.ended is not None
    again = Driven(Cluster, it.ended.continue_as_new_workflow_execution.arguments[0], continued=True)
    assert (calls.APPLY_IMAGE, 2) in scheduled(again)


def probed(call: Any) -> Any:
    return {"incarnation": "", "reason": "nothing listens", "refused": True}


def test_node_whose_lease_ends_while_draining_is_probed_and_fenced_first() -> None:
    it = draining()
    it.send(it.signal("lease_ended", plain({"node": 1, "incarnation": "i1", "reason": "not renewed"})))
    assert scheduled(it) == [(calls.PROBE_NODE, 1)]
    held = [key for key in it.open if key[0].endswith("external_workflow_execution")]
    kept = {key: it.open.pop(key) for key in held}
    it.resolve({calls.PROBE_NODE: probed})
    assert scheduled(it) == [(calls.APPLY_IMAGE, 2)], "its partitions have other leaders"
    # Having served again, the run takes updates as ever.
    it.open |= kept
    other = FakeMember(2)
    made = {"do": "create_topics", "topics": [{"name": "u", "partitions": 1}]}
    it.send(it.update("submit", plain(other.batch(made))))
    assert [row[0] for row in it.query("state")["topics"]] == ["t", "u"]
    for _ in range(8):
        if it.ended is None:
            it.resolve({calls.APPLY_IMAGE: applied}, timers=True)
    assert it.ended is not None and it.ended.HasField("continue_as_new_workflow_execution")


def test_node_that_stops_while_draining_has_its_leaders_moved_first() -> None:
    it, node = draining(), FakeMember(1)
    it.send(it.update("submit", plain(node.batch({"do": "lease_ended", "node": 1, "incarnation": "i1"}))))
    assert scheduled(it) == [(calls.APPLY_IMAGE, 2)]


def test_run_that_is_overdue_continues_while_a_node_is_suspect() -> None:
    it = settled()
    it.length = 2 * options.CONTINUE_AT.events[1]
    it.send(it.signal("lease_ended", plain({"node": 1, "incarnation": "i1", "reason": "not renewed"})))
    for _ in range(3):
        if it.ended is None:
            it.resolve({}, timers=True)
    assert it.ended is not None
    (parameter,) = it.ended.continue_as_new_workflow_execution.arguments
    again = Driven(Cluster, parameter, continued=True)
    assert (calls.PROBE_NODE, 1) in scheduled(again)


def test_collection_stays_one_run_however_often_nodes_register() -> None:
    """What was collected is not carried: a node that an operator gives up must still be the one that is awaited."""
    it = driven.collecting()
    content = image.whole(ClusterState.of(driven.serving().query("state")))[0]
    known = decode(content).pair
    node = FakeMember(1)
    whole, bare = node.registration(content), {**node.registration(), "image": ""}
    it.send(it.update("submit", plain(node.batch(whole) | {"generation": known[0], "version": known[1]})))
    for _ in range(20):
        it.length += 500
        sent = node.batch(bare) | {"generation": known[0], "version": known[1]}
        (done,) = (each for each in it.send(it.update("submit", plain(sent))) if driven.is_done(each))
        ((result,),) = json.loads(done.update_response.completed.data)["results"]
        assert result["error"] and not result.get("wants_image"), "its image is here"
        it.resolve({calls.APPLY_IMAGE: applied}, timers=True)
        assert it.ended is None and it.query("describe")["answered"] == [1]
    it.send(it.update("recover_without", plain({"node": 2})))
    found = it.query("describe")
    assert (found["phase"], found["topics"]) == ("serving", 1)
