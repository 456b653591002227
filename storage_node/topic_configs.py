"""Topic configs and dynamic broker configs: which there are, what they may be, and where a value comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from storage_node.errors import ErrorCode, RequestRefused
from storage_node.log.config import LogConfig


class Source(IntEnum):
    """Where a value comes from, as DescribeConfigs says it."""

    TOPIC = 1
    BROKER = 2
    DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class Kind(IntEnum):
    """A value's type, as DescribeConfigs says it."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


class Op(IntEnum):
    """What IncrementalAlterConfigs asks for."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One config: default value and type."""

    default: str
    kind: Kind


_MAX = str(2**63 - 1)

#: Topic configs with a meaning for the log, with Kafka's defaults.
LOG_KEYS: dict[str, Entry] = {
    "segment.bytes": Entry("1073741824", Kind.INT),
    "segment.ms": Entry("604800000", Kind.LONG),
    "segment.index.bytes": Entry("10485760", Kind.INT),
    "index.interval.bytes": Entry("4096", Kind.INT),
    "retention.ms": Entry("604800000", Kind.LONG),
    "retention.bytes": Entry("-1", Kind.LONG),
    "flush.messages": Entry(_MAX, Kind.LONG),
    "flush.ms": Entry(_MAX, Kind.LONG),
    "file.delete.delay.ms": Entry("60000", Kind.LONG),
    "max.message.bytes": Entry("1048588", Kind.INT),
    "message.timestamp.type": Entry("CreateTime", Kind.STRING),
    "cleanup.policy": Entry("delete", Kind.LIST),
}

#: Accepted and kept for Kafka's tools; replication is what they would act on.
KEPT_KEYS: dict[str, Entry] = {
    "min.insync.replicas": Entry("1", Kind.INT),
    "unclean.leader.election.enable": Entry("false", Kind.BOOLEAN),
    "compression.type": Entry("producer", Kind.STRING),
    "leader.replication.throttled.replicas": Entry("", Kind.LIST),
    "follower.replication.throttled.replicas": Entry("", Kind.LIST),
}

TOPIC_KEYS = {**LOG_KEYS, **KEPT_KEYS}

MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"

#: Broker configs that can be changed while the node runs, all rates in bytes per second.
BROKER_KEYS: dict[str, Entry] = {
    MOVE_RATE: Entry(_MAX, Kind.LONG),
    "leader.replication.throttled.rate": Entry(_MAX, Kind.LONG),
    "follower.replication.throttled.rate": Entry(_MAX, Kind.LONG),
}

_REPLICAS = re.compile(r"\s*(\*|\d+\s*:\s*\d+(\s*,\s*\d+\s*:\s*\d+)*)?\s*")


def check_topic(configs: Mapping[str, str | None]) -> None:
    """Raise RequestRefused (INVALID_CONFIG) for an unknown name, a missing value or one that cannot be used."""
    for name, value in configs.items():
        if name not in TOPIC_KEYS:
            raise RequestRefused(f"Unknown topic config name: {name}", ErrorCode.INVALID_CONFIG)
        if value is None:
            raise RequestRefused(f"Null value not supported for topic config {name}", ErrorCode.INVALID_CONFIG)
        if name.endswith(".throttled.replicas") and not _REPLICAS.fullmatch(value):
            raise _bad(name, value, "* or partition:broker pairs separated by commas")
        if name == "min.insync.replicas":
            _number(name, value, 1)
        if name == "unclean.leader.election.enable" and value not in ("true", "false"):
            raise _bad(name, value, "true or false")
        if name == "compression.type" and value != "producer":
            raise _bad(name, value, "producer: batches are kept as they come")
    LogConfig.from_topic({name: value for name, value in configs.items() if value is not None}, LogConfig())


def check_broker(configs: Mapping[str, str | None]) -> None:
    """Raise RequestRefused for a broker config that cannot be changed while running, or a value that cannot be used."""
    for name, value in configs.items():
        if name not in BROKER_KEYS:
            raise RequestRefused(f"Cannot update {name} dynamically", ErrorCode.INVALID_REQUEST)
        if value is not None:
            _number(name, value, 1)


def resolve(
    changes: Mapping[str, tuple[int, str | None]], current: Mapping[str, str], keys: Mapping[str, Entry]
) -> dict[str, str | None]:
    """Operations as plain values (None: back to the default); raises RequestRefused."""
    result: dict[str, str | None] = {}
    for name, (op, value) in changes.items():
        if op == Op.DELETE:
            result[name] = None
            continue
        if value is None:
            raise RequestRefused(f"Null value not supported for {name}", ErrorCode.INVALID_REQUEST)
        if op == Op.SET:
            result[name] = value
        elif op in (Op.APPEND, Op.SUBTRACT):
            entry = keys.get(name)
            if entry is None or entry.kind is not Kind.LIST:
                message = f"Config value append is not allowed for config key: {name}"
                raise RequestRefused(message, ErrorCode.INVALID_CONFIG)
            items = [item for item in current.get(name, entry.default).split(",") if item]
            named = [item for item in value.split(",") if item]
            if op == Op.APPEND:
                items += [item for item in named if item not in items]
            else:
                items = [item for item in items if item not in named]
            result[name] = ",".join(items)
        else:
            raise RequestRefused(f"Unknown operation {op} for {name}", ErrorCode.INVALID_REQUEST)
    return result


def move_rate(configs: Mapping[str, str], static: int | None) -> int | None:
    """The node's rate of moves, bytes per second: the dynamic value, else the static one; None without a limit."""
    text = configs.get(MOVE_RATE)
    if text is None:
        return static
    rate = int(text)
    return None if rate >= 2**63 - 1 else rate


def _number(name: str, value: str, minimum: int) -> None:
    try:
        number = int(value)
    except ValueError:
        raise _bad(name, value, "a whole number") from None
    if not minimum <= number <= 2**63 - 1:
        raise _bad(name, value, f"a number from {minimum} on")


def _bad(name: str, value: str, expected: str) -> RequestRefused:
    message = f"Invalid value {value} for configuration {name}: expected {expected}"
    return RequestRefused(message, ErrorCode.INVALID_CONFIG)
