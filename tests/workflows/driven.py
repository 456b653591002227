"""Runs in every state that matters, without a server: where handlers are tried, and how a run then goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import workflows
from storage_node.model.moves import Outcome
from storage_node.model.reassignments import ReplicaOutcome
from tests.support.runs.hand_activations import Driven, plain
from tests.workflows.fakes import FakeMember, row
from workflows.cluster import Cluster
from workflows.directory_failure import DirectoryFailure
from workflows.export_history import ExportHistory
from workflows.model import calls
from workflows.model.calls import ReplicaMove
from workflows.model.plans.running import calls as plan_calls
from workflows.model.plans.running import packing
from workflows.move_replica import MoveReplica
from workflows.node_lease import NodeLease
from workflows.partition_reassignment import PartitionReassignment
from workflows.plans.evacuate_directory import EvacuateDirectory
from workflows.plans.plan_alert import PlanAlert
from workflows.plans.plan_lane import PlanLane
from workflows.plans.reassignment_plan import ReassignmentPlan
from workflows.plans.slot_keeper import SlotKeeper
from workflows.plans.throttle_keeper import ThrottleKeeper
from workflows.throttle_lease import ThrottleLease

#: Ids of another run, as it sends them.
RUN = {"workflow_id": "c/move/1/t-0/1", "run_id": "01234567-89ab-cdef-0123-456789abcdef"}

MOVE = {"topic": "t", "partition": 0, "node": 1, "directory": "/disk/b"}
MOVES = [{**MOVE, "throttle": "20MB", "sla_seconds": 60, "claim": 0, "generation": 0}, {**MOVE, "partition": 1}]
CHANGE = ["t", "id", 0, [1], [2], [2], [1], "client"]
MADE = {"made": [CHANGE], "generation": 1, "version": 5}
STANDING = ["t", 0, "id", [1, 2], [2], [1], [1], [1], 1]
THROTTLES = {
    "topics": {"t": {"leader.replication.throttled.replicas": ["0:1"]}},
    "nodes": {"1": {"leader.replication.throttled.rate": "1000"}},
}
ASKED = {
    "version": 1,
    "partitions": [{"topic": "t", "partition": 0, "replicas": [2], "log_dirs": ["/disk/a"]}],
    "throttles": THROTTLES,
}
LEASED = {"throttles": {"nodes": THROTTLES["nodes"]}, "replicas": [[1, "t", 0]], "patience": 5}
NOTICE = {
    "node": 1,
    "incarnation": "i1",
    "directory": "/a",
    "directory_id": "dir-1-a",
    "reason": "EIO",
    "noticed": 1.5e9,
    "replicas": [["t", "id", [[0, 1]]]],
    "moves": [{"topic": "t", "partition": 0, "source": "/a", "directory": "/b", "workflow_id": "w", "message": ""}],
}

#: A plan of two moves, in a lane each.
PLAN = {
    "version": 1,
    "partitions": [
        {"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/disk/b"]},
        {"topic": "t", "partition": 1, "replicas": [2]},
    ],
    "options": {"throttle_between_brokers": "20MB", "slots_per_disk": 2},
}
SPECS = (
    {"kind": "directory", "topic": "t", "partition": 0, "size": 10, "node": 1, "source": "/disk/a",
     "target": "/disk/b", "before": [1], "after": [1], "directories": {}, "reads": [[1, "/disk/a"]],
     "writes": [[1, "/disk/b"]]},
    {"kind": "replicas", "topic": "t", "partition": 1, "size": 20, "node": -1, "source": "", "target": "",
     "before": [1], "after": [2], "directories": {"2": "any"}, "reads": [[1, "/disk/a"]], "writes": [[2, "/disk/a"]]},
)  # fmt: skip
LANE = {"version": 1, "cluster": "c", "plan": "c/plan/p", "number": 0, "moves": list(SPECS), "throttled": True}
HELD = {
    "holder": "c/plan/p",
    "rates": {"1": {"leader.replication.throttled.rate": "1000"}},
    "entries": {"t": {"leader.replication.throttled.replicas": ["0:1"]}},
}
SLOTS = {
    "holder": "c/plan/p", "priority": 50, "running": [[0, ["1:/disk/a", "1", ""]]],
    "wanted": [[1, ["1:/disk/b", "1", ""]]], "limits": {"1:/disk/b": 1}, "more": False, "ended": ["c/plan/gone"],
}  # fmt: skip
RELEASED = {"holder": "c/plan/p"}
ALERT = {
    "version": 1, "cluster": "c", "webhook": "oncall", "plan": "c/plan/p", "event": "stalled", "at": 1.5e9,
    "id": "c/plan/p/alert/stalled-1500000000-1", "reason": "no byte was copied", "summary": "0 of 2 moves",
}  # fmt: skip
LANE_ENDED = {
    "number": 0,
    "rows": [{"key": "t-0@1", "outcome": "moved", "state": "copying", "copied": 10, "total": 10, "seconds": 1.5,
              "reason": ""}],
}  # fmt: skip

#: What each workflow is started with.
PARAMETERS: Mapping[type, Any] = {
    MoveReplica: MOVES,
    PartitionReassignment: ASKED,
    DirectoryFailure: NOTICE,
    NodeLease: {"cluster": "c", "node": 1, "incarnation": "i1"},
    ThrottleLease: LEASED,
    ExportHistory: {"directory": "/x", "query": "", "as_of": "", "keep_days": 3},
    Cluster: {"v": 1, "continue_at": [10, 20], "state": "", "collecting": True, "without": [1], "known": [[1, 1, 2]],
              "applied": [[1, 1, 2]], "suspects": [[1, "i1"]], "watched": [["w", "r", [["t", 0, "id", [2]]]]]},
    ReassignmentPlan: PLAN,
    PlanLane: LANE,
    ThrottleKeeper: {},
    SlotKeeper: {},
    EvacuateDirectory: {"broker": 1, "directory": "/disk/a"},
    PlanAlert: ALERT,
}  # fmt: skip

_NODE = FakeMember(1)
_TOPIC = {"name": "t", "partitions": 2, "replication": 1, "configs": {"retention.ms": "1000"}}

#: A message for each handler as it is meant. A handler that is missing here is only tried at its surface.
EXAMPLES: Mapping[str, Any] = {
    "Cluster.submit": _NODE.batch(
        {**_NODE.registration(), "rack": "r", "lost": [], "offline": [], "unclean": 0},
        {"do": "create_topics", "topics": [_TOPIC]},
    ),
    "Cluster.recover_without": {"node": 2},
    "Cluster.lease_ended": {"node": 1, "incarnation": "i1", "reason": "not renewed"},
    "Cluster.locate": {"node": 1, **RUN},
    "Cluster.cancel_run": RUN,
    "Cluster.directory_failed": {"notice": NOTICE, **RUN},
    "Cluster.reassign": {
        "request": 1, "changes": [["t", 0, [1], None], ["t", 1, None, [1]]], "looks": [["t", 0]], "hold": THROTTLES,
        "release": {"nodes": [1]}, **RUN,
    },
    "MoveReplica.copy_progress": [
        {"topic": "t", "partition": 0, "state": "copying", "directory": "/disk/b", "bytes_total": 10, "rate": 1.5,
         "next_in": 10.0, "attempt": 1, "seconds_by_reason": {"copying": 1.0}, "stall": "", "bytes_copied": 5},
    ],
    "MoveReplica.located": {"node": 1, "known": True, "fenced": True, "probe": "silent"},
    "MoveReplica.pause": None,
    "MoveReplica.resume": None,
    "MoveReplica.set_throttle": {"rate": "20MB"},
    "MoveReplica.set_target": {"topic": "t", "partition": 0, "directory": "/disk/c"},
    "MoveReplica.drop": {"topic": "t", "partition": 1},
    "PartitionReassignment.copy_progress": [
        {"topic": "t", "partition": 0, "node": 2, "state": "catching_up", "bytes_total": 10, "rate": 1.5,
         "next_in": 10.0, "attempts": 1, "seconds_placing": 0.5, "message": "", "directory": "/a"},
    ],
    "PartitionReassignment.answered": {
        "request": 1, "results": [{"error": 0, "message": ""}], "made": [CHANGE], "rows": [STANDING, ["t", 0]],
        "absent": [[3, "dead"]], "generation": 1, "version": 5,
    },
    "PartitionReassignment.retargeted": {"rows": [STANDING, ["t", 0]], "generation": 1, "version": 6},
    "PartitionReassignment.pause": None,
    "PartitionReassignment.resume": None,
    "PartitionReassignment.set_throttle": {"rate": "20MB"},
    "ThrottleLease.held": None,
    "ThrottleLease.requested": {"replicas": [[1, "t", 0]]},
    "ThrottleLease.answered": {"request": 1, "results": [], "made": [], "rows": [], "left_out": [2], "generation": 1,
                               "version": 5},
    "ReassignmentPlan.lane_ended": LANE_ENDED,
    "ReassignmentPlan.lane_stalled": {
        "number": 0,
        "rows": [{"key": "t-0@1", "state": "copying", "copied": 5, "total": 10, "reason": "broker 1 does not respond",
                  "stalled": "target_silent", "since": 1.5e9, "repeats": 1}],
    },
    "ReassignmentPlan.lane_finishing": {"number": 0, "rows": []},
    "ReassignmentPlan.pause": {"mode": "cancel"},
    "ReassignmentPlan.resume": None,
    "ReassignmentPlan.cancel": {"rollback": True},
    "ReassignmentPlan.approve": {"by": "ada"},
    "ReassignmentPlan.set_options": {"throttle_between_brokers": "30MB", "window": "Mon-Fri 22:00-06:00 Europe/Berlin",
                                     "slots_per_broker": 3, "deadline": "2030-01-01T00:00:00+00:00"},
    "ReassignmentPlan.set_throttle": {"between_brokers": "30MB", "between_directories": None},
    "ReassignmentPlan.set_slots": {"per_disk": 2, "per_broker": None, "cluster": 7},
    "ReassignmentPlan.skip": {"moves": ["t-1"]},
    "ReassignmentPlan.retry": None,
    "PlanLane.stop": {},
    "PlanLane.throttle": {},
    "SlotKeeper.share": SLOTS,
    "SlotKeeper.release": {"holder": "c/plan/p"},
    "ReassignmentPlan.slots_freed": {},
    "ThrottleKeeper.hold": HELD,
    "ThrottleKeeper.release": RELEASED,
    "ThrottleKeeper.forget": {"broker": "1"},
    "DirectoryFailure.recorded": {"outcome": "recorded", "version": 3, "value": 2, "offline": [["t", [0]]]},
}  # fmt: skip


#: Each command of a batch as it is meant, in the order in which they make sense.
COMMANDS: tuple[Mapping[str, Any], ...] = (
    {"do": "tell_version"},
    {**_NODE.registration(), "rack": "r", "unclean": 0, "lost": [["t", 0, "", "dir-1-a", 0]],
     "offline": [["t", 0, "", "dir-1-a", 0, "EIO", "/a/t-0"]]},
    {"do": "create_topics", "validate_only": False, "topics": [
        _TOPIC, {"name": "u", "assignment": [[1], [1]], "configs": {"retention.ms": "5"}}]},
    {"do": "create_partitions", "validate_only": False, "topics": [{"name": "t", "count": 3, "assignment": [[1]]}]},
    {"do": "alter_configs", "kind": "topic", "name": "t", "validate_only": 0, "changes": {
        "retention.ms": "7", "leader.replication.throttled.replicas": {"append": ["0:1"]},
        "min.cleanable.dirty.ratio": "0.5", "cleanup.policy": "delete"}},
    {"do": "alter_configs", "kind": "broker", "name": "1", "changes": {"cordoned.log.dirs": "/a", "num.x": None}},
    {"do": "next_producer_ids", "count": 1000},
    {"do": "raise_generations", "node": 1, "replicas": [["t", 0, "", "dir-1-a", 0]]},
    {"do": "assign_directories", "node": 1, "replicas": [["t", 0, "", "dir-1-a", 1]]},
    {**NOTICE, "do": "directory_failed"},
    {"do": "report_replicas", "node": 1, "epoch": 1, "replicas": [["t", 0, "", "dir-1-a", 1, "EIO", "/a/t-0"]]},
    {"do": "alter_partitions", "node": 1, "partitions": [["t", 0, "", 0, 0, [[1, -1]]]]},
    {"do": "alter_reassignments", "partitions": [["t", 0, [2]], ["t", 1, None]], "may_change_factor": True,
     "principal": "p", "client": "c"},
    {"do": "elect_leaders", "partitions": [["t", 0]], "unclean": False},
    {"do": "hold_throttles", "holder": f"{RUN['workflow_id']} {RUN['run_id']}", **THROTTLES},
    {"do": "release_throttles", "holder": f"{RUN['workflow_id']} {RUN['run_id']}", "nodes": [1]},
    {"do": "delete_topics", "names": ["unknown"], "ids": ["nothing"]},
    {"do": "lease_ended", "node": 2, "incarnation": "i2"},
)  # fmt: skip


# --- how nodes respond


def _steps(outcome: str) -> Callable[[Any], Any]:
    return lambda call: {"rows": [asdict(row(ReplicaMove(**each), outcome)) for each in call["replicas"]]}


def _looked(outcome: str) -> Callable[[Any], Any]:
    def rows(call: Any) -> Any:
        held = [(each["topic"], each["partition"], each["target"]) for each in call["replicas"]]
        return {
            "rows": [
                {"topic": topic, "partition": partition, "node": call["node"], "outcome": outcome, "replicas": target,
                 "directory": "/disk/a"}
                for topic, partition, target in held
            ]
        }  # fmt: skip

    return rows


#: Nodes that do everything as requested.
WELL: Mapping[str, Callable[[Any], Any]] = {
    calls.CREATE_MOVE: _steps(Outcome.CREATED),
    calls.COPY: _steps(Outcome.CAUGHT_UP),
    calls.SWAP: _steps(Outcome.SWAPPED),
    calls.DELETE_REPLICA: _steps(Outcome.DELETED),
    calls.CANCEL_MOVE: _steps(Outcome.CANCELLED),
    calls.APPLY_IMAGE: lambda call: {"generation": 1, "version": 2, "incarnation": "i1"},
    calls.PROBE_NODE: lambda call: {"incarnation": "i1", "reason": ""},
    calls.PLACE_REPLICAS: _looked(ReplicaOutcome.HELD),
    calls.CATCH_UP: _looked(ReplicaOutcome.JOINED),
    calls.AWAIT_DELETION: _looked(Outcome.DELETED),
}
#: A cluster that does all that a plan requests.
PLANNED: Mapping[str, Callable[[Any], Any]] = {
    plan_calls.KEEP_PLAN: lambda call: {"sha256": "0" * 64},
    plan_calls.CHECK_PLAN: lambda call: {
        "cluster_id": "k", "moves": 2, "lanes": 2, "in_place": 0, "bytes_total": 30, "leaders_moved": 1,
        "lanes_ref": "1" * 64, "lanes_packed": packing.pack("lanes"), "rollback_ref": "2" * 64,
        "rollback_packed": packing.pack(json.dumps(PLAN)), "rollback_path": "/plans/2", "problems": [],
        "problem_count": 0, "disks": [{"broker": 1, "path": "/disk/a", "used": 1, "usable": 9, "used_worst": 2,
                                       "used_after": 1}],
        "brokers": [1, 2], "seconds_low": 1.0, "seconds_high": None,
    },
    plan_calls.CHOOSE_LANES: lambda call: {
        "lanes": [{"number": number, "moves": [SPECS[number]]} for number, state in
                  enumerate(packing.unpack_states(call["states"])) if state == packing.LaneState.PENDING],
        "copied": 5, "reasons": ["slots"], "done": True, "closed": [], "between_brokers": 1000, "shares": True,
    },
    plan_calls.VERIFY_PLAN: lambda call: {"ok": True, "partitions": 2, "differences": [], "count": 0, "path": "/c"},
    plan_calls.REQUEST_MOVES: lambda call: {"rows": _plan_rows(call, "")},
    plan_calls.FOLLOW_MOVES: lambda call: {"rows": _plan_rows(call, "moved")},
    plan_calls.CANCEL_MOVES: lambda call: {"rows": _plan_rows(call, "cancelled")},
    plan_calls.HOLD_THROTTLES: lambda call: {"left_out": []},
    plan_calls.RELEASE_THROTTLES: lambda call: {"left_out": []},
    plan_calls.READ_THROTTLES: lambda call: {
        "rates": {"1": {"leader.replication.throttled.rate": "500"}},
        "lists": {"t": {"leader.replication.throttled.replicas": ["5:1"]}}, "silent": [], "closed": [],
    },
    plan_calls.WRITE_THROTTLES: lambda call: {"written": call["changes"], "failed": {}},
    plan_calls.RELEASE_SLOTS: lambda call: {},
    plan_calls.SEND_ALERT: lambda call: {},
    plan_calls.READ_CORDON: lambda call: {"supported": True, "cordoned": False, "message": ""},
    plan_calls.SET_CORDON: lambda call: {"supported": True, "cordoned": call["cordoned"], "message": ""},
    plan_calls.PLAN_DRAIN: lambda call: {"plan": "", "packed": "", "bytes": 0, "partitions": 0, "reasons": []},
    plan_calls.VERIFY_DRAINED: lambda call: {"ok": True, "partitions": 0, "differences": [], "count": 0, "path": "/c"},
}  # fmt: skip


def _plan_rows(call: Any, outcome: str) -> list[Any]:
    rows = []
    for spec in call["moves"]:
        key = f"{spec['topic']}-{spec['partition']}" + (f"@{spec['node']}" if spec["kind"] == "directory" else "")
        rows.append({"key": key, "outcome": outcome, "state": "copying", "copied": 10, "total": 10, "seconds": 1.5,
                     "reason": ""})  # fmt: skip
    return rows


CREATING = {name: WELL[name] for name in (calls.CREATE_MOVE,)}


# --- runs in their states


def collecting() -> Driven:
    """A controller that knows nothing and awaits nodes."""
    return Driven(Cluster)


def serving() -> Driven:
    """A controller with a node and a topic, one partition of which is being reassigned."""
    it = Driven(Cluster, plain({}))
    again = {"do": "alter_reassignments", "partitions": [["t", 0, [2]]]}
    other = FakeMember(2)
    it.send(it.update("submit", plain(EXAMPLES["Cluster.submit"])))
    it.send(it.update("submit", plain(other.batch(other.registration()))))
    it.send(it.update("submit", plain(_NODE.batch(again))))
    found = it.query("describe")
    assert (found["phase"], found["topics"], len(found["nodes"])) == ("serving", 1, 2), found
    return it


def is_done(command: Any) -> bool:
    """Whether a command answers an update."""
    return bool(command.HasField("update_response") and command.update_response.HasField("completed"))


def continued(it: Driven, answers: Mapping[str, Callable[[Any], Any]] = WELL) -> Driven:
    """The run as which a controller's continues once its history is long, however many things are under way."""
    it.length = 100_000
    it.send(it.signal("locate", plain(EXAMPLES["Cluster.locate"])))
    for _ in range(20):
        if it.ended is not None:
            break
        it.resolve(answers, timers=True)
    assert it.ended is not None, "it continues as new"
    (parameter,) = it.ended.continue_as_new_workflow_execution.arguments
    return Driven(Cluster, parameter, continued=True)


