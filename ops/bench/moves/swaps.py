"""The swap: produce latency around it, Apache Kafka and rehome in turn, and how long it holds the log."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafka.admin import KafkaAdminClient
from temporalio.client import Client, WorkflowHandle

from ops.bench.bench import Bench
from ops.bench.clients import librdkafka
from ops.bench.clients.pacer import paced
from ops.bench.moves import wire_moves
from ops.bench.table import Figure, milliseconds
from storage_node.model.moves import Outcome
from workflows.model.names import MOVE_REPLICA, cluster_queue

RATE = 1000.0
SIZE = 64 * 2**20
AROUND = 0.05
"""Seconds before and after a swap within which a client's longest latency counts."""
CLIENT_SWAPS = 10
LOCKED_SWAPS = 100
MEDIAN, WORST = 0.005, 0.02
"""The targets: seconds for which a swap may hold the log, median and worst, without other copies on its disks."""
LOOK = 0.001
PAUSE = 0.5
"""Seconds between a swap and the next move, which keep their effects on the client separate."""
SETTLE = 0.3
PATIENCE = 60.0


def swap_latency(bench: Bench) -> list[Figure]:
    """Measure the longest produce latency within 50 ms of a swap, of ten swaps of each server in turn."""
    bench.say(f"{CLIENT_SWAPS} swaps each beside a producer at {RATE:.0f} requests/s, Apache Kafka and rehome in turn")
    kafka, stack = bench.kafka, bench.stack
    servers = [("kafka", kafka.bootstrap, kafka.log_dirs[1]), ("rehome", stack.bootstrap, stack.disks)]
    longest: dict[str, list[float]] = {}
    idle: dict[str, list[float]] = {}
    for name, bootstrap, disks in servers:
        librdkafka.create_topic(bootstrap, "swaps")
        librdkafka.produce(bootstrap, "swaps", SIZE)
        longest[name], idle[name] = [], []
        # The first moves after a start are not measured: code is loaded and compiled, caches are filled.
        _swap_beside(bench, bootstrap, disks, 2)
    for _ in range(CLIENT_SWAPS // 2):
        for name, bootstrap, disks in servers:
            found, without = _swap_beside(bench, bootstrap, disks, 2)
            longest[name] += found
            idle[name] += without
    lines = []
    for what, table in (("within 50 ms of a swap, median", longest), ("without a move, median", idle)):
        ours, theirs = statistics.median(table["rehome"]), statistics.median(table["kafka"])
        lines.append(
            Figure(
                f"longest produce latency {what} of {len(table['rehome'])}",
                f"{milliseconds(ours)} (at most {milliseconds(max(table['rehome']))})",
                f"{milliseconds(theirs)} (at most {milliseconds(max(table['kafka']))}, Apache Kafka)",
                ours / theirs,
                "no worse than Kafka's" if table is longest else "",
                ours <= theirs if table is longest else None,
            )
        )
    return lines


def _swap_beside(bench: Bench, bootstrap: str, disks: list[Path], count: int) -> tuple[list[float], list[float]]:
    """Move to and fro beside a producer; return the longest latencies around swaps, and around idle moments."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    swapped: list[float] = []
    quiet: list[float] = []
    try:
        with paced(bootstrap, "swaps", RATE, bench.folder / "pacer.txt") as client:
            for _ in range(count):
                time.sleep(PAUSE)
                quiet.append(time.monotonic())
                time.sleep(PAUSE)
                target = wire_moves.other_disk(disks, "swaps")
                (error,) = admin.alter_replica_log_dirs({("swaps", 0, 1): str(target)}).values()
                if error.errno:
                    raise RuntimeError(f"the move of swaps-0 was rejected: {error.__name__}")
                swapped.append(_wait_for(target / "swaps-0"))
            time.sleep(PAUSE)
    finally:
        admin.close()
    if client.errors:
        raise RuntimeError(f"{client.errors} produce requests failed during the swaps")
    return [client.longest_around(at, AROUND) for at in swapped], [client.longest_around(at, AROUND) for at in quiet]


def _wait_for(folder: Path) -> float:
    """Wait until a folder exists; return that time, which is the swap's."""
    deadline = time.monotonic() + PATIENCE
    while not folder.is_dir():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{folder} did not exist after {PATIENCE:.0f} s")
        time.sleep(LOOK)
    return time.monotonic()


def swap_lock(bench: Bench) -> list[Figure]:
    """Measure how long a hundred swaps hold the log beside a producer, without and with another copy."""
    stack = bench.stack
    for topic, size in (("locked", SIZE // 8), ("other", bench.size)):
        librdkafka.create_topic(stack.bootstrap, topic)
        librdkafka.produce(stack.bootstrap, topic, size)
    lines = []
    for what, beside in (("no other copy", False), ("one other copy", True)):
        bench.say(f"{LOCKED_SWAPS} swaps beside a producer at {RATE:.0f} requests/s, {what} ...")
        flushes: list[float] = []
        with paced(stack.bootstrap, "locked", RATE, bench.folder / "pacer.txt") as client:
            locked = sorted(asyncio.run(_locked(bench, beside, flushes)))
        if client.errors:
            raise RuntimeError(f"{client.errors} produce requests failed during the swaps")
        lines.append(
            Figure(
                f"how long a swap holds the log, {len(locked)} swaps, {what}: median, p99, worst",
                _spread(locked),
                f"{_spread(flushes)} (its five flushes by themselves)",
                statistics.median(locked) / statistics.median(flushes),
                "" if beside else f"median < {milliseconds(MEDIAN)}, worst <= {milliseconds(WORST)}",
                None if beside else statistics.median(locked) < MEDIAN and locked[-1] <= WORST,
            )
        )
    return lines


def _spread(seconds: list[float]) -> str:
    found = sorted(seconds)
    p99 = found[min(len(found) - 1, int(len(found) * 0.99))]
    return f"{milliseconds(statistics.median(found))}, {milliseconds(p99)}, {milliseconds(found[-1])}"


def _flush_alone(disks: list[Path]) -> float:
    """Return the seconds of a swap's flushes alone, without the swap's other work."""
    source, target = (disk / "bench-flushes.tmp" for disk in disks)
    for folder in (source, target):
        folder.mkdir(exist_ok=True)
    data, marker = target / "data", target / "marker"
    data.touch()
    began = time.monotonic()
    _flush(data, bytes(2048), os.fdatasync)
    _flush(marker, bytes(512), os.fsync)
    marker.rename(target / "sealed")
    for folder in (target, source.parent, target.parent):
        _flush(folder, b"", os.fsync)
    seconds = time.monotonic() - began
    for folder in (source, target):
        shutil.rmtree(folder)
    return seconds


def _flush(path: Path, more: bytes, flush: Callable[[int], None]) -> None:
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        if more:
            os.write(descriptor, more)
        flush(descriptor)
    finally:
        os.close(descriptor)


async def _locked(bench: Bench, beside: bool, flushes: list[float]) -> list[float]:
    """Swap a partition to and fro; return how long each swap held the log; `flushes` gets those of its flushes."""
    client = await Client.connect(bench.stack.temporal)
    other = asyncio.create_task(_copy_on(bench, client)) if beside else None
    try:
        runs = []
        for _ in range(LOCKED_SWAPS):
            runs.append(await _swap(bench, client, "locked"))
            flushes.append(await asyncio.to_thread(_flush_alone, bench.stack.disks))
        if other is not None and other.done():
            await other
    finally:
        if other is not None:
            other.cancel()
            await asyncio.wait([other])
    results = [await run.result() for run in runs]
    return [float(result["rows"][0]["seconds_locked"]) for result in results]


async def _copy_on(bench: Bench, client: Client) -> None:
    """Copy another partition between the two disks continuously."""
    while True:
        await _swap(bench, client, "other")


async def _swap(bench: Bench, client: Client, topic: str) -> WorkflowHandle[Any, Any]:
    """Move a partition to the other disk and wait for the swap; the source is deleted during the next move."""
    target = wire_moves.other_disk(bench.stack.disks, topic)
    parameter = {"topic": topic, "partition": 0, "node": 1, "directory": str(target)}
    run_id = f"bench/{topic}/{time.time_ns()}"
    run = await client.start_workflow(MOVE_REPLICA, parameter, id=run_id, task_queue=cluster_queue("rehome"))
    moment = asyncio.create_task(asyncio.to_thread(_wait_for, target / f"{topic}-0"))
    ended = asyncio.create_task(run.result())
    await asyncio.wait({moment, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not moment.done() and (ended.exception() or ended.result()["rows"][0]["outcome"] != Outcome.SWAPPED):
        raise RuntimeError(f"a move of {topic}-0 ended without a swap: {_why(ended)}")
    await moment
    ended.cancel()
    # Until the swap is final and reported, the replica is busy, and the node would reject the next move.
    await asyncio.sleep(SETTLE)
    return run


def _why(ended: asyncio.Task[Any]) -> object:
    """Return the root cause of a run's failure, which Temporal wraps."""
    error: BaseException | None = ended.exception()
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    return error or ended.result()
