"""What a topic may be called and configured with: Kafka's rules, and which of Kafka's configs this cluster knows."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

MAX_NAME = 249
MAX_PARTITIONS = 10_000
#: Stated limits of an embedded cluster.
MAX_TOPICS = 1_000
MAX_REPLICAS = 20_000

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_LONG = (1 << 63) - 1
_INT = (1 << 31) - 1


def name_problem(name: object) -> str | None:
    """Why a topic cannot have this name, or None."""
    if not isinstance(name, str) or not name:
        return "The topic name is empty; give it at least one character."
    if name in (".", ".."):
        return f"The topic name '{name}' is not allowed; choose another one."
    if len(name) > MAX_NAME:
        return f"The topic name has {len(name)} characters; {MAX_NAME} are allowed."
    if not _NAME.fullmatch(name):
        return f"The topic name '{name}' has characters other than letters, digits, '.', '_' and '-'."
    return None


def collision_key(name: str) -> str:
    """Names with the same key cannot both exist: '.' and '_' fall together in metric names."""
    return name.replace(".", "_")


def assignment_problem(replicas: Sequence[int], registered: Container[int], factor: int) -> str | None:
    """Why a new partition cannot have these replicas, in Kafka's words; None when it can."""
    if not replicas:
        return "The manual partition assignment includes an empty replica list."
    before = None
    for node in sorted(replicas):
        if node not in registered:
            return f"The manual partition assignment includes broker {node}, but no such broker is registered."
        if node == before:
            return f"The manual partition assignment includes the broker {node} more than once."
        before = node
    if len(replicas) != factor:
        return (
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {factor} replica(s)."
        )
    return None


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds."""

    low: int
    high: int = _LONG

    def problem(self, value: str) -> str | None:
        """Why the value does not fit, or None."""
        if not re.fullmatch(r"-?\d{1,19}", value):
            return "is not a whole number"
        if not self.low <= int(value) <= self.high:
            return f"is not between {self.low} and {self.high}"
        return None


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]

    def problem(self, value: str) -> str | None:
        """Why the value does not fit, or None."""
        return None if value in self.words else f"is not one of {', '.join(self.words)}"


@dataclass(frozen=True, slots=True)
class ReplicaList:
    """KIP-73's list of throttled replicas: `*`, or `partition:node` pairs, or nothing."""

    def problem(self, value: str) -> str | None:
        """Why the value does not fit, or None."""
        if value in ("", "*", "none") or re.fullmatch(r"\d+:\d+(,\d+:\d+)*", value):
            return None
        return "is neither '*' nor a list of partition:node"


@dataclass(frozen=True, slots=True)
class Fraction:
    """A number from 0 to 1."""

    def problem(self, value: str) -> str | None:
        """Why the value does not fit, or None."""
        return None if re.fullmatch(r"0(\.\d+)?|1(\.0+)?|\.\d+", value) else "is not a number from 0 to 1"


Rule = Whole | OneOf | ReplicaList | Fraction
_BOOL = OneOf(("true", "false"))

#: Kafka's topic configs that mean something here, or that tools set and that do no harm.
TOPIC_CONFIGS: Mapping[str, Rule] = {
    "cleanup.policy": OneOf(("delete",)),
    "compression.type": OneOf(("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
    "file.delete.delay.ms": Whole(0),
    "flush.messages": Whole(1),
    "flush.ms": Whole(0),
    "follower.replication.throttled.replicas": ReplicaList(),
    "index.interval.bytes": Whole(0, _INT),
    "leader.replication.throttled.replicas": ReplicaList(),
    "local.retention.bytes": Whole(-2),
    "local.retention.ms": Whole(-2),
    "max.message.bytes": Whole(0, _INT),
    "message.timestamp.after.max.ms": Whole(0),
    "message.timestamp.before.max.ms": Whole(0),
    "message.timestamp.type": OneOf(("CreateTime", "LogAppendTime")),
    "min.cleanable.dirty.ratio": Fraction(),
    "min.compaction.lag.ms": Whole(0),
    "min.insync.replicas": Whole(1, _INT),
    "preallocate": _BOOL,
    "retention.bytes": Whole(-1),
    "retention.ms": Whole(-1),
    "segment.bytes": Whole(1024, _INT),
    "segment.index.bytes": Whole(4, _INT),
    "segment.jitter.ms": Whole(0),
    "segment.ms": Whole(1),
    "delete.retention.ms": Whole(0),
    "max.compaction.lag.ms": Whole(1),
    "unclean.leader.election.enable": _BOOL,
}

#: Kafka's broker configs that can be changed while a node runs.
BROKER_CONFIGS: Mapping[str, Rule] = {
    "follower.replication.throttled.rate": Whole(0),
    "leader.replication.throttled.rate": Whole(0),
    "replica.alter.log.dirs.io.max.bytes.per.second": Whole(0),
    "num.replica.alter.log.dirs.threads": Whole(1, _INT),
    "log.cleanup.policy": OneOf(("delete",)),
    "log.flush.interval.messages": Whole(1),
    "log.flush.interval.ms": Whole(0),
    "log.index.interval.bytes": Whole(0, _INT),
    "log.index.size.max.bytes": Whole(4, _INT),
    "log.message.timestamp.type": OneOf(("CreateTime", "LogAppendTime")),
    "log.retention.bytes": Whole(-1),
    "log.retention.ms": Whole(-1),
    "log.roll.ms": Whole(1),
    "log.segment.bytes": Whole(1024, _INT),
    "log.segment.delete.delay.ms": Whole(0),
    "message.max.bytes": Whole(0, _INT),
    "min.insync.replicas": Whole(1, _INT),
    "unclean.leader.election.enable": _BOOL,
}


def config_problem(kind: str, name: str, value: object) -> str | None:
    """Why a config of a `topic` or a `broker` cannot have this value (a string), or None."""
    rule = (TOPIC_CONFIGS if kind == "topic" else BROKER_CONFIGS).get(name)
    if rule is None:
        return f"The {kind} config '{name}' is not known here; leave it out."
    if not isinstance(value, str):
        return f"The value of the {kind} config '{name}' is not a string."
    problem = rule.problem(value)
    return f"The {kind} config '{name}': '{value}' {problem}." if problem else None
