"""The cost of `rehome moves --watch` for the controller, with hundreds of open moves."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from temporalio.client import Client

from ops.bench import ROOT
from ops.bench.bench import Bench
from ops.bench.clients import librdkafka
from ops.bench.moves import wire_moves
from ops.bench.table import Figure
from workflows.model.names import MOVE_REPLICA, cluster_queue

MOVES = 500
SIZE = 200_000
#: Bytes per second of one copy: none ends during the measurement.
RATE = 500
#: Seconds of a measurement, and seconds before it for the cluster to become idle.
WINDOW, SETTLE = 15.0, 15.0
#: The target: the controller's CPU for watching, as a share of a core.
SHARE = 0.05
TOPIC = "looked-at"


def looking(bench: Bench) -> list[Figure]:
    """Measure the controller's CPU with 500 runs of one replica each, with `rehome moves --watch` and without."""
    stack = bench.stack
    bench.say(f"{MOVES} moves in progress, and rehome moves --watch ...")
    librdkafka.create_topic(stack.bootstrap, TOPIC, partitions=MOVES)
    wire_moves.fill(stack.bootstrap, TOPIC, SIZE, value=10_000, batch=1_000_000, partitions=MOVES)
    ids = asyncio.run(_start(stack.temporal, stack.disks))
    try:
        while not _begun(stack.disks):
            time.sleep(0.5)
        time.sleep(SETTLE)
        controller = psutil.Process(stack.pid("controller"))
        alone = _share(controller)
        with _watched(stack.folder):
            time.sleep(SETTLE / 4)
            seen = _share(controller)
    finally:
        asyncio.run(_end(stack.temporal, ids))
    cost = max(0.0, seen - alone)
    return [
        Figure(
            f"rehome moves --watch of {MOVES} moves: the controller's additional CPU",
            f"{100 * cost:.1f}% of a core",
            f"{100 * alone:.1f}% (without)",
            None,
            f"< {100 * SHARE:.0f}%",
            cost < SHARE,
        )
    ]


async def _start(address: str, disks: list[Path]) -> list[str]:
    client = await Client.connect(address)
    ids = []
    for partition in range(MOVES):
        directory = wire_moves.other_disk(disks, TOPIC, partition)
        move = {"topic": TOPIC, "partition": partition, "node": 1, "directory": str(directory), "throttle": RATE}
        ids.append(f"bench/looked-at/{partition}/{time.time_ns()}")
        await client.start_workflow(MOVE_REPLICA, move, id=ids[-1], task_queue=cluster_queue("rehome"))
    return ids


def _begun(disks: list[Path]) -> bool:
    return all(any(disk.joinpath(f"{TOPIC}-{p}.move").is_dir() for disk in disks) for p in range(MOVES))


async def _end(address: str, ids: list[str]) -> None:
    client = await Client.connect(address)
    for workflow_id in ids:
        await client.get_workflow_handle(workflow_id).cancel()


@contextlib.contextmanager
def _watched(folder: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "ops.cli.main", "moves", "--watch", "--data", str(folder)]
    watching = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        yield
    finally:
        watching.kill()
        watching.wait()


def _share(process: psutil.Process) -> float:
    """Return the process' CPU over `WINDOW` seconds as a share of a core."""
    began, before = time.monotonic(), process.cpu_times()
    time.sleep(WINDOW)
    after, seconds = process.cpu_times(), time.monotonic() - began
    return (after.user + after.system - before.user - before.system) / seconds