def creating() -> Driven:
    """A move whose first step is under way."""
    return Driven(MoveReplica, plain(MOVES))


def copying() -> Driven:
    """A move that copies."""
    it = creating()
    it.resolve(CREATING)
    assert it.query("progress")["phase"] == "copying"
    return it


def asking() -> Driven:
    """The run of a reassignment that awaits the controller's response to its first request."""
    it = Driven(PartitionReassignment, plain(ASKED))
    it.resolve({calls.PLACE_REPLICAS: WELL[calls.PLACE_REPLICAS]})
    return it


def catching_up() -> Driven:
    """The run of a reassignment that looks on at its new nodes."""
    it = Driven(PartitionReassignment, plain(MADE))
    assert it.query("progress")["phase"] == "catching_up"
    return it


def holding() -> Driven:
    """The run of a lease that awaits the controller's response."""
    return Driven(ThrottleLease, plain(LEASED))


def recording() -> Driven:
    """The run of a failed directory that awaits the controller's response."""
    return Driven(DirectoryFailure, plain(NOTICE))


def planned(options: Mapping[str, Any] | None = None) -> Driven:
    """A plan whose comparison with the cluster is under way."""
    parameter = {**PLAN, "options": {**PLAN["options"], **(options or {})}}
    return Driven(ReassignmentPlan, plain(parameter), workflow_id="c/plan/p")


