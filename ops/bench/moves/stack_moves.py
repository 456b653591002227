"""Moves on a real stack, started as MoveReplica runs, timed by their histories and the rows they return."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from workflows.model.names import MOVE_REPLICA, cluster_queue


@dataclass(frozen=True, slots=True)
class Move:
    """A completed move: seconds from the run's start to the swap in its history, and its row."""

    seconds: float
    row: dict[str, Any]


async def _run(address: str, cluster: str, move: dict[str, Any]) -> Move:
    client = await Client.connect(address)
    handle = await client.start_workflow(
        MOVE_REPLICA, move, id=f"bench/{time.time_ns()}", task_queue=cluster_queue(cluster)
    )
    result = await handle.result()
    started = swapped = 0.0
    names: dict[int, str] = {}
    async for event in handle.fetch_history_events():
        seconds = event.event_time.ToNanoseconds() / 1e9
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            started = seconds
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            names[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            done = names[event.activity_task_completed_event_attributes.scheduled_event_id]
            if done == "swap":
                swapped = seconds
    return Move(swapped - started, result["rows"][0])


def move(address: str, cluster: str, topic: str, directory: Path, *, throttle: int | None = None) -> Move:
    """Move partition 0 of `topic` on node 1 and wait until its source is deleted."""
    parameter: dict[str, Any] = {"topic": topic, "partition": 0, "node": 1, "directory": str(directory)}
    if throttle:
        parameter["throttle"] = throttle
    return asyncio.run(_run(address, cluster, parameter))


def to_and_fro(disks: list[Path], topic: str) -> tuple[Path, Path]:
    """Return the directory of partition 0, and the next one."""
    source = next(d for d in disks if (d / f"{topic}-0").is_dir())
    return source, disks[(disks.index(source) + 1) % len(disks)]


def empty_move_seconds(address: str, cluster: str, topic: str, disks: list[Path], rounds: int) -> float:
    """Return the median seconds from start to swap for a partition without records."""
    seconds = []
    for number in range(rounds + 1):
        _, target = to_and_fro(disks, topic)
        done = move(address, cluster, topic, target)
        if number:
            seconds.append(done.seconds)
    return statistics.median(seconds)
