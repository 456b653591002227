"""A follower's Fetch and ListOffsets requests and responses, against the schemas of Apache Kafka."""

from __future__ import annotations

import random
import struct
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from storage_node.log.batches.batch import build_batch
from storage_node.log.leader_epochs import LeaderEpochs
from storage_node.replication.fetch_request import (
    NO_SESSION,
    AskedRow,
    BadResponse,
    fetch_request,
    last_batch,
    offsets_request,
    read_offset,
    read_response,
)
from storage_node.replication.truncation import truncation_offset
from storage_node.wire.codec import write_response

A, B = bytes(range(16)), bytes(range(1, 17))


@pytest.mark.parametrize("session", [NO_SESSION, (0, 0), (2**31 - 1, 7)])
def test_fetch_request_matches_the_schema(session: tuple[int, int]) -> None:
    asked = [(A, 0), (A, 7), (B, 3)]
    rows_asked = [(key, AskedRow(3, 1000 + number, 2, 10, 1 << 20)) for number, key in enumerate(asked)]
    frame = bytes(
        fetch_request(
            42, rows_asked, client="me", replica=5, broker_epoch=1 << 40, wait_ms=500, min_bytes=1, max_bytes=10 << 20,
            session=session, forgotten=[(B, 9), (A, 4), (B, 1)],
        )
    )  # fmt: skip
    assert struct.unpack_from(">ihhi", frame) == (len(frame) - 4, 1, 17, 42)
    at = 4 + 8 + 2 + len("me") + 1
    call, size = entity_reader(load_request_schema(1, 17))(frame, at)
    assert at + size == len(frame)
    assert (call.min_bytes, call.max_bytes, call.isolation_level, call.session_id, call.session_epoch) == (
        1, 10 << 20, 0, *session,
    )  # fmt: skip
    gone = {topic.topic_id: topic.partitions for topic in call.forgotten_topics_data}
    assert gone == {UUID(bytes=A): (4,), UUID(bytes=B): (9, 1)}
    assert call.max_wait.total_seconds() == 0.5
    assert (call.replica_state.replica_id, call.replica_state.replica_epoch) == (5, 1 << 40)
    rows = [(topic.topic_id, row) for topic in call.topics for row in topic.partitions]
    assert [(topic, row.partition, row.fetch_offset) for topic, row in rows] == [
        (UUID(bytes=A), 0, 1000), (UUID(bytes=A), 7, 1001), (UUID(bytes=B), 3, 1002),
    ]  # fmt: skip
    assert {
        (r.current_leader_epoch, r.last_fetched_epoch, r.log_start_offset, r.partition_max_bytes) for _, r in rows
    } == {(3, 2, 10, 1 << 20)}


def answer(rows: list[dict[str, Any]], error: int = 0, correlation: int = 42) -> bytes:
    """Return a Fetch response as a broker of Apache Kafka writes it."""
    plain = {
        "error_code": 0, "high_watermark": 9, "last_stable_offset": 9, "log_start_offset": 1,
        "aborted_transactions": None, "records": None,
    }  # fmt: skip
    values = {
        "throttle_time": timedelta(0), "error_code": error, "session_id": 0,
        "responses": [{"topic_id": UUID(bytes=A), "partitions": [plain | row for row in rows]}],
    }  # fmt: skip
    return struct.pack(">i", correlation) + b"\0" + write_response(1, 17, values)


ROWS: list[dict[str, Any]] = [
    {"partition_index": 0},
    {"partition_index": 1, "records": b"some records" * 20},
    {"partition_index": 2, "error_code": 6, "current_leader": {"leader_id": 3, "leader_epoch": 8}},
    {"partition_index": 3, "diverging_epoch": {"epoch": 4, "end_offset": 77}, "aborted_transactions": []},
    {"partition_index": 4, "aborted_transactions": [{"producer_id": 1, "first_offset": 2}], "records": b""},
]


def test_fetch_response_is_parsed() -> None:
    rows = list(read_response(memoryview(answer(ROWS)), 42))
    assert [(row.topic_id, row.partition, row.error) for row in rows] == [
        (A, 0, 0), (A, 1, 0), (A, 2, 6), (A, 3, 0), (A, 4, 0),
    ]  # fmt: skip
    assert [bytes(row.records) for row in rows] == [b"", b"some records" * 20, b"", b"", b""]
    assert {(row.high_watermark, row.log_start) for row in rows} == {(9, 1)}
    assert [row.leader for row in rows] == [None, None, (3, 8), None, None]
    assert [row.diverging for row in rows] == [None, None, None, (4, 77), None]


