"""Progress bars while one run or a set of replicas is under way."""

from __future__ import annotations

import asyncio
from typing import Any

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from temporalio.client import Client

from ops.cli import output, runs
from ops.cli.moves_view import MoveLine, of_run

LOOK_SECONDS = 0.5


def bars() -> Progress:
    """Bars on standard error: what, phase, bytes of total, rate, time to go. Plain nothing where nobody looks."""
    console = output.progress_console()
    return Progress(
        TextColumn("{task.description}"),
        TextColumn("{task.fields[phase]}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


async def wait_with_progress(client: Client, workflow_id: str, run_id: str) -> Any:
    """Wait for a run's result, showing its own account of how far it is. A failure raises `OpsError`."""
    result = asyncio.ensure_future(runs.result_of(client, workflow_id, run_id or None))
    tasks: dict[str, TaskID] = {}
    with bars() as progress:
        while True:
            done, _ = await asyncio.wait({result}, timeout=LOOK_SECONDS)
            if done:
                return result.result()
            for run in await runs.progress_of(client, workflow_id, run_id):
                for line in of_run(run):
                    _update(progress, tasks, line)


def _update(progress: Progress, tasks: dict[str, TaskID], line: MoveLine) -> None:
    name = f"{line.topic}-{line.partition}"
    if name not in tasks:
        tasks[name] = progress.add_task(name, total=None, phase="")
    progress.update(tasks[name], total=line.bytes_total or None, completed=line.bytes_copied, phase=line.phase)