def moving() -> Driven:
    """A plan with two open lanes."""
    it = planned()
    for _ in range(6):
        it.resolve(PLANNED)
    found = it.query("progress")
    assert (found["phase"], len(found["lanes_running"])) == ("moving", 2), found
    return it


def approving() -> Driven:
    """A plan that waits for two persons."""
    it = planned({"approval": "two_persons"})
    it.resolve(PLANNED)
    assert it.query("progress")["phase"] == "awaiting_approval"
    return it


def paused() -> Driven:
    """A paused plan with an open lane, and one whose move failed."""
    it = moving()
    rows = [{**LANE_ENDED["rows"][0], "outcome": "failed"}]
    it.send(it.signal("lane_ended", plain({"number": 0, "rows": rows})), it.update("pause", plain({"mode": "cancel"})))
    assert it.query("progress")["phase"] == "paused"
    return it


def requesting() -> Driven:
    """A lane that requests its moves."""
    it = Driven(PlanLane, plain(LANE))
    it.resolve(PLANNED)
    assert it.query("progress")["phase"] == "requesting"
    return it


def following() -> Driven:
    """A lane that follows its moves."""
    it = requesting()
    it.resolve(PLANNED)
    assert it.query("progress")["phase"] == "following"
    return it


def alerting() -> Driven:
    """The run of an alert that is being sent."""
    return Driven(PlanAlert, plain(ALERT), workflow_id=str(ALERT["id"]))


