"""Changes of the metadata: (state, command) -> Change, pure.

A command is a JSON object; `do` names it, and what else it takes stands at its function:

    {"do": "register", ...}            registration.register
    {"do": "lease_ended", ...}         registration.lease_ended
    {"do": "create_topics", ...}       topics.create_topics
    {"do": "delete_topics", ...}       topics.delete_topics
    {"do": "create_partitions", ...}   partitions.create_partitions
    {"do": "alter_configs", ...}       topics.alter_configs
    {"do": "next_producer_ids", ...}   topics.next_producer_ids
    {"do": "raise_generations", ...}   replicas.raise_generations
    {"do": "assign_directories", ...}  replicas.assign_directories
    {"do": "directory_failed", ...}    failures.directory_failed
    {"do": "report_replicas", ...}     offline.report_replicas
    {"do": "alter_partitions", ...}    in_sync.alter_partitions
    {"do": "alter_reassignments", ...} reassignments.alter_reassignments
    {"do": "elect_leaders", ...}       reassignments.elect_leaders
    {"do": "hold_throttles", ...}      throttles.hold
    {"do": "release_throttles", ...}   throttles.release
    {"do": "tell_version"}             nothing is changed; the answer brings the node up to date

Nodes send all of them but those of `OF_RUNS`, which the controller makes of what runs request.

A batch of commands that is delivered twice (its reply was lost, or it was sent again after a continue-as-new) is
carried out once, see batches.py; and what nodes report is compare-and-set on an epoch, an id or a generation. What is
malformed is refused with INVALID_REQUEST and the path of the bad field; nothing raises out of here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workflows.model import (
    failures,
    in_sync,
    offline,
    partitions,
    reassignments,
    registration,
    replicas,
    throttles,
    topics,
)
from workflows.model.fields import BadField
from workflows.model.outcome import Change, Code, Refused
from workflows.model.state import ClusterState

NewId = Callable[[], str]

_COMMANDS: Mapping[str, Callable[[ClusterState, Mapping[str, Any], NewId], Change]] = {
    "register": registration.register,
    "lease_ended": registration.lease_ended,
    "create_topics": topics.create_topics,
    "delete_topics": topics.delete_topics,
    "create_partitions": partitions.create_partitions,
    "alter_configs": topics.alter_configs,
    "next_producer_ids": topics.next_producer_ids,
    "raise_generations": replicas.raise_generations,
    "assign_directories": replicas.assign_directories,
    "directory_failed": failures.directory_failed,
    "report_replicas": offline.report_replicas,
    "alter_partitions": in_sync.alter_partitions,
    "alter_reassignments": reassignments.alter_reassignments,
    "elect_leaders": reassignments.elect_leaders,
    "hold_throttles": throttles.hold,
    "release_throttles": throttles.release,
    "tell_version": lambda state, _command, _new_id: Change(state, [{"version": state.version}]),
}


#: Commands that no node may submit: their holder is the run that requests them, and the controller signals it later.
OF_RUNS = frozenset({"hold_throttles", "release_throttles"})


def apply(state: ClusterState, command: Any, new_id: NewId) -> Change:
    """Apply one command; `new_id` gives the id of a new topic (22 characters, base64url of 16 bytes, never one given
    before).
    """
    name = command.get("do") if isinstance(command, Mapping) else None
    handler = _COMMANDS.get(name) if isinstance(name, str) else None
    if handler is None:
        return Change(state, [Refused(Code.INVALID_REQUEST, f"There is no command {name!r}.").result()])
    try:
        return handler(state, command, new_id)
    except BadField as bad:
        return Change(state, [Refused(Code.INVALID_REQUEST, f"The command {name} is malformed: {bad}.").result()])
    except Refused as refused:
        return Change(state, [refused.result()])


def from_stale_node(state: ClusterState, node: int, incarnation: str) -> Refused | None:
    """Why a node may not change anything: it is not registered, fenced, or another incarnation is. None when it may."""
    known = state.nodes.get(node)
    if known is None:
        return Refused(Code.BROKER_ID_NOT_REGISTERED, f"Node {node} is not registered; it must register first.")
    if known.incarnation != incarnation:
        return Refused(
            Code.STALE_BROKER_EPOCH, f"Another incarnation of node {node} is registered; it must register again."
        )
    if known.fenced:
        return Refused(Code.STALE_BROKER_EPOCH, f"Node {node} is fenced; it must register again.")
    return None
