"""Nothing that an activity or a child run returns fails a workflow task: what cannot be read is a failed step.

The activities are found in the commands of runs, each in the state in which its run awaits it. Its result is replaced
by every payload of tests/workflows/nasty.py, by all that is nearly right, and by what hypothesis makes; then queries
get responses, nodes and timers go on, and the run takes a cancel.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.activity_result import ActivityResolution
from temporalio.bridge.proto.child_workflow import ChildWorkflowResult
from temporalio.bridge.proto.workflow_activation import WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand

import workflows
from storage_node.model.error_types import ErrorType
from storage_node.model.moves import Outcome
from tests.support.runs.hand_activations import Driven, TaskFailed, plain, signals_in
from tests.support.scale import scaled, tally
from tests.workflows import nasty
from tests.workflows.driven import (
    ALL,
    ASKED,
    EXAMPLES,
    PARAMETERS,
    PLANNED,
    WELL,
    alerting,
    catching_up,
    copying,
    creating,
    draining,
    following,
    holding,
    keeping,
    planned,
    requesting,
    serving,
)
from tests.workflows.driven import moving as moving_plan
from workflows.cluster import Cluster
from workflows.export_history import ExportHistory
from workflows.model import calls, names
from workflows.model.plans.running import calls as plans
from workflows.move_replica import MoveReplica
from workflows.node_lease import NodeLease
from workflows.partition_reassignment import PartitionReassignment
from workflows.plans.evacuate_directory import EvacuateDirectory
from workflows.plans.plan_alert import PlanAlert
from workflows.plans.plan_lane import PlanLane
from workflows.plans.reassignment_plan import ReassignmentPlan
from workflows.plans.throttle_keeper import ThrottleKeeper
from workflows.step_specs import SPECS
from workflows.throttle_lease import ThrottleLease

STRIDE = scaled(23, 1)  # of what is nearly right every so many
PART = scaled(4, 1)
EXPORTED = {"manifest": "/x/m.json", "closed": 1, "open": 2, "events": 3, "bytes": 4}
#: What nodes return, and child runs, when all goes well.
FINE: Mapping[str, Callable[[Any], Any]] = {
    **WELL,
    **PLANNED,
    calls.AWAIT_MOVES: lambda _call: None,
    calls.HOLD_LEASE: lambda _call: None,
    calls.EXPORT_HISTORIES: lambda _call: EXPORTED,
}


def _without(*activities: str) -> Mapping[str, Callable[[Any], Any]]:
    return {name: make for name, make in WELL.items() if name not in activities}


def waiting_for_copy() -> Driven:
    return copying()


def swapping() -> Driven:
    it = copying()
    it.resolve(_without(calls.SWAP))
    return it


def deleting() -> Driven:
    it = swapping()
    it.resolve(_without(calls.DELETE_REPLICA))
    it.resolve({}, timers=True)
    return it


def cancelling() -> Driven:
    it = copying()
    it.send(it.cancel())
    it.resolve(_without(calls.CANCEL_MOVE))
    return it


def preferring() -> Driven:
    return Driven(PartitionReassignment, plain(ASKED))


def clearing() -> Driven:
    """The run of a reassignment whose replicas have joined."""
    it = catching_up()
    it.resolve(_without(calls.AWAIT_DELETION))
    return it


def directing() -> Driven:
    """The run of one that asked for a directory, in which the replica may be."""
    it = preferring()
    it.resolve(WELL)
    answer = {**EXAMPLES["PartitionReassignment.answered"], "rows": [], "absent": []}
    for request, results in ((1, answer["results"]), (2, [])):
        it.send(it.signal("answered", plain({**answer, "request": request, "results": results})))
        it.resolve({})  # its own signal was taken
        it.resolve(_without(calls.PLACE_REPLICAS, calls.AWAIT_DELETION))
    return it


def moving() -> Driven:
    """The same once it has a replica moved to its directory by another run."""
    it = directing()
    elsewhere = FINE[calls.PLACE_REPLICAS]
    it.resolve({
        calls.PLACE_REPLICAS: lambda call: {
            "rows": [{**row, "directory": "/disk/z"} for row in elsewhere(call)["rows"]]
        }
    })  # fmt: skip
    it.resolve({})
    return it


def probing() -> Driven:
    it = serving()
    it.send(it.signal("lease_ended", plain(EXAMPLES["Cluster.lease_ended"])))
    return it


def leasing() -> Driven:
    """A controller whose leases are held by runs of their own."""
    it = serving()
    it.resolve({})
    return it


def watching() -> Driven:
    """The run of a lease that waits for a node's moves."""
    it = holding()
    it.resolve({})
    it.send(it.signal("answered", plain({**EXAMPLES["ThrottleLease.answered"], "left_out": []})))
    it.send(it.signal("requested", plain(EXAMPLES["ThrottleLease.requested"])))
    return it


