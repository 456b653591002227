"""Attacks by admin requests, most of which a server rejects."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ops.bench.hostile.attack import Attack, allowed
from ops.bench.hostile.field import ATTACKED, BACKLOG, NONE, PARTITIONS, WIDE, Field, frame
from ops.bench.hostile.on_records import UNKNOWN

SHORT, LONG = timedelta(milliseconds=500), timedelta(seconds=10)
_TOPIC, _BROKER = 2, 4


def _topic(name: str, partitions: int = 1, factor: int = 1, **configs: str) -> Mapping[str, Any]:
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {"name": name, "num_partitions": partitions, "replication_factor": factor, "configs": rows}


def _creates(field: Field) -> None:
    topics = [
        _topic("no topic"),
        _topic("n" * 250),
        _topic("no-partitions", 0),
        _topic("less-than-none", -5),
        _topic("too-many-replicas", 1, 99),
        _topic("no-replicas", 1, 0),
        _topic("no-such-config", no_such="1"),
        _topic("no-such-value", retention_ms="for ever"),
        _topic(ATTACKED),
    ]
    field.crowd(4, field.asker(19, 7, lambda: {"topics": topics, "timeout": LONG}))


def _many_creates(field: Field) -> None:
    """Create 20,000 topics; Apache Kafka rejects more than 10,000 partitions in one request with POLICY_VIOLATION."""
    topics = [_topic(f"no topic {number}") for number in range(field.size(20_000))]
    field.crowd(2, field.sender(19, 7, frame(19, 7, {"topics": topics, "timeout": LONG}), 1))


def _deletes(field: Field) -> None:
    names = itertools.count()

    def values() -> Mapping[str, Any]:
        topics: list[Mapping[str, Any]] = [{"name": f"nowhere-{next(names)}", "topic_id": None} for _ in range(50)]
        return {"topics": [*topics, {"name": None, "topic_id": uuid.uuid4()}], "timeout": LONG}

    field.crowd(4, field.asker(20, 6, values))


def _configs(field: Field) -> None:
    def row(kind: int, name: str, key: str, value: str) -> Mapping[str, Any]:
        configs = [{"name": key, "config_operation": 0, "value": value}]
        return {"resource_type": kind, "resource_name": name, "configs": configs}

    resources = [
        row(_TOPIC, ATTACKED, "no.such.config", "1"),
        row(_TOPIC, WIDE, "retention.ms", "for ever"),
        row(_TOPIC, BACKLOG, "x" * 30_000, "y" * 30_000),
        row(_TOPIC, "nowhere", "retention.ms", "1"),
        row(_BROKER, "not a broker", "log.flush.interval.ms", "1"),
        row(99, "x", "y", "z"),
    ]
    field.crowd(4, field.asker(44, 1, lambda: {"resources": resources}))


def _described(field: Field) -> None:
    resources = [{"resource_type": _TOPIC, "resource_name": f"nowhere-{n}"} for n in range(1000)]
    data = frame(32, 4, {"resources": resources, "include_synonyms": True})
    field.crowd(4, field.sender(32, 4, data))


def _log_dirs(field: Field) -> None:
    field.crowd(4, field.sender(35, 4, frame(35, 4, {"topics": None})))


def _moves(field: Field) -> None:
    topics = [{"name": ATTACKED, "partitions": list(range(PARTITIONS))}]
    values = {"dirs": [{"path": "/nowhere", "topics": topics}]}
    field.crowd(4, field.asker(34, 2, lambda: values))


def _reassignments(field: Field) -> None:
    rows = [{"partition_index": n, "replicas": [7, 8, 9]} for n in range(PARTITIONS)]
    topics = [{"name": ATTACKED, "partitions": rows}, {"name": "nowhere", "partitions": rows}]
    field.crowd(4, field.asker(45, 0, lambda: {"topics": topics, "timeout": LONG}))


def _deleted_records(field: Field) -> None:
    rows = [{"partition_index": n, "offset": 1 << 60} for n in range(PARTITIONS + 1)]
    field.crowd(4, field.asker(21, 2, lambda: {"topics": [{"name": ATTACKED, "partitions": rows}], "timeout": LONG}))


def _more_partitions(field: Field) -> None:
    topics = [{"name": ATTACKED, "count": 1, "assignments": None}, {"name": "nowhere", "count": 5, "assignments": None}]
    field.crowd(4, field.asker(37, 3, lambda: {"topics": topics, "timeout": LONG}))


def _elections(field: Field) -> None:
    rows = [{"topic": ATTACKED, "partitions": list(range(PARTITIONS))}, {"topic": "nowhere", "partitions": [0]}]
    values = {"election_type": 0, "topic_partitions": rows, "timeout": LONG}
    field.crowd(4, field.asker(43, 2, lambda: values))


def _without_controller(field: Field) -> None:
    names = itertools.count()
    with field.away():
        values = field.asker(19, 7, lambda: {"topics": [_topic(f"waits-{next(names)}")], "timeout": SHORT})
        field.crowd(32, values)


ADMIN = (
    Attack(
        "CreateTopics rejected",
        "invalid topics",
        _creates,
        allowed(
            "INVALID_TOPIC_EXCEPTION",
            "INVALID_PARTITIONS",
            "INVALID_REPLICATION_FACTOR",
            "INVALID_CONFIG",
            "TOPIC_ALREADY_EXISTS",
        ),
    ),
    Attack(
        "20,000 topics rejected",
        "in one request",
        _many_creates,
        allowed("INVALID_TOPIC_EXCEPTION", "POLICY_VIOLATION"),
    ),
    Attack("DeleteTopics rejected", "topics that do not exist", _deletes, allowed(UNKNOWN, "UNKNOWN_TOPIC_ID")),
    Attack(
        "configs rejected", "configs that do not exist", _configs, allowed("INVALID_CONFIG", UNKNOWN, "INVALID_REQUEST")
    ),
    Attack("configs described", "of 1,000 topics that do not exist", _described, allowed(UNKNOWN)),
    Attack("log directories described", "all, in a loop", _log_dirs, allowed(NONE)),
    Attack("moves rejected", "to a directory that does not exist", _moves, allowed("LOG_DIR_NOT_FOUND")),
    Attack(
        "reassignments rejected",
        "to nodes that do not exist",
        _reassignments,
        allowed("INVALID_REPLICA_ASSIGNMENT", UNKNOWN),
    ),
    Attack(
        "DeleteRecords rejected",
        "beyond the high watermark",
        _deleted_records,
        allowed("OFFSET_OUT_OF_RANGE", UNKNOWN),
    ),
    Attack(
        "CreatePartitions rejected",
        "fewer than the topic has",
        _more_partitions,
        allowed("INVALID_PARTITIONS", UNKNOWN),
    ),
    Attack(
        "elections rejected",
        "of preferred leaders that lead already",
        _elections,
        allowed("ELECTION_NOT_NEEDED", UNKNOWN),
    ),
    Attack(
        "admin without a controller",
        "CreateTopics while the controller is down",
        _without_controller,
        allowed("REQUEST_TIMED_OUT"),
        ours_only=True,
    ),
)
