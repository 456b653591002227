"""The node dies by SIGKILL at every named step of a move, a cancel and a deletion, and all ends the same.

One producer and one consumer run through all of it: at the end no acknowledged record is lost, none is there twice, and
every offset is consistent.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

import storage_node.node  # noqa: F401  (declares every failpoint)
from ops.cli.kafka_admin import KafkaAdmin
from ops.demo import proof, traffic
from storage_node import failpoints
from tests.e2e.conftest import Crashable
from tests.support.nodes.node_harness import until

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]

TOPIC, PARTITIONS, LOADED = "crash", 3, 18_000_000  # bytes: more than is copied between two flushes
SLOW = 6_000_000  # bytes per second: a copy of a partition takes seconds
#: Seconds. A step that the node dies of before it has noted the attempt is retried after the step's timeout, 60 s.
PATIENCE = 120

#: Written when no swap has come for a second: the `.delete` that it is about is gone by then.
SETTLED = ("swap.after_source_settled",)
MOVE_POINTS = [
    point
    for part in ("create.", "copy.", "swap.", "delete.")
    for point in failpoints.registered(part)
    if point not in SETTLED
]
CANCEL_POINTS = list(failpoints.registered("cancel."))


@pytest.fixture(scope="module")
def running(crashable: Crashable) -> Iterator[Crashable]:
    """The stack with a loaded topic under traffic; the traffic is judged when all tests have run."""
    with KafkaAdmin(crashable.bootstrap) as admin:
        admin.create_topic(TOPIC, PARTITIONS, 1, {})
    loaded = traffic.Acknowledged(crashable.bootstrap, TOPIC, linger_ms=20)
    traffic.load(loaded, PARTITIONS, LOADED, 1000, lambda _done: None)
    live = traffic.LiveTraffic(crashable.bootstrap, TOPIC, PARTITIONS, per_second=100, record_bytes=500)
    live.start()
    yield crashable
    live.stop()
    read, ends = traffic.read_all(crashable.bootstrap, TOPIC, PARTITIONS, lambda _count, _total: None)
    sent = loaded.sent | live.producer.sent
    verdict = proof.judge([*loaded.acks, *live.producer.acks], read, live.consumed, sent=sent, ends=ends)
    assert verdict.sound, verdict.problems
    assert not [*loaded.failures, *live.producer.failures]
    until(lambda: not crashable.leftovers(), 60, f"left on disk: {crashable.leftovers()}")


def next_disk(stack: Crashable, name: str) -> Path:
    here = stack.replica(name)
    assert here is not None
    return stack.disks[(stack.disks.index(here) + 1) % len(stack.disks)]


async def start(stack: Crashable, partition: int, target: Path, throttle: int | None) -> Any:
    client = await Client.connect(stack.temporal)
    move = {"topic": TOPIC, "partition": partition, "node": 1, "directory": str(target), "throttle": throttle}
    if throttle is None:
        del move["throttle"]
    return await client.start_workflow("MoveReplica", move, id=f"crash-{uuid.uuid4()}", task_queue="rehome")


async def revive(stack: Crashable) -> None:
    """Wait for the node's death and start it again."""
    await asyncio.to_thread(until, stack.dead, 60, "the node passes the point and dies")
    stack.disarm()
    await asyncio.to_thread(stack.stack.start, "node-1")


@pytest.mark.feature("113-21", "113-22", "113-24")
@pytest.mark.parametrize(("number", "point"), list(enumerate(MOVE_POINTS)), ids=MOVE_POINTS)
def test_move_ends_in_the_target_directory(running: Crashable, number: int, point: str) -> None:
    partition = number % PARTITIONS
    name = f"{TOPIC}-{partition}"
    target = next_disk(running, name)

    async def play() -> Any:
        running.die_at(point)
        handle = await start(running, partition, target, None)
        await revive(running)
        return await asyncio.wait_for(handle.result(), PATIENCE)

    result = asyncio.run(play())
    assert [row["outcome"] for row in result["rows"]] == ["deleted"]
    assert running.replica(name) == target
    assert not [left for left in running.leftovers() if left.startswith(f"{name}.")]


@pytest.mark.feature("113-05")
@pytest.mark.parametrize(("number", "point"), list(enumerate(CANCEL_POINTS)), ids=CANCEL_POINTS)
def test_cancel_leaves_the_source_where_it_was(running: Crashable, number: int, point: str) -> None:
    partition = number % PARTITIONS
    name = f"{TOPIC}-{partition}"
    source, target = running.replica(name), next_disk(running, name)

    async def play() -> None:
        handle = await start(running, partition, target, SLOW)
        await asyncio.to_thread(until, (target / f"{name}.move").is_dir, 60, "the copy begins")
        running.die_at(point)
        await handle.cancel()
        await revive(running)
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), PATIENCE)
        assert (await handle.describe()).status.name == "CANCELED"

    asyncio.run(play())
    assert running.replica(name) == source
    until(lambda: not (target / f"{name}.move").exists(), 60, "the copy is gone")


@pytest.mark.parametrize("name", ["controller", "temporal"])
def test_whoever_drives_the_move_may_die(running: Crashable, name: str) -> None:
    target = next_disk(running, f"{TOPIC}-0")

    async def play() -> Any:
        handle = await start(running, 0, target, SLOW)
        await asyncio.to_thread(until, (target / f"{TOPIC}-0.move").is_dir, 60, "the copy begins")
        await asyncio.to_thread(running.stack.kill, name)
        await asyncio.to_thread(running.stack.start, name)
        client = await Client.connect(running.temporal)
        return await asyncio.wait_for(client.get_workflow_handle(handle.id).result(), 90)

    result = asyncio.run(play())
    assert [row["outcome"] for row in result["rows"]] == ["deleted"]
    assert running.replica(f"{TOPIC}-0") == target


@pytest.mark.parametrize("away", ["controller", "temporal"])
def test_node_stops_in_seconds_whoever_is_away(running: Crashable, away: str) -> None:
    running.stack.kill(away)
    began = time.monotonic()
    running.stack.stop("node-1")
    took = time.monotonic() - began
    running.stack.up()
    # Six of them a node gives its workers, which a server that is away may hold; after twenty it would be killed.
    assert took < 16, f"the stop took {took:.1f} s"
