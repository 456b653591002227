"""A plan that a worker serves on a real Temporal server, for the tests of commands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from ops.cli.plan import runs
from tests.support.kafka_in_memory import KafkaInMemory
from tests.support.programs.temporal import TemporalServer
from tests.workflows.plans.scene import BEFORE, Scene


@pytest.fixture
def temporal(temporal_server: TemporalServer, task_queue: str) -> tuple[str, ...]:
    return ("--cluster", task_queue, "--temporal-address", temporal_server.address)


@pytest.fixture
def unnamed(temporal_server: TemporalServer, task_queue: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The options for a cluster without a name, whose brokers report the queue's as Kafka's own id."""

    class Brokers:
        def __init__(self, *_: object) -> None:
            pass

        def __enter__(self) -> Brokers:
            return self

        def __exit__(self, *exc: object) -> None:
            pass

        def cluster(self) -> tuple[str, dict[int, str | None]]:
            return task_queue, {}

    monkeypatch.setattr(runs, "KafkaAdmin", Brokers)
    return ("--bootstrap-server", "127.0.0.1:1", "--temporal-address", temporal_server.address)


@pytest.fixture
def served(temporal_server: TemporalServer, task_queue: str) -> Iterator[Scene]:
    """A plan of two held moves, and its worker on a thread."""
    ready, done, held = threading.Event(), threading.Event(), []

    async def work() -> None:
        it = Scene(await temporal_server.client(), task_queue, KafkaInMemory(BEFORE))
        it.kafka.held = True
        async with it.worker():
            await it.running(await it.submit(), 2)
            held.append(it)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield held[0]
    finally:
        done.set()
        thread.join(60)
