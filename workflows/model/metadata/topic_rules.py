"""Kafka's rules for topic names and configs, with the configs that this cluster supports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from storage_node.model import fields

MAX_NAME = 249
MAX_PARTITIONS = 10_000
#: The documented limits of a cluster.
MAX_TOPICS = 1_000
MAX_REPLICAS = 20_000

#: Characters of a config's value, unless its rule has another limit: the maximum of Kafka's protocol.
LONGEST = 32_767

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_LONG = (1 << 63) - 1
_INT = (1 << 31) - 1


def name_problem(name: object) -> str | None:
    """Return why a topic cannot have this name, or None."""
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
    """Return a key that names which cannot both exist share: '.' and '_' are the same in metric names."""
    return name.replace(".", "_")


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds."""

    low: int
    high: int = _LONG

    longest: ClassVar[int] = LONGEST

    def problem(self, value: str) -> str | None:
        """Return why the value is invalid, or None."""
        if not re.fullmatch(r"-?\d{1,19}", value):
            return "is not a whole number"
        if not self.low <= int(value) <= self.high:
            return f"is not between {self.low} and {self.high}"
        return None


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]

    longest: ClassVar[int] = LONGEST

    def problem(self, value: str) -> str | None:
        """Return why the value is invalid, or None."""
        return None if value in self.words else f"is not one of {', '.join(self.words)}"


@dataclass(frozen=True, slots=True)
class Words:
    """A list, separated by commas, of some words; at least one."""

    words: tuple[str, ...]

    longest: ClassVar[int] = LONGEST

    def problem(self, value: str) -> str | None:
        """Return why the value is invalid, or None."""
        return None if set(value.split(",")) <= set(self.words) else f"is not one of {', '.join(self.words)}"


@dataclass(frozen=True, slots=True)
class Text:
    """Any text: only the node can validate it."""

    longest: ClassVar[int] = LONGEST

    def problem(self, value: str) -> str | None:
        """Return None."""
        return None


@dataclass(frozen=True, slots=True)
class ReplicaList:
    """KIP-73's list of throttled replicas: `*`, or `partition:node` pairs, or nothing."""

    longest: ClassVar[int] = 1_000_000

    def problem(self, value: str) -> str | None:
        """Return why the value is invalid, or None."""
        if re.fullmatch(r"(\d+:\d+)?(,(\d+:\d+)?)*|,*\*,*", value):
            return None
        return "is neither '*' nor a list of partition:node"


@dataclass(frozen=True, slots=True)
class Fraction:
    """A number from 0 to 1."""

    longest: ClassVar[int] = 64

    def problem(self, value: str) -> str | None:
        """Return why the value is invalid, or None."""
        fits = re.fullmatch(r"-?\d*\.?\d+(e-\d+)?", value) and 0 <= float(value) <= 1
        return None if fits else "is not a number from 0 to 1"


Rule = Whole | OneOf | Words | Text | ReplicaList | Fraction
_BOOL = OneOf(("true", "false"))
_GZIP = OneOf(("-1", *(str(level) for level in range(1, 10))))
_ANY = Whole(-_LONG - 1)
_STAMP = OneOf(("CreateTime", "LogAppendTime"))

