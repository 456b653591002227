"""What brokers refuse of configs, with Kafka's codes and words: each cluster of the conformance tests, and one node."""

from __future__ import annotations

from storage_node.config.changes import Op
from storage_node.config.table import MOVE_RATE

Ops = list[tuple[str, int, str | None]]

#: Type and name of a resource on broker 1, and the error of its description.
NOT_DESCRIBED = [
    (2, "no-such-topic", 3, ""),
    (2, "", 17, "Topic name is invalid: the empty string is not allowed"),
    (4, "2", 42, "Unexpected broker id, expected 1 or empty string, but received 2"),
    (4, "x", 42, "Broker id must be an integer, but it is: x"),
    (16, "", 42, "Client metrics subscription name must not be empty"),
    (32, "", 42, "Group name must not be empty"),
]


def named(value: object) -> str:
    """A test's name: the last config of its request."""
    return str(value[-1][0]) if isinstance(value, list) else ""


def number(name: str, value: str, kind: str) -> str:
    return f"Invalid value {value} for configuration {name}: Not a number of type {kind}"


REFUSED_OF_TOPICS: list[tuple[Ops, int, str]] = [
    ([("no.such", Op.SET, "1")], 40, "Unknown topic config name: no.such"),
    ([("no.such", Op.APPEND, "1")], 40, "Can't APPEND to key no.such because its type is not LIST."),
    ([("retention.ms", Op.SET, "77"), ("no.such", Op.SET, "1")], 40, "Unknown topic config name: no.such"),
    ([("retention.ms", Op.SET, "x")], 40, number("retention.ms", "x", "LONG")),
    ([("file.delete.delay.ms", Op.SET, "")], 40, number("file.delete.delay.ms", "", "LONG")),
    ([("segment.bytes", Op.SET, "99999999999")], 40, number("segment.bytes", "99999999999", "INT")),
    ([("min.cleanable.dirty.ratio", Op.SET, "abc")], 40, number("min.cleanable.dirty.ratio", "abc", "DOUBLE")),
    (
        [("min.cleanable.dirty.ratio", Op.SET, "2")],
        40,
        "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
    ),
    (
        [("retention.ms", Op.SET, "-2")],
        40,
        "Invalid value -2 for configuration retention.ms: Value must be at least -1",
    ),
    (
        [("compression.gzip.level", Op.SET, "77")],
        40,
        "Invalid value 77 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
    ),
    (
        [("cleanup.policy", Op.SET, "burn")],
        40,
        "Invalid value burn for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    (
        [("message.timestamp.type", Op.SET, "x")],
        40,
        "Invalid value x for configuration message.timestamp.type: String must be one of: CreateTime, LogAppendTime",
    ),
    (
        [("preallocate", Op.SET, "yes")],
        40,
        "Invalid value yes for configuration preallocate: Expected value to be either true or false",
    ),
    (
        [("min.compaction.lag.ms", Op.SET, "9"), ("max.compaction.lag.ms", Op.SET, "8")],
        40,
        "conflict topic config setting min.compaction.lag.ms (9) > max.compaction.lag.ms (8)",
    ),
    (
        [("remote.storage.enable", Op.SET, "true")],
        40,
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
    ),
    ([("retention.ms", Op.SET, None)], 42, "Null value not supported for : retention.ms"),
    ([("retention.ms", Op.APPEND, "5")], 40, "Can't APPEND to key retention.ms because its type is not LIST."),
    ([("retention.ms", Op.SUBTRACT, "5")], 40, "Can't SUBTRACT to key retention.ms because its type is not LIST."),
    ([("retention.ms", Op.SET, "5"), ("retention.ms", Op.SET, "6")], 42, "Error due to duplicate config keys"),
]

REFUSED_OF_BROKERS: list[tuple[Ops, int, str]] = [
    ([("log.dirs", Op.SET, "/x")], 42, "Cannot update these configs dynamically: [log.dirs]"),
    ([("log.retention.hours", Op.SET, "5")], 42, "Cannot update these configs dynamically: [log.retention.hours]"),
    (
        [("num.replica.alter.log.dirs.threads", Op.SET, "4")],
        42,
        "Cannot update these configs dynamically: [num.replica.alter.log.dirs.threads]",
    ),
    ([(MOVE_RATE, Op.SET, "-1")], 42, f"Invalid value -1 for configuration {MOVE_RATE}: Value must be at least 0"),
    ([(MOVE_RATE, Op.SET, "fast")], 42, number(MOVE_RATE, "fast", "LONG")),
    ([(MOVE_RATE, Op.APPEND, "5")], 40, f"Unknown config name: {MOVE_RATE}"),
    ([(MOVE_RATE, Op.SET, None)], 42, f"Null value not supported for : {MOVE_RATE}"),
    ([("log.retention.ms", Op.SET, "x")], 42, number("log.retention.ms", "x", "LONG")),
    (
        [("message.max.bytes", Op.SET, "-1")],
        42,
        "Invalid value -1 for configuration message.max.bytes: Value must be at least 0",
    ),
    (
        [("log.cleanup.policy", Op.SET, "burn")],
        42,
        "Invalid value burn for configuration log.cleanup.policy: String must be one of: compact, delete",
    ),
]
