"""Moves asked for as Kafka's own tool asks: AlterReplicaLogDirs to each node, then DescribeLogDirs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ops.cli.kafka_admin import KafkaAdmin, LogDirectoryView
from ops.stack.errors import OpsError
from storage_node.errors import ErrorCode
from storage_node.types import TopicPartition

ACCEPTED = "accepted"
IN_PLACE = "in_place"
COPYING = "copying"
REFUSED = "refused"
UNKNOWN = "unknown"

#: What an operator can do about a refusal, by Kafka's error code.
_SENTENCES = {
    ErrorCode.LOG_DIR_NOT_FOUND: "{directory} is not one of the log.dirs of node {node}; see: rehome topic describe",
    ErrorCode.KAFKA_STORAGE_ERROR: "the source or target directory on node {node} is offline or full; see its log",
    ErrorCode.REPLICA_NOT_AVAILABLE: "node {node} has no replica of {replica}; see: rehome topic describe {topic}",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no partition {replica}; see: rehome topic list",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the name of topic {topic} is too long for a partition that is to be moved",
    ErrorCode.REQUEST_TIMED_OUT: (
        "the controller or a disk did not answer node {node} in time; see what moves with: rehome moves, and ask again"
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this client may not move replicas on node {node}",
}


@dataclass(frozen=True, slots=True)
class Wish:
    """One replica and the directory it is to be in."""

    partition: TopicPartition
    node: int
    directory: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one wish."""

    wish: Wish
    outcome: str
    error: str = ""
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.wish.partition.topic,
            "partition": self.wish.partition.partition,
            "node": self.wish.node,
            "directory": self.wish.directory,
            "outcome": self.outcome,
            "error": self.error,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a wish stands by DescribeLogDirs; sizes in bytes."""

    wish: Wish
    state: str
    bytes_total: int = 0
    bytes_copied: int = 0

    def as_json(self) -> dict[str, Any]:
        return Answer(self.wish, self.state).as_json() | {
            "bytes_total": self.bytes_total,
            "bytes_copied": self.bytes_copied,
        }


def ask(
    admin: KafkaAdmin,
    wishes: Sequence[Wish],
    *,
    patience: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Answer]:
    """Ask every node; REPLICA_NOT_AVAILABLE is asked again for `patience` seconds, as Kafka's tool does.

    The order of the answers is that of the wishes. A node that does not answer fails its own wishes only.
    """
    until = clock() + patience
    answers: dict[Wish, Answer] = {}
    pending = list(wishes)
    while pending:
        for node in sorted({wish.node for wish in pending}):
            mine = [wish for wish in pending if wish.node == node]
            answers |= {answer.wish: answer for answer in _ask_node(admin, node, mine)}
        pending = [wish for wish in pending if answers[wish].error == ErrorCode.REPLICA_NOT_AVAILABLE.name]
        if not pending or clock() >= until:
            break
        sleep(0.5)
    return [answers[wish] for wish in wishes]


def _ask_node(admin: KafkaAdmin, node: int, wishes: Sequence[Wish]) -> list[Answer]:
    try:
        codes = admin.alter_log_dirs(node, {wish.partition: wish.directory for wish in wishes})
    except OpsError as error:
        return [Answer(wish, REFUSED, "NO_ANSWER", str(error)) for wish in wishes]
    return [answered(wish, codes.get(wish.partition, ErrorCode.UNKNOWN_SERVER_ERROR)) for wish in wishes]


def answered(wish: Wish, code: ErrorCode) -> Answer:
    """The answer of one replica by Kafka's code."""
    if code is ErrorCode.NONE:
        return Answer(wish, ACCEPTED)
    sentence = _SENTENCES.get(code, "node {node} refused with {code}; see the node's log")
    text = sentence.format(
        node=wish.node, directory=wish.directory, replica=wish.partition, topic=wish.partition.topic, code=code.name
    )
    return Answer(wish, REFUSED, code.name, text)


def standings(wishes: Iterable[Wish], views: Sequence[LogDirectoryView]) -> list[Standing]:
    """Where each wish stands; `unknown` for a replica that no directory in `views` holds."""
    held = {(r.node, r.partition, r.future): r for view in views for r in view.replicas}
    found: list[Standing] = []
    for wish in wishes:
        current = held.get((wish.node, wish.partition, False))
        future = held.get((wish.node, wish.partition, True))
        if current is None:
            found.append(Standing(wish, UNKNOWN))
        elif current.directory == wish.directory and future is None:
            found.append(Standing(wish, IN_PLACE, current.size, current.size))
        elif future is not None and future.directory == wish.directory:
            found.append(Standing(wish, COPYING, current.size, min(future.size, current.size)))
        else:
            found.append(Standing(wish, REFUSED, current.size, 0))
    return found
