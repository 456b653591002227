"""Shows the progress of replicas while a command waits: bars on a terminal, else a line every 30 seconds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from temporalio.client import Client

from ops.cli import nodes, output, waits
from ops.cli.moves import open_moves, runs, view
from ops.cli.moves.open_runs import OpenRun, OpenRuns
from ops.cli.moves.view import MoveLine
from ops.cli.target import Target
from ops.stack.errors import OpsError
from workflows.model.run_results import MoveRunResult

POLL_SECONDS = 0.5
#: Seconds between two reads of the run's step, and of whether it is paused, from the server.
SERVER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Shown:
    """The progress of one replica, as its node reports it: bytes, bytes per second, ETA in seconds (None: unknown)."""

    phase: str
    total: int = 0
    copied: int = 0
    rate: float | None = None
    eta: float | None = None
    done: bool = False


class Bars:
    """Shows a bar for each name if standard error is a terminal, else prints a line about all of them every 30 seconds.

    Use as a context manager.
    """

    def __init__(self, say: Callable[[str], None] = output.say, due: waits.Due | None = None) -> None:
        console = output.progress_console()
        self._say = say
        self._visible = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            TextColumn("{task.fields[phase]}"),
            BarColumn(),
            DownloadColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[eta]}"),
            console=console,
            disable=not self._visible,
        )
        self._tasks: dict[str, TaskID] = {}
        self._shown: dict[str, Shown] = {}
        self._due = due or waits.Due()

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._progress.__exit__(*exc)

    def show(self, name: str, now: Shown) -> None:
        """Show a replica's progress; an ended move keeps its last size."""
        if now.done and not now.total and name in self._shown:
            size = self._shown[name].total
            now = replace(now, total=size, copied=size)
        self._shown[name] = now
        if not self._visible:
            return
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=None, phase="", rate="", eta="")
        self._progress.update(
            self._tasks[name],
            total=now.total or None,
            completed=now.copied,
            phase=now.phase,
            rate=output.rate(now.rate) if now.rate else "-",
            eta=output.to_go(now.eta, now.copied, now.total),
        )

    def polled(self) -> None:
        """Finish one poll: without bars, print a line if one is due."""
        if not self._visible and self._shown and self._due():
            self._say(summary(self._shown))


def summary(shown: dict[str, Shown]) -> str:
    """Return a line about all replicas: copied and total bytes, rate, time to go."""
    values = list(shown.values())
    open_ = [each for each in values if not each.done]
    total, copied = sum(each.total for each in values), sum(each.copied for each in values)
    parts = [f"{output.size(copied)} of {output.size(total)}"]
    if rate := sum(each.rate or 0.0 for each in open_):
        parts.append(output.rate(rate))
    etas = [each.eta for each in open_ if each.copied < each.total or each.eta is None]
    known = [eta for eta in etas if eta is not None]
    if etas:
        whole = len(known) == len(etas)
        parts.append(f"{output.duration(max(known))} to go" if whole else "time to go unknown")
    phases = ", ".join(
        phase if len(open_) == 1 else f"{count} {phase}"
        for phase, count in Counter(each.phase for each in open_).items()
    )
    what = next(iter(shown)) if len(shown) == 1 else f"{len(values) - len(open_)} of {len(values)} done"
    return f"{what}: {phases + '; ' if phases else ''}{', '.join(parts)}"


async def wait_with_progress(
    client: Client, target: Target, workflow_id: str, run_id: str, parameter: dict[str, Any]
) -> MoveRunResult:
    """Wait for a run's result and show the progress of its replicas. Raises `OpsError` if the run fails."""
    result = asyncio.ensure_future(runs.result_of(client, workflow_id, MoveRunResult, run_id or None))
    follow = _Follow(client, target, OpenRun(workflow_id, run_id, parameter))
    with Bars() as bars:
        while True:
            done, _ = await asyncio.wait({result}, timeout=POLL_SECONDS)
            if done:
                return result.result()
            for line in await follow.lines():
                bars.show(f"{line.topic}-{line.partition}", of_line(line))
            bars.polled()


class _Follow:
    """Reads one run: from its node each time, and every few seconds from Temporal's server, which reports pauses."""

    def __init__(self, client: Client, target: Target, run: OpenRun) -> None:
        self._server, self._run = OpenRuns(client, target.cluster), run
        self._addresses = nodes.Addresses(target)
        self._due = 0.0

    async def lines(self) -> list[MoveLine]:
        """Return the lines of the run's replicas."""
        reported = await asyncio.to_thread(self._query)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + SERVER_SECONDS
            self._run = await self._server.one(self._run)
        return [line for line in view.join(reported, [self._run]) if line.id == self._run.workflow_id]

    def _query(self) -> view.NodeMoves:
        try:
            known = self._addresses.get()
        except OpsError:
            known = []
        wanted = view.nodes_of(self._run)
        return open_moves.query_nodes([each for each in known if each.node in wanted])


def of_line(line: MoveLine) -> Shown:
    """Return a move's line as a bar."""
    return Shown(line.phase, line.bytes_total, line.bytes_copied, line.rate, line.eta)


def by_replica(lines: Iterable[MoveLine]) -> dict[view.ReplicaKey, MoveLine]:
    """Return the lines by node and replica."""
    return {(line.node, line.topic, line.partition): line for line in lines}