def held() -> Driven:
    return Driven(NodeLease, plain(PARAMETERS[NodeLease]))


def exporting() -> Driven:
    return Driven(ExportHistory, plain(PARAMETERS[ExportHistory]))


def _but(it: Driven, *activities: str) -> Driven:
    """The run once it awaits one of these activities, all others having succeeded."""
    left = {name: make for name, make in PLANNED.items() if name not in activities}
    for _ in range(8):
        it.resolve(left)
    return it


def throttling() -> Driven:
    return _but(planned(), plans.HOLD_THROTTLES)


def choosing() -> Driven:
    return _but(planned(), plans.CHOOSE_LANES)


def _ended_plan() -> Driven:
    it = moving_plan()
    for number in range(2):
        key = ("t-0@1", "t-1")[number]
        rows = [{**EXAMPLES["ReassignmentPlan.lane_ended"]["rows"][0], "key": key}]
        it.send(it.signal("lane_ended", plain({"number": number, "rows": rows})))
    return it


def releasing() -> Driven:
    return _but(_ended_plan(), plans.RELEASE_THROTTLES)


def letting_go() -> Driven:
    return _but(_ended_plan(), plans.RELEASE_SLOTS)


def verifying() -> Driven:
    return _but(_ended_plan(), plans.VERIFY_PLAN)


def keeping_text() -> Driven:
    """A plan whose worker lacks its text."""
    it = planned()
    missing = _failure(kind=ErrorType.PLAN_NOT_STORED, message="not here")
    it.resolve({plans.CHECK_PLAN: lambda call: missing})
    return it


def lane_throttling() -> Driven:
    return Driven(PlanLane, plain(PARAMETERS[PlanLane]))


def lane_cancelling() -> Driven:
    it = following()
    it.send(it.signal("stop", plain({})))
    it.resolve({plans.FOLLOW_MOVES: lambda call: CANCELLED})
    return it


def lane_releasing() -> Driven:
    return _but(following(), plans.RELEASE_THROTTLES)


def cordoning() -> Driven:
    return _but(draining(), plans.READ_CORDON)


def cordoning_still() -> Driven:
    return _but(draining(), plans.SET_CORDON)


def drained() -> Driven:
    return _but(draining(), plans.VERIFY_DRAINED)


def comparing() -> Driven:
    return Driven(ThrottleKeeper, workflow_id="c/throttles")


def writing() -> Driven:
    it = comparing()
    it.send(it.update("hold", plain(EXAMPLES["ThrottleKeeper.hold"])))
    return _but(it, plans.WRITE_THROTTLES)


def looking_again() -> Driven:
    it = keeping()
    it.resolve({}, timers=True)
    return it


CANCELLED = ActivityResolution()
CANCELLED.cancelled.failure.activity_failure_info.activity_type.name = plans.FOLLOW_MOVES
CANCELLED.cancelled.failure.cause.canceled_failure_info.SetInParent()


@dataclass(frozen=True)
class Awaited:
    """A run that awaits an activity, or the result of a child run of a type."""

    kind: type
    state: Callable[[], Driven]
    what: str
    example: Any = None

    def __str__(self) -> str:
        return f"{self.kind.__name__}-{self.state.__name__}-{self.what}"