def draining() -> Driven:
    """The run of a directory whose replicas are planned for elsewhere."""
    it = Driven(EvacuateDirectory, plain(PARAMETERS[EvacuateDirectory]), workflow_id="c/evacuate")
    assert it.query("progress")["phase"] == "planning"
    return it


def keeping() -> Driven:
    """A keeper that holds throttles."""
    it = Driven(ThrottleKeeper, workflow_id="c/throttles")
    it.send(it.update("hold", plain(HELD)))
    for _ in range(4):
        it.resolve(PLANNED)
    assert it.ended is None and it.query("progress")["holdings"], "it holds"
    return it


def sharing() -> Driven:
    """A keeper of which a plan uses two lanes' slots."""
    it = Driven(SlotKeeper, workflow_id="c/slots")
    it.send(it.update("share", plain(SLOTS)))
    assert it.ended is None and list(it.query("progress")["plans"]) == ["c/plan/p"]
    return it


#: By workflow, the states in which its handlers are tried.
STATES: Mapping[type, tuple[Callable[[], Driven], ...]] = {
    Cluster: (collecting, serving),
    MoveReplica: (creating, copying),
    PartitionReassignment: (asking, catching_up),
    DirectoryFailure: (recording,),
    NodeLease: (),
    ThrottleLease: (holding,),
    ExportHistory: (),
    ReassignmentPlan: (planned, approving, moving, paused),
    PlanLane: (requesting, following),
    ThrottleKeeper: (keeping,),
    SlotKeeper: (sharing,),
    EvacuateDirectory: (draining,),
    PlanAlert: (),
}

ALL: tuple[type, ...] = (*workflows.ALL, *workflows.PLANS)