#: Kafka's topic configs; those without an effect here only allow the value that disables them.
TOPIC_CONFIGS: Mapping[str, Rule] = {
    "cleanup.policy": Words(("delete",)),
    "compression.gzip.level": _GZIP,
    "compression.lz4.level": Whole(1, 17),
    "compression.type": OneOf(("producer",)),
    "compression.zstd.level": Whole(-131072, 22),
    "delete.retention.ms": Whole(0),
    "file.delete.delay.ms": Whole(0),
    "flush.messages": Whole(1),
    "flush.ms": Whole(0),
    "follower.replication.throttled.replicas": ReplicaList(),
    "index.interval.bytes": Whole(0, _INT),
    "leader.replication.throttled.replicas": ReplicaList(),
    "local.retention.bytes": Whole(-2),
    "local.retention.ms": Whole(-2),
    "max.compaction.lag.ms": Whole(1),
    "max.message.bytes": Whole(0, _INT),
    "message.timestamp.after.max.ms": Whole(0),
    "message.timestamp.before.max.ms": Whole(0),
    "message.timestamp.type": _STAMP,
    "min.cleanable.dirty.ratio": Fraction(),
    "min.compaction.lag.ms": Whole(0),
    "min.insync.replicas": Whole(1, _INT),
    "preallocate": _BOOL,
    "remote.log.copy.disable": _BOOL,
    "remote.log.delete.on.disable": _BOOL,
    "remote.storage.enable": OneOf(("false",)),
    "retention.bytes": _ANY,
    "retention.ms": Whole(-1),
    "segment.bytes": Whole(14, _INT),
    "segment.index.bytes": Whole(4, _INT),
    "segment.jitter.ms": Whole(0),
    "segment.ms": Whole(1),
    "unclean.leader.election.enable": _BOOL,
}

#: Kafka's broker configs that can be changed while a node runs.
BROKER_CONFIGS: Mapping[str, Rule] = {
    "compression.gzip.level": _GZIP,
    "compression.lz4.level": Whole(1, 17),
    "compression.type": OneOf(("producer",)),
    "compression.zstd.level": Whole(-131072, 22),
    "cordoned.log.dirs": Text(),
    "follower.replication.throttled.rate": Whole(0),
    "leader.replication.throttled.rate": Whole(0),
    "log.cleaner.delete.retention.ms": Whole(0),
    "log.cleaner.max.compaction.lag.ms": Whole(1),
    "log.cleaner.min.cleanable.ratio": Fraction(),
    "log.cleaner.min.compaction.lag.ms": Whole(0),
    "log.cleanup.policy": Words(("delete",)),
    "log.flush.interval.messages": Whole(1),
    "log.flush.interval.ms": Whole(0),
    "log.index.interval.bytes": Whole(0, _INT),
    "log.index.size.max.bytes": Whole(4, _INT),
    "log.local.retention.bytes": Whole(-2),
    "log.local.retention.ms": Whole(-2),
    "log.message.timestamp.after.max.ms": Whole(0),
    "log.message.timestamp.before.max.ms": Whole(0),
    "log.message.timestamp.type": _STAMP,
    "log.preallocate": _BOOL,
    "log.retention.bytes": _ANY,
    "log.retention.ms": _ANY,
    "log.roll.jitter.ms": Whole(0),
    "log.roll.ms": Whole(1),
    "log.segment.bytes": Whole(14, _INT),
    "log.segment.delete.delay.ms": Whole(0),
    "max.connections": Whole(0, _INT),
    "max.connections.per.ip": Whole(0, _INT),
    "message.max.bytes": Whole(0, _INT),
    "min.insync.replicas": Whole(1, _INT),
    "num.recovery.threads.per.data.dir": Whole(1, 256),
    "num.replica.fetchers": Whole(1, _INT),
    "replica.alter.log.dirs.io.max.bytes.per.second": Whole(0),
    "unclean.leader.election.enable": _BOOL,
}


def config_problem(kind: str, name: str, value: object) -> str | None:
    """Return why a config of a `topic` or a `broker` cannot have this value (a string), or None."""
    rule = (TOPIC_CONFIGS if kind == "topic" else BROKER_CONFIGS).get(name)
    if rule is None:
        return f"The {kind} config '{name}' is not supported; leave it out."
    if not isinstance(value, str):
        return f"The value of the {kind} config '{name}' is not a string."
    if len(value) > rule.longest:
        return f"The value of the {kind} config '{name}' has {len(value)} characters; {rule.longest} are allowed."
    if not fields.is_text(value):
        return f"The value of the {kind} config '{name}' is not text: it holds half of a surrogate pair."
    problem = rule.problem(value)
    return f"The {kind} config '{name}': '{value}' {problem}." if problem else None