MOVED = {"rows": [{"topic": "t", "partition": 0, "outcome": Outcome.SWAPPED, "message": ""}], "phases": []}
AWAITED = [
    Awaited(MoveReplica, creating, calls.CREATE_MOVE),
    Awaited(MoveReplica, waiting_for_copy, calls.COPY),
    Awaited(MoveReplica, swapping, calls.SWAP),
    Awaited(MoveReplica, deleting, calls.DELETE_REPLICA),
    Awaited(MoveReplica, cancelling, calls.CANCEL_MOVE),
    Awaited(PartitionReassignment, preferring, calls.PLACE_REPLICAS),
    Awaited(PartitionReassignment, catching_up, calls.CATCH_UP),
    Awaited(PartitionReassignment, clearing, calls.AWAIT_DELETION),
    Awaited(PartitionReassignment, directing, calls.PLACE_REPLICAS),
    Awaited(PartitionReassignment, moving, names.MOVE_REPLICA, MOVED),
    Awaited(Cluster, serving, calls.APPLY_IMAGE),
    Awaited(Cluster, probing, calls.PROBE_NODE),
    Awaited(Cluster, leasing, names.NODE_LEASE, "the node gave it back"),
    Awaited(ThrottleLease, watching, calls.AWAIT_MOVES),
    Awaited(NodeLease, held, calls.HOLD_LEASE),
    Awaited(ReassignmentPlan, planned, plans.CHECK_PLAN),
    Awaited(ReassignmentPlan, keeping_text, plans.KEEP_PLAN),
    Awaited(ReassignmentPlan, throttling, plans.HOLD_THROTTLES),
    Awaited(ReassignmentPlan, choosing, plans.CHOOSE_LANES),
    Awaited(ReassignmentPlan, releasing, plans.RELEASE_THROTTLES),
    Awaited(ReassignmentPlan, verifying, plans.VERIFY_PLAN),
    Awaited(ReassignmentPlan, moving_plan, names.PLAN_LANE, {"version": 1, "rows": [], "phases": []}),
    Awaited(PlanLane, lane_throttling, plans.HOLD_THROTTLES),
    Awaited(PlanLane, requesting, plans.REQUEST_MOVES),
    Awaited(PlanLane, following, plans.FOLLOW_MOVES),
    Awaited(PlanLane, lane_cancelling, plans.CANCEL_MOVES),
    Awaited(PlanLane, lane_releasing, plans.RELEASE_THROTTLES),
    Awaited(ThrottleKeeper, comparing, plans.READ_THROTTLES),
    Awaited(ThrottleKeeper, looking_again, plans.READ_THROTTLES),
    Awaited(ThrottleKeeper, writing, plans.WRITE_THROTTLES),
    Awaited(ReassignmentPlan, letting_go, plans.RELEASE_SLOTS),
    Awaited(PlanAlert, alerting, plans.SEND_ALERT),
    Awaited(EvacuateDirectory, draining, plans.PLAN_DRAIN),
    Awaited(EvacuateDirectory, cordoning, plans.READ_CORDON),
    Awaited(EvacuateDirectory, cordoning_still, plans.SET_CORDON),
    Awaited(EvacuateDirectory, drained, plans.VERIFY_DRAINED),
    Awaited(ExportHistory, exporting, calls.EXPORT_HISTORIES),
]
#: Workflows that await no activity.
UNAIDED = ("DirectoryFailure", "SlotKeeper")
each_awaited = pytest.mark.parametrize("awaited", AWAITED, ids=str)


def _open(it: Driven, what: str) -> list[tuple[tuple[str, int], Any]]:
    """The activities or child runs of this name under way, with their parameter."""
    found = []
    for key, command in it.open.items():
        if key[0] == "schedule_activity" and command.schedule_activity.activity_type == what:
            found.append((key, json.loads(command.schedule_activity.arguments[0].data)))
        elif key[0] == "child" and command.start_child_workflow_execution.workflow_type == what:
            found.append((key, None))
    return found


def _ended(it: Driven, key: tuple[str, int], result: Payload | ActivityResolution | None) -> WorkflowActivationJob:
    """The job that brings a result, or none at all."""
    it.open.pop(key)
    job = WorkflowActivationJob()
    if key[0] == "child":
        job.resolve_child_workflow_execution.seq = key[1]
        made = ChildWorkflowResult()
        made.completed.SetInParent()
        if isinstance(result, Payload):
            made.completed.result.CopyFrom(result)
        job.resolve_child_workflow_execution.result.CopyFrom(made)
        return job
    job.resolve_activity.seq = key[1]
    if isinstance(result, ActivityResolution):
        job.resolve_activity.result.CopyFrom(result)
        return job
    job.resolve_activity.result.completed.SetInParent()
    if result is not None:
        job.resolve_activity.result.completed.result.CopyFrom(result)
    return job


def _goes_on(it: Driven, kind: type) -> None:
    """Queries, nodes that respond well, timers and a cancel."""
    queries = workflow._Definition.must_from_class(kind).queries
    for _ in range(3):
        for query in queries:
            it.query(query)
        if it.ended is None:
            it.resolve(FINE, timers=True)
    if it.ended is None:
        it.send(it.cancel())
        it.resolve(FINE)


def _try(awaited: Awaited, result: Payload | ActivityResolution | None) -> Driven:
    """Give a result to the run; returns the run as it is then."""
    it = awaited.state()
    (key, _), *_ = _open(it, awaited.what)
    it.send(_ended(it, key, result))
    return it


