"""Requests moves as Kafka's own tool does: AlterReplicaLogDirs to each node, then DescribeLogDirs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from activities.kafka_admin.errors import NO_RESPONSE
from ops.cli.kafka_admin import KafkaAdmin, LogDirectoryView
from ops.stack.errors import OpsError
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState

ACCEPTED = "accepted"
IN_PLACE = MoveState.IN_PLACE
COPYING = MoveState.COPYING
REFUSED = "refused"
#: The replica is not being copied to the requested directory any more: its move was cancelled or failed.
NOT_MOVED = "not_moved"
UNKNOWN = "unknown"

#: The reason of a rejection and what an operator can do about it, by Kafka's error code.
_SENTENCES = {
    ErrorCode.LOG_DIR_NOT_FOUND: (
        "{directory!r} is not one of the log.dirs of node {node}{has}; see: rehome dirs list --node {node}"
    ),
    ErrorCode.KAFKA_STORAGE_ERROR: "the source or target directory on node {node} is offline or full; see its log",
    ErrorCode.REPLICA_NOT_AVAILABLE: "node {node} has no replica of {replica}; see: rehome topic describe {topic}",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "partition {replica} does not exist; see: rehome topic list",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the name of topic {topic} is too long to move its partitions",
    ErrorCode.REQUEST_TIMED_OUT: (
        "the controller or a disk did not respond to node {node} in time; check with: rehome moves, then try again"
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this client is not authorized to move replicas on node {node}",
}


@dataclass(frozen=True, slots=True)
class RequestedMove:
    """The requested log directory of one replica."""

    partition: TopicPartition
    node: int
    directory: str


@dataclass(frozen=True, slots=True)
class MoveResult:
    """The response to one requested move."""

    move: RequestedMove
    outcome: str
    error: str = ""
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.move.partition.topic,
            "partition": self.move.partition.partition,
            "node": self.move.node,
            "directory": self.move.directory,
            "outcome": self.outcome,
            "error": self.error,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """The progress of a requested move by DescribeLogDirs; sizes in bytes."""

    move: RequestedMove
    state: str
    bytes_total: int = 0
    bytes_copied: int = 0

    def as_json(self) -> dict[str, Any]:
        return MoveResult(self.move, self.state).as_json() | {
            "bytes_total": self.bytes_total,
            "bytes_copied": self.bytes_copied,
        }


def request_moves(
    admin: KafkaAdmin,
    moves: Sequence[RequestedMove],
    *,
    patience: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[MoveResult]:
    """Send the moves to their nodes; after REPLICA_NOT_AVAILABLE again for `patience` seconds, as Kafka's tool does.

    The results have the order of `moves`. A node that does not respond fails only its own moves.
    """
    until = clock() + patience
    results: dict[RequestedMove, MoveResult] = {}
    pending = list(moves)
    while pending:
        for node in sorted({move.node for move in pending}):
            mine = [move for move in pending if move.node == node]
            results |= {result.move: result for result in _send_to_node(admin, node, mine)}
        pending = [move for move in pending if results[move].error == ErrorCode.REPLICA_NOT_AVAILABLE.name]
        if not pending or clock() >= until:
            break
        sleep(0.5)
    return [results[move] for move in moves]


def _send_to_node(admin: KafkaAdmin, node: int, moves: Sequence[RequestedMove]) -> list[MoveResult]:
    try:
        codes = admin.alter_log_dirs(node, {move.partition: move.directory for move in moves})
    except OpsError as error:
        return [MoveResult(move, REFUSED, NO_RESPONSE, str(error)) for move in moves]
    has = _directories(admin, node) if ErrorCode.LOG_DIR_NOT_FOUND in codes.values() else ""
    return [result_of(move, codes.get(move.partition, ErrorCode.UNKNOWN_SERVER_ERROR), has) for move in moves]


def _directories(admin: KafkaAdmin, node: int) -> str:
    """Return a clause that lists a node's directories; "" if it does not respond."""
    try:
        return f", which are {', '.join(view.path for view in admin.log_dirs([node]))}"
    except OpsError:
        return ""


def result_of(move: RequestedMove, code: ErrorCode, has: str = "") -> MoveResult:
    """Return the result of one move for Kafka's error code; `has` is a clause that lists the node's directories."""
    if code is ErrorCode.NONE:
        return MoveResult(move, ACCEPTED)
    sentence = _SENTENCES.get(code, "node {node} rejected the request with {code}; see the node's log")
    text = sentence.format(
        node=move.node,
        directory=move.directory,
        has=has,
        replica=move.partition,
        topic=move.partition.topic,
        code=code.name,
    )
    return MoveResult(move, REFUSED, code.name, text)


def progress_of(moves: Iterable[RequestedMove], views: Sequence[LogDirectoryView]) -> list[MoveProgress]:
    """Return the progress of each move; `unknown` for a replica that no directory in `views` holds."""
    held = {(r.node, r.partition, r.future): r for view in views for r in view.replicas}
    found: list[MoveProgress] = []
    for move in moves:
        current = held.get((move.node, move.partition, False))
        future = held.get((move.node, move.partition, True))
        if current is None:
            found.append(MoveProgress(move, UNKNOWN))
        elif current.directory == move.directory and future is None:
            found.append(MoveProgress(move, IN_PLACE, current.size, current.size))
        elif future is not None and future.directory == move.directory:
            found.append(MoveProgress(move, COPYING, current.size, min(future.size, current.size)))
        else:
            found.append(MoveProgress(move, NOT_MOVED, current.size, 0))
    return found
