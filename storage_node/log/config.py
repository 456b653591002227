"""The configuration of a log, by Kafka's topic config names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from storage_node.errors import RequestRefused
from storage_node.model.error_codes import ErrorCode

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
FOREVER = 2**63 - 1

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The configuration of one log; times in milliseconds, sizes in bytes.

    The defaults are Kafka's, except that message.timestamp.{before,after}.max.ms accept any timestamp.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * _DAY_MS
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    flush_messages: int = FOREVER
    flush_ms: int = FOREVER
    file_delete_delay_ms: int = 60_000
    max_message_bytes: int = 1_048_588
    min_insync_replicas: int = 1
    producer_id_expiration_ms: int = _DAY_MS
    message_timestamp_type: str = CREATE_TIME
    message_timestamp_before_max_ms: int = FOREVER
    message_timestamp_after_max_ms: int = FOREVER

    @staticmethod
    def from_topic(configs: Mapping[str, str], defaults: LogConfig) -> LogConfig:
        """Return `defaults` overridden by a topic's configs; names that do not concern a log are ignored.

        Raises `RequestRefused` (INVALID_CONFIG) for an invalid value and for `cleanup.policy=compact`.
        """
        changes: dict[str, Any] = {}
        for name, text in configs.items():
            if name in _FIELDS:
                field, read = _FIELDS[name]
                changes[field] = read(name, text)
        policy = configs.get("cleanup.policy", "delete")
        if set(policy.replace(" ", "").split(",")) != {"delete"}:
            raise _invalid("cleanup.policy", policy, "delete (compaction is not supported)")
        return replace(defaults, **changes)


def _invalid(name: str, text: str, expected: str) -> RequestRefused:
    return RequestRefused(
        f"Invalid value {text} for configuration {name}: expected {expected}", ErrorCode.INVALID_CONFIG
    )


def _number(low: int, high: int = FOREVER) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        try:
            value = int(text.strip())
        except ValueError:
            raise _invalid(name, text, "a whole number") from None
        if not low <= value <= high:
            raise _invalid(name, text, f"a number from {low} to {high}")
        return value

    return read


def _timestamp_type(name: str, text: str) -> str:
    if text not in (CREATE_TIME, LOG_APPEND_TIME):
        raise _invalid(name, text, f"{CREATE_TIME} or {LOG_APPEND_TIME}")
    return text


_INT = 2**31 - 1
_FIELDS: dict[str, tuple[str, Callable[[str, str], int | str]]] = {
    "segment.bytes": ("segment_bytes", _number(14, _INT)),
    "segment.ms": ("segment_ms", _number(1)),
    "index.interval.bytes": ("index_interval_bytes", _number(0, _INT)),
    "segment.index.bytes": ("segment_index_bytes", _number(4, _INT)),
    "retention.ms": ("retention_ms", _number(-1)),
    "retention.bytes": ("retention_bytes", _number(-(2**63))),
    "flush.messages": ("flush_messages", _number(1)),
    "flush.ms": ("flush_ms", _number(0)),
    "file.delete.delay.ms": ("file_delete_delay_ms", _number(0)),
    "max.message.bytes": ("max_message_bytes", _number(0, _INT)),
    "min.insync.replicas": ("min_insync_replicas", _number(1, _INT)),
    "message.timestamp.before.max.ms": ("message_timestamp_before_max_ms", _number(0)),
    "message.timestamp.after.max.ms": ("message_timestamp_after_max_ms", _number(0)),
    "message.timestamp.type": ("message_timestamp_type", _timestamp_type),
}