def _example(awaited: Awaited) -> Any:
    ((_, call), *_) = _open(awaited.state(), awaited.what)
    return awaited.example if call is None else FINE[awaited.what](call)


def _wrong(awaited: Awaited) -> Iterator[Payload | None]:
    offset = sum(str(awaited).encode()) % STRIDE
    # The steps of plans share their readers: each gets a part of the values that nobody expects at all.
    part = slice(offset % PART, None, PART) if awaited.kind in workflows.PLANS else slice(None)
    yield None
    yield from nasty.UNDECODABLE[part]
    yield from map(plain, nasty.VALUES[part])
    yield from map(plain, list(nasty.mutated(_example(awaited)))[offset::STRIDE])


def test_every_activity_and_child_run_is_tried() -> None:
    """By the names that the contract has, and the commands of the runs."""
    known = {**vars(calls), **{f"PLAN_{name}": value for name, value in vars(plans).items()}}
    activities = {value for name, value in known.items() if name.isupper() and isinstance(value, str)} & set(SPECS)
    children = {names.MOVE_REPLICA, names.NODE_LEASE, names.PLAN_LANE}
    assert activities == set(SPECS) == set(FINE) == {each.what for each in AWAITED} - children
    assert {each.kind for each in AWAITED} | {kind for kind in ALL if kind.__name__ in UNAIDED} == set(ALL)
    for each in AWAITED:
        assert _open(each.state(), each.what), each