def test_truncated_or_foreign_response_raises_bad_response() -> None:
    whole = answer(ROWS)
    for size in range(len(whole)):
        with pytest.raises(BadResponse):
            list(read_response(memoryview(whole[:size]), 42))
    with pytest.raises(BadResponse, match="request 42"):
        list(read_response(memoryview(whole), 43))
    with pytest.raises(BadResponse, match="error 70"):
        list(read_response(memoryview(answer(ROWS, error=70)), 42))


def test_random_bytes_raise_only_bad_response() -> None:
    dice, whole = random.Random(1), answer(ROWS)
    for _ in range(3000):
        wrong = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            wrong[dice.randrange(4, len(wrong))] = dice.randrange(256)
        try:
            rows = list(read_response(memoryview(bytes(wrong)), 42))
        except BadResponse:
            continue
        assert sum(len(row.records) for row in rows) <= len(whole)


def test_list_offsets_request_and_response() -> None:
    latest, earliest = offsets_request(7, "me", 5, "t", 3, 9, (-1, -2))
    for frame, correlation, time in ((latest, 7, -1), (earliest, 8, -2)):
        assert struct.unpack_from(">ihhi", frame) == (len(frame) - 4, 2, 5, correlation)
        call, _ = entity_reader(load_request_schema(2, 5))(frame, 4 + 8 + 2 + len("me"))
        (topic,) = call.topics
        (row,) = topic.partitions
        assert (call.replica_id, topic.name, row.partition_index, row.current_leader_epoch) == (5, "t", 3, 9)
        assert row.timestamp == time
    row = {"partition_index": 3, "error_code": 0, "timestamp": -1, "offset": 1234, "leader_epoch": 9}
    values = {"throttle_time": timedelta(0), "topics": [{"name": "t", "partitions": [row]}]}
    frame = struct.pack(">i", 7) + write_response(2, 5, values)
    assert read_offset(memoryview(frame), 7) == (0, 1234)
    for size in range(len(frame)):
        with pytest.raises(BadResponse):
            read_offset(memoryview(frame[:size]), 7)


def test_last_batch_returns_the_next_offset_and_epoch() -> None:
    batches = build_batch([b"a", b"b"], base_offset=10, leader_epoch=3) + build_batch(
        [b"c"], base_offset=15, leader_epoch=4
    )
    assert last_batch(memoryview(batches)) == (16, 4)
    assert last_batch(memoryview(b"")) is None
    for size in range(1, len(batches)):
        assert last_batch(memoryview(batches[:size])) in (None, (12, 3))


@pytest.mark.parametrize(
    ("entries", "end", "diverging", "offset"),
    [
        # The leader knows the newest epoch, and has fewer records of it, or more.
        (((1, 0), (3, 10)), 20, (3, 15), 15),
        (((1, 0), (3, 10)), 20, (3, 30), 20),
        # The leader does not know it: its next lower epoch is one of the follower's as well.
        (((1, 0), (3, 10)), 20, (1, 8), 8),
        (((1, 0), (3, 10)), 20, (1, 14), 10),
        # At the leader epoch 1 continued to 8, after 2 had begun at the follower: the logs diverge from 5 on (KIP-279).
        (((1, 0), (2, 5)), 10, (1, 8), 5),
        # The follower does not know it: it truncates to the start of its next higher epoch, and fetches again.
        (((1, 0), (3, 10)), 20, (2, 14), 10),
        (((1, 0), (3, 10)), 20, (2, 5), 10),
        (((1, 0), (5, 10), (6, 12)), 20, (4, 30), 10),
        # The leader has no epoch that old.
        (((4, 3), (5, 10)), 20, (2, 0), 0),
        ((), 20, (2, 7), 7),
        ((), 20, (-1, -1), 0),
    ],
)
def test_log_is_truncated_where_it_diverges(
    entries: tuple[tuple[int, int], ...], end: int, diverging: tuple[int, int], offset: int
) -> None:
    assert truncation_offset(LeaderEpochs(entries), end, diverging) == offset
