"""Batches that take long to look through: no append of others waits for them, and each connection keeps its order."""

from __future__ import annotations

import random
import threading

import pytest

from storage_node.log import admission
from storage_node.log.batch import build_batch
from storage_node.log.unpacking import GZIP, ZSTD
from storage_node.protocol import produce
from tests.support.batches import GOOD, Batch, body_of, packed, record_of
from tests.support.node_harness import Harness
from tests.support.wire import Client


def heavy_batch() -> bytes:
    """A batch that is heavy by its compressed size."""
    return Batch(packed(record_of(body_of(value=random.randbytes(8_000))), GZIP), attributes=GZIP).encode()


class Gate:
    """Holds every heavy inspection until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.entered = threading.Semaphore(0)
        real = admission.inspect

        def inspect(*args: object, **kwargs: object) -> object:
            self.entered.release()
            assert self.opened.wait(30)
            return real(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(produce, "inspect", inspect)


def test_appends_do_not_wait_for_heavy_batches_of_others(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.create_topic("t", 2)
    harness.settle()
    gate = Gate(monkeypatch)
    heavy = [Client(harness) for _ in range(8)]
    try:
        for client in heavy:
            client.send_produce("t", 0, heavy_batch())
        assert gate.entered.acquire(timeout=20)
        other = Client(harness)
        for _ in range(3):
            assert other.produce("t", 1, build_batch([b"small"])).error == 0
            assert other.produce("t", 0, build_batch([b"small"])).error == 0
    finally:
        gate.opened.set()
    assert [client.receive_produce()[1].error for client in heavy] == [0] * 8


def test_batches_of_a_connection_keep_their_order_behind_a_heavy_one(
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
        "few records of gzip",
        "many bytes of gzip",
        "zstd",
        "nothing",
        "no batch",
    ],
)
def test_a_batch_is_heavy_by_what_its_header_allows(records: bytes, heavy: bool) -> None:
    assert admission.takes_long(records) is heavy
