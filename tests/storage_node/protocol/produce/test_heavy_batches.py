"""Batches that are expensive to validate: no other connection's append waits for them, and each keeps its order."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from storage_node.log import admission
from storage_node.log.batches.batch import build_batch
from storage_node.log.batches.records import Bounds
from storage_node.log.batches.unpacking import GZIP, ZSTD
from storage_node.log.config import LogConfig
from storage_node.model.error_codes import ErrorCode
from storage_node.protocol.produce import handler
from storage_node.protocol.produce.call import ProduceCall
from storage_node.protocol.produce.inspectors import Inspectors
from storage_node.protocol.request import Request
from tests.support.batches import GOOD, Batch, body_of, field_of, packed, record_of, records_of
from tests.support.nodes.node_harness import Harness, until
from tests.support.wire import Client


def heavy_batch() -> bytes:
    """Return a batch that is heavy by its compressed size."""
    return Batch(packed(record_of(body_of(value=random.randbytes(8_000))), GZIP), attributes=GZIP).encode()


def many_headers(count: int, codec: int = 0) -> bytes:
    """Return a batch of one record with so many empty headers."""
    body = body_of(header_count=count) + (field_of(b"") + field_of(None)) * count
    return Batch(packed(record_of(body), codec), attributes=codec).encode()


def send_items(client: Client, records: list[bytes], timeout_ms: int = 10_000) -> None:
    """Send one request with these batches for partition 0."""
    rows = [{"index": 0, "records": each} for each in records]
    values = {"transactional_id": None, "acks": -1, "timeout": timedelta(milliseconds=timeout_ms)}
    client.send(0, 10, values | {"topic_data": [{"name": "t", "partition_data": rows}]})


def receive_errors(client: Client) -> list[int]:
    """Return the errors of the response, one for each batch."""
    return [int(row.error_code) for row in client.receive()[1].responses[0].partition_responses]


class Gate:
    """Holds every heavy inspection until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.entered = threading.Semaphore(0)
        self._steps = threading.Semaphore(0)
        real = admission.inspect

        def inspect(*args: object, **kwargs: object) -> object:
            self.entered.release()
            until(lambda: self.opened.is_set() or self._steps.acquire(blocking=False), 30)
            return real(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(handler, "inspect", inspect)

    def steps(self, count: int) -> None:
        """Let so many inspections run."""
        self._steps.release(count)


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Return how many frames of produce requests are in memory, without a run of the cyclic collector."""
    real, made = handler.parse, list[weakref.ref[bytearray]]()

    class Frame(bytearray):
        pass

    def parse(request: Request, *args: int) -> ProduceCall:
        frame = Frame(request.frame)
        made.append(weakref.ref(frame))
        return real(request._replace(frame=memoryview(frame)), *args)

    monkeypatch.setattr(handler, "parse", parse)
    gc.disable()
    yield lambda: sum(frame() is not None for frame in made)
    gc.enable()


@pytest.mark.parametrize(
    "batch",
    [
        heavy_batch(),
        many_headers(100_000),
        many_headers(100_000, GZIP),
        Batch(packed(record_of(body_of(value=bytes(3 << 20))), GZIP), attributes=GZIP).encode(),
    ],
    ids=["compressed", "headers", "compressed headers", "unpacks to much"],
)
def test_appends_do_not_wait_for_heavy_batches_of_others(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, batch: bytes
) -> None:
    harness.create_topic("t", 2)
    harness.settle()
    gate = Gate(monkeypatch)
    heavy = [Client(harness) for _ in range(8)]
    try:
        for client in heavy:
            client.send_produce("t", 0, batch)
        assert gate.entered.acquire(timeout=20)
        other = Client(harness)
        for _ in range(3):
            assert other.produce("t", 1, build_batch([b"small"])).error == 0
            assert other.produce("t", 0, build_batch([b"small"])).error == 0
    finally:
        gate.opened.set()
    assert [client.receive_produce()[1].error for client in heavy] == [0] * 8


def test_batches_of_a_connection_keep_their_order_after_a_heavy_one(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.create_topic("t", 1)
    harness.settle()
    gate = Gate(monkeypatch)
    client = Client(harness)
    client.send_produce("t", 0, heavy_batch())
    client.send_produce("t", 0, build_batch([b"second"]))
    assert gate.entered.acquire(timeout=20)
    gate.opened.set()
    assert [client.receive_produce()[1].base_offset for _ in range(2)] == [0, 1]


@pytest.mark.parametrize(
    ("records", "heavy"),
    [
        (build_batch([b"x"]), False),
        (build_batch([b"x" * 1000] * 1000), False),
        (build_batch([b""] * 10_001), True),
        (Batch(packed(records_of(10_001), GZIP), 10_001, attributes=GZIP).encode(), True),
        (Batch(packed(GOOD, GZIP), 2**31 - 1, attributes=GZIP).encode(), False),
        (Batch(packed(GOOD, GZIP), 3, attributes=GZIP).encode(), False),
        (heavy_batch(), True),
        (Batch(packed(GOOD, ZSTD), 3, attributes=ZSTD).encode(), True),
        (b"", False),
        (b"0" * 60, False),
    ],
    ids=[
        "one record",
        "a megabyte",
        "10,001 records",
        "10,001 records of gzip",
        "more records than are looked into",
        "few records of gzip",
        "many bytes of gzip",
        "zstd",
        "nothing",
        "no batch",
    ],
)
def test_batch_is_heavy_by_what_its_header_allows(records: bytes, heavy: bool) -> None:
    assert admission.takes_long(records) is heavy


@pytest.mark.parametrize(
    ("batch", "long"),
    [
        (many_headers(20_000), False),
        (many_headers(20_001), True),
        (Batch(b"".join(record_of(body_of(n, headers=[(b"", None)] * 400)) for n in range(64)), 64).encode(), True),
        (
            Batch(b"".join(record_of(body_of(n, headers=[(b"", None)] * 5)) for n in range(8_000)), 8_000).encode(),
            False,
        ),
        (many_headers(20_001, GZIP), True),
        (Batch(packed(record_of(body_of(value=bytes(1 << 20))), GZIP), attributes=GZIP).encode(), True),
        (Batch(packed(record_of(body_of(value=bytes(1 << 19))), GZIP), attributes=GZIP).encode(), False),
    ],
    ids=[
        "20,000 headers",
        "20,001 headers",
        "25,600 headers of 64 records",
        "40,000 headers of records of one layout",
        "20,001 headers of gzip",
        "more than 1 MiB of gzip",
        "512 KiB of gzip",
    ],
)
def test_batch_takes_long_by_what_is_in_it(batch: bytes, long: bool) -> None:
    config = LogConfig()
    if long:
        with pytest.raises(admission.TakesLong):
            admission.inspect_at_once(batch, config)
    else:
        assert admission.inspect_at_once(batch, config) == admission.inspect(batch, config)
    assert admission.inspect(batch, config).seen.in_order


def test_items_after_an_expensive_one_keep_their_order(harness: Harness) -> None:
    harness.create_topic("t", 1)
    harness.settle()
    client = Client(harness)
    small = build_batch([b"small"])
    send_items(client, [small, many_headers(30_000), small, many_headers(30_000, GZIP), small])
    rows = client.receive()[1].responses[0].partition_responses
    assert [(int(row.error_code), row.base_offset) for row in rows] == [(0, offset) for offset in range(5)]


def test_appends_of_a_connection_take_turns_with_those_of_others(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.create_topic("t", 1)
    harness.settle()
    monkeypatch.setattr(handler, "TURN", 0.01)
    real, turns = handler._append, list[int]()

    def append(node: object, directory: object, work: handler.Work) -> object:
        turns.append(len(work))
        return real(node, directory, work)  # type: ignore[arg-type]

    monkeypatch.setattr(handler, "_append", append)
    client = Client(harness)
    begun = time.process_time()
    send_items(client, [many_headers(20_000)] * 100)
    assert receive_errors(client) == [0] * 100
    assert turns == sorted(turns, reverse=True) and len(turns) == len(set(turns))
    assert len(turns) > 5, time.process_time() - begun


def test_heavy_batches_of_late_requests_are_neither_held_nor_inspected(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, frames: Callable[[], int]
) -> None:
    harness.create_topic("t", 1)
    harness.settle()
    gate = Gate(monkeypatch)
    clients = [Client(harness) for _ in range(10)]
    try:
        for client in clients:
            send_items(client, [heavy_batch(), heavy_batch()], timeout_ms=100)
        for client in clients:
            assert receive_errors(client) == [ErrorCode.REQUEST_TIMED_OUT] * 2
        until(lambda: frames() == 0, 5, "frames of requests with responses are held")
        assert handler._INSPECTORS.waiting == 0
    finally:
        gate.opened.set()
    assert clients[0].produce("t", 0, heavy_batch()).base_offset == 0


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (heavy_batch(), 0),
        (Batch(b"\x1f\x8b" + b"x" * 5_000, attributes=GZIP).encode(), ErrorCode.UNKNOWN_SERVER_ERROR),
        (Batch(packed(random.randbytes(8_000), GZIP), attributes=GZIP).encode(), ErrorCode.INVALID_RECORD),
        (heavy_batch()[:-1] + b"x", ErrorCode.CORRUPT_MESSAGE),
        (many_headers(30_000), 0),
    ],
    ids=["accepted", "garbage", "not records", "wrong checksum", "headers"],
)
def test_heavy_batches_are_not_held_after_their_response(
    harness: Harness, frames: Callable[[], int], batch: bytes, error: int
) -> None:
    harness.create_topic("t", 1)
    harness.settle()
    client = Client(harness)
    for _ in range(5):
        assert client.produce("t", 0, batch).error == error
    until(lambda: frames() == 0, 5, "frames of requests with responses are held")


def test_heavy_batches_of_a_connection_wait_for_one_of_each_other(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.create_topic("t", 1)
    harness.settle()
    gate = Gate(monkeypatch)
    inspectors = Inspectors(2)
    monkeypatch.setattr(handler, "_INSPECTORS", inspectors)
    crowd = [Client(harness) for _ in range(8)]
    for client in crowd:
        send_items(client, [heavy_batch()] * 10)
    until(lambda: inspectors.waiting == 60)  # the batches of two connections are being inspected
    other = Client(harness)
    send_items(other, [heavy_batch()])
    until(lambda: inspectors.waiting == 61)
    gate.steps(10)
    assert receive_errors(other) == [0]
    gate.opened.set()
    for client in crowd:
        assert receive_errors(client) == [0] * 10


def test_compressed_batches_do_not_wait_for_those_that_take_long(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.create_topic("t", 1)
    harness.settle()
    held = threading.Event()
    real = admission.inspect

    def inspect(records: bytes, config: LogConfig, bounds: Bounds | None) -> object:
        assert bounds is not None or held.wait(30)
        return real(records, config, bounds)

    monkeypatch.setattr(handler, "inspect", inspect)
    monkeypatch.setattr(handler, "_LONG_INSPECTORS", Inspectors(2))
    crowd = [Client(harness) for _ in range(4)]
    try:
        for client in crowd:
            send_items(client, [many_headers(100_000, ZSTD)] * 10)
        until(lambda: handler._LONG_INSPECTORS.waiting == 20)
        assert [Client(harness).produce("t", 0, heavy_batch()).error for _ in range(3)] == [0] * 3
    finally:
        held.set()
    for client in crowd:
        assert receive_errors(client) == [0] * 10
