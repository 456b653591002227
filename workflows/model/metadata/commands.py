"""Changes of the metadata: (state, command) -> Change, pure.

Commands are the values of storage_node/model/commands.py; each is applied by a function:

    Registration        registration.register
    LeaseEnded          registration.lease_ended
    CreateTopics        topics.create_topics
    DeleteTopics        topics.delete_topics
    CreatePartitions    create_partitions.create_partitions
    AlterConfigs        topics.alter_configs
    NextProducerIds     topics.next_producer_ids
    RaiseGenerations    replicas.raise_generations
    AssignDirectories   replicas.assign_directories
    FailDirectory       failures.directory_failed
    ReportReplicas      offline.report_replicas
    AlterPartitions     alter_partition.alter_partitions
    AlterReassignments  alter_reassignments.alter_reassignments
    ElectLeaders        alter_reassignments.elect_leaders
    QueryVersion         changes nothing; the response brings the node up to date

and so are two that nodes may not submit, which the controller creates from the requests of runs:

    {"do": "hold_throttles", ...}      throttle_leases.hold
    {"do": "release_throttles", ...}   throttle_leases.release

A batch of commands that is delivered twice (its reply was lost, or it was sent again after a continue-as-new) is
applied once, see batches.py; and reports of nodes are compare-and-set on an epoch, an id or a generation. Malformed
commands are rejected with INVALID_REQUEST and the path of the bad field; `apply` and `carry_out` do not raise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from storage_node.model import command_rows
from storage_node.model import commands as values
from storage_node.model.error_codes import ErrorCode
from storage_node.model.fields import BadField
from workflows.model.metadata import (
    alter_partition,
    alter_reassignments,
    create_partitions,
    failures,
    offline,
    registration,
    replicas,
    throttle_leases,
    topics,
)
from workflows.model.metadata.outcome import Change, Refused
from workflows.model.metadata.state import ClusterState

NewId = Callable[[], str]

_HANDLERS: Mapping[type, Callable[[ClusterState, Any, NewId], Change]] = {
    values.Registration: registration.register,
    values.LeaseEnded: registration.lease_ended,
    values.CreateTopics: topics.create_topics,
    values.DeleteTopics: topics.delete_topics,
    values.CreatePartitions: create_partitions.create_partitions,
    values.AlterConfigs: topics.alter_configs,
    values.NextProducerIds: topics.next_producer_ids,
    values.RaiseGenerations: replicas.raise_generations,
    values.AssignDirectories: replicas.assign_directories,
    values.FailDirectory: failures.directory_failed,
    values.ReportReplicas: offline.report_replicas,
    values.AlterPartitions: alter_partition.alter_partitions,
    values.AlterReassignments: alter_reassignments.alter_reassignments,
    values.ElectLeaders: alter_reassignments.elect_leaders,
    values.QueryVersion: lambda state, _command, _new_id: Change(state, [{"version": state.version}]),
}

#: Commands that nodes may not submit: the run that requests them is their holder, which the controller signals later.
OF_RUNS: Mapping[str, Callable[[ClusterState, Mapping[str, Any], NewId], Change]] = {
    "hold_throttles": throttle_leases.hold,
    "release_throttles": throttle_leases.release,
}


def read(row: Any) -> values.Command:
    """Return a node's command. Raises Refused for a malformed one, and for one that nodes may not submit."""
    name = row.get("do") if isinstance(row, Mapping) else None
    if isinstance(name, str) and name in OF_RUNS:
        raise Refused(ErrorCode.INVALID_REQUEST, f"The command {name} is for runs: a node may not submit it.")
    if not isinstance(name, str) or name not in command_rows.NAMES:
        raise Refused(ErrorCode.INVALID_REQUEST, f"The command {name!r} does not exist.")
    try:
        return command_rows.decode(row)
    except BadField as bad:
        raise Refused(ErrorCode.INVALID_REQUEST, f"The command {name} is malformed: {bad}.") from bad


def apply(state: ClusterState, row: Any, new_id: NewId) -> Change:
    """Apply an encoded command, see `carry_out`."""
    name = row.get("do") if isinstance(row, Mapping) else None
    of_runs = OF_RUNS.get(name) if isinstance(name, str) else None
    try:
        return carry_out(state, read(row), new_id) if of_runs is None else of_runs(state, row, new_id)
    except BadField as bad:
        return Change(state, [Refused(ErrorCode.INVALID_REQUEST, f"The command {name} is malformed: {bad}.").result()])
    except Refused as refused:
        return Change(state, [refused.result()])


def carry_out(state: ClusterState, command: values.Command, new_id: NewId) -> Change:
    """Apply one command; `new_id` gives the id of a new topic (22 characters, base64url of 16 bytes, never one given
    before).
    """
    try:
        return _HANDLERS[type(command)](state, command, new_id)
    except Refused as refused:
        return Change(state, [refused.result()])


def from_stale_node(state: ClusterState, node: int, incarnation: str) -> Refused | None:
    """Return why a node may not submit commands: it is not registered, is fenced, or is another incarnation. None if it
    may.
    """
    known = state.nodes.get(node)
    if known is None:
        return Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Node {node} is not registered; it must register first.")
    if known.incarnation != incarnation:
        return Refused(
            ErrorCode.STALE_BROKER_EPOCH, f"Another incarnation of node {node} is registered; it must register again."
        )
    if known.fenced:
        return Refused(ErrorCode.STALE_BROKER_EPOCH, f"Node {node} is fenced; it must register again.")
    return None
