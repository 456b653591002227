"""Runs in every state that matters, without a server: where handlers are tried, and how a run then goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import workflows
from tests.support.hand_activations import Driven, plain
from tests.workflows.fakes import FakeMember, row
from workflows.cluster import Cluster
from workflows.directory_failure import DirectoryFailure
from workflows.export_history import ExportHistory
from workflows.model import calls
from workflows.model.calls import ReplicaMove
from workflows.move_replica import MoveReplica
from workflows.node_lease import NodeLease
from workflows.partition_reassignment import PartitionReassignment
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
    "ThrottleLease.held": None,
    "ThrottleLease.requested": {"replicas": [[1, "t", 0]]},
    "ThrottleLease.answered": {"request": 1, "results": [], "made": [], "rows": [], "left_out": [2], "generation": 1,
                               "version": 5},
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
    calls.CREATE_MOVE: _steps(calls.CREATED),
    calls.COPY: _steps(calls.CAUGHT_UP),
    calls.SWAP: _steps(calls.SWAPPED),
    calls.DELETE_REPLICA: _steps(calls.DELETED),
    calls.CANCEL_MOVE: _steps(calls.DROPPED),
    calls.APPLY_IMAGE: lambda call: {"generation": 1, "version": 2, "incarnation": "i1"},
    calls.PROBE_NODE: lambda call: {"incarnation": "i1", "reason": ""},
    calls.PLACE_REPLICAS: _looked(calls.HELD),
    calls.CATCH_UP: _looked(calls.JOINED),
    calls.AWAIT_DELETION: _looked(calls.DELETED),
}
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


#: By workflow, the states in which its handlers are tried.
STATES: Mapping[type, tuple[Callable[[], Driven], ...]] = {
    Cluster: (collecting, serving),
    MoveReplica: (creating, copying),
    PartitionReassignment: (asking, catching_up),
    DirectoryFailure: (recording,),
    NodeLease: (),
    ThrottleLease: (holding,),
    ExportHistory: (),
}

ALL: tuple[type, ...] = tuple(workflows.ALL)