@each_awaited
def test_no_result_fails_a_workflow_task(awaited: Awaited, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    with tally("results that no run expects") as counted:
        for result in _wrong(awaited):
            try:
                _goes_on(_try(awaited, result), awaited.kind)
            except (TaskFailed, AssertionError) as failed:
                pytest.fail(f"{awaited} gets {None if result is None else result.data[:2000]!r}: {failed}")
            counted.count += 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(nasty.VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def nearly(draw: st.DrawFn, example: Any) -> Any:
    """The example with some of its parts replaced, left out, or added."""
    if draw(st.integers(0, 5)) == 0:
        return draw(json_values)
    if isinstance(example, dict):
        return {key: draw(nearly(value)) for key, value in example.items() if draw(st.integers(0, 9))}
    if isinstance(example, list):
        made = [draw(nearly(each)) for each in example]
        return made + draw(st.lists(json_values, max_size=2)) if draw(st.booleans()) else made
    return example


@each_awaited
@settings(max_examples=scaled(15, 400), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_generated_result_fails_a_workflow_task(
    awaited: Awaited, data: st.DataObject, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    result = data.draw(nearly(_example(awaited)))
    _goes_on(_try(awaited, plain(result)), awaited.kind)


# --- what an operator reads of it

BAD = plain({"rows": [{"topic": "t", "partition": "none"}]})
READ = "$.rows[0].partition must be a whole number, not a string"


def test_move_with_an_unreadable_result_fails_with_the_reason() -> None:
    it = _try(AWAITED[0], BAD)
    assert it.ended is not None
    failure = it.ended.fail_workflow_execution.failure
    assert failure.application_failure_info.type == "NodeFailure"
    assert f"The result of create_move on node 1 cannot be read: {READ}." in failure.message


def test_replica_that_is_in_place_stays_moved_whatever_the_deletion_returns() -> None:
    it = _try(AWAITED[3], BAD)
    assert it.ended is not None
    rows = json.loads(it.ended.complete_workflow_execution.result.data)["rows"]
    assert [row["outcome"] for row in rows] == [Outcome.SWAPPED] * 2


def _answered(it: Driven, commands: list[WorkflowCommand]) -> None:
    """The controller responds to the requests among these commands: it knows nothing new."""
    for _, name, (sent,) in signals_in(commands):
        assert name == "reassign"
        it.send(it.signal("answered", plain({"request": sent["request"]})))


def test_reassignment_continues_by_the_metadata_and_retries_after_growing_pauses() -> None:
    it, asked = catching_up(), 0
    for _ in range(12):
        for key, _call in _open(it, calls.CATCH_UP):
            asked += 1
            it.send(_ended(it, key, BAD))
        assert _open(it, calls.CATCH_UP) == [], "the node is not asked at once"
        (part,) = it.query("progress")["partitions"]
        assert f"The result of catch_up on node 2 cannot be read: {READ}." in part["message"]
        began = it.now
        for _ in range(200):
            if not _open(it, calls.CATCH_UP):
                _answered(it, it.resolve({}, timers=True))
    assert asked == 12 and (it.now - began).total_seconds() >= 3_600
    done = {"rows": [["t", 0, "id", [2], [], [], [], [2], 2]], "generation": 1, "version": 9}
    it.send(it.signal("retargeted", plain(done)))
    for _ in range(6):
        if it.ended is None:
            _answered(it, it.resolve({calls.AWAIT_DELETION: FINE[calls.AWAIT_DELETION]}))
    assert it.ended is not None and it.ended.HasField("complete_workflow_execution"), "the replica is in sync"


@pytest.mark.parametrize("what", ["place_replicas", "MoveReplica"])
def test_directory_with_an_unreadable_result_is_not_reached(what: str) -> None:
    it = _try(next(each for each in AWAITED if each.what == what and each.state in (directing, moving)), BAD)
    for _ in range(6):
        answer = {**EXAMPLES["PartitionReassignment.answered"], "request": 3, "results": [], "rows": [], "absent": []}
        if it.ended is None:
            it.send(it.signal("answered", plain(answer)))
            it.resolve(FINE, timers=True)
    assert it.ended is not None
    failure = it.ended.fail_workflow_execution.failure
    assert failure.application_failure_info.type == "DirectoryNotReached"
    assert f"The result of {what} on node 2 cannot be read: {READ}." in failure.message


def test_push_with_an_unreadable_result_is_repeated_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    it = serving()
    with caplog.at_level(logging.WARNING, logger="temporalio"):
        it.send(*(_ended(it, key, plain({"generation": 1})) for key, _call in _open(it, calls.APPLY_IMAGE)))
    assert "The result of apply_image on node 2 cannot be read: $.version is missing." in caplog.text
    assert _open(it, calls.APPLY_IMAGE) == []
    it.resolve({}, timers=True)
    assert [call["node"] for _, call in _open(it, calls.APPLY_IMAGE)] == [2], "node 1 has sent that it knows it"


def test_probe_with_an_unreadable_result_does_not_fence_the_node() -> None:
    it = _try(next(each for each in AWAITED if each.what == calls.PROBE_NODE), plain({"incarnation": 7}))
    assert not any(row["fenced"] for row in it.query("describe")["nodes"])
    it.resolve({}, timers=True)
    assert len(_open(it, calls.PROBE_NODE)) == 1, "it is probed again"


def test_export_with_an_unreadable_result_fails_with_the_reason() -> None:
    it = _try(AWAITED[-1], plain({**EXPORTED, "events": "many"}))
    assert it.ended is not None
    failure = it.ended.fail_workflow_execution.failure
    assert failure.application_failure_info.type == "NodeFailure"
    assert "The result of export_histories cannot be read: $.events must be a whole number" in failure.message


# --- what failures hold


def _failure(*details: Payload, kind: str = "TargetFull", message: str = "no room") -> ActivityResolution:
    resolution = ActivityResolution()
    failure = resolution.failed.failure
    failure.message = "Activity task failed"
    failure.activity_failure_info.activity_type.name = "copy"
    failure.cause.message = message
    failure.cause.application_failure_info.type = kind
    failure.cause.application_failure_info.non_retryable = True
    failure.cause.application_failure_info.details.payloads.extend(details)
    return resolution


@each_awaited
def test_no_failure_of_an_activity_fails_a_workflow_task(awaited: Awaited, caplog: pytest.LogCaptureFixture) -> None:
    """Rows are among the details of a move's failure; the message comes from the node as well."""
    caplog.set_level(logging.CRITICAL)
    if awaited.example is not None:
        return  # a child run's failure is made by its own code
    example = _example(awaited)
    rows = example["rows"] if isinstance(example, dict) and "rows" in example else MOVED["rows"]
    details = list(nasty.UNDECODABLE)[:: 1 if awaited.kind is MoveReplica else 5]
    if awaited.kind is MoveReplica:
        details += map(plain, list(nasty.mutated(rows))[sum(str(awaited).encode()) % STRIDE :: STRIDE])
    wrong = [_failure(), _failure(plain(rows), plain(rows)), *map(_failure, details)]
    wrong += [_failure(kind=""), _failure(kind="k" * 5_000), _failure(message="m" * 1_500_000)]
    with tally("failures that no run expects") as counted:
        for failure in wrong:
            try:
                _goes_on(_try(awaited, failure), awaited.kind)
            except (TaskFailed, AssertionError) as failed:
                pytest.fail(f"{awaited} fails with {str(failure)[:2000]}: {failed}")
            counted.count += 1
