"""Open runs by Temporal's server: their list, their parameters, and the steps that they wait for.

No call reaches a run or its worker. A query does: the worker serves it outside of any workflow task and evicts the run
afterwards (`workflows/runner.py`), so that a page that queried every run each second would keep the controller busy
with replays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError

from activities.temporal import describing
from activities.temporal.describing import ListedRun, RunDescription
from workflows.model import names
from workflows.model.calls import read_row
from workflows.model.phases import PAUSED
from workflows.model.reports import LiveMoveRow

#: Seconds for one response of the server.
SECONDS = 3.0
#: Concurrent requests to the server.
AT_ONCE = 16
#: A command that reads repeatedly reads the step of so many runs at a time.
STEPS_PER_POLL = 20


@dataclass(frozen=True, slots=True)
class Step:
    """The step that a run waits for: an activity ("" between two steps), its attempt, its last heartbeat's rows."""

    activity: str = ""
    attempt: int = 0
    rows: tuple[LiveMoveRow, ...] = ()
    cancelling: bool = False


@dataclass(frozen=True, slots=True)
class OpenRun:
    """An open run. `parameter` and `step` are None if they were not read.

    `paused`: by the run's own update; `suspended`: by the Temporal server, which schedules no workflow task meanwhile.
    """

    workflow_id: str
    run_id: str
    parameter: Any = None
    step: Step | None = None
    paused: bool = False
    suspended: bool = False


class OpenRuns:
    """The open runs of one type, for a command that reads them once or repeatedly.

    Each call reads the list, and a run's parameter once. It reads the step only of runs that no node reports; a command
    that reads repeatedly reads some of them each time, the least recently read ones first.
    """

    def __init__(self, client: Client, cluster: str, kind: str = names.MOVE_REPLICA) -> None:
        self._client, self._cluster, self._kind = client, cluster, kind
        self._parameters: dict[str, Any] = {}
        self._steps: dict[str, tuple[int, Step]] = {}
        self._polls = 0
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def read(self, lacks: Callable[[OpenRun], bool], most: int | None = None) -> list[OpenRun]:
        """Return all open runs, with the step of those that `lacks` selects: at most `most` of them are read, the
        others are as they were read before. Raises RPCError if the server does not respond.
        """
        self._polls += 1
        listed = [run async for run in describing.open_runs(self._client, self._cluster, self._kind)]
        open_ids = {run.run_id for run in listed}
        self._parameters = {key: value for key, value in self._parameters.items() if key in open_ids}
        self._steps = {key: value for key, value in self._steps.items() if key in open_ids}
        found = list(await asyncio.gather(*(self._started(run) for run in listed)))
        wanting = sorted((run for run in found if lacks(run)), key=lambda run: self._steps.get(run.run_id, (0,))[0])
        await asyncio.gather(*(self._read_step(run) for run in wanting[:most]))
        wanted = {run.run_id for run in wanting}
        return [
            replace(run, step=self._steps[run.run_id][1]) if run.run_id in wanted and run.run_id in self._steps else run
            for run in found
        ]

    async def one(self, run: OpenRun) -> OpenRun:
        """Return a run with the step that it waits for and whether it is paused; as it was read before if the server
        does not respond.
        """
        self._polls += 1
        described = await self._read_step(run)
        run = replace(run, step=self._steps[run.run_id][1] if run.run_id in self._steps else None)
        if described is None:
            return run
        memo = described.raw.workflow_execution_info.memo.fields
        return replace(run, paused=PAUSED in memo, suspended=described.paused)

    async def _started(self, run: ListedRun) -> OpenRun:
        found = OpenRun(run.workflow_id, run.run_id, paused=PAUSED in run.memo, suspended=run.paused)
        if run.run_id not in self._parameters:
            async with self._gate:
                try:
                    self._parameters[run.run_id] = await self._parameter(run)
                except (RPCError, TimeoutError):
                    return found
        return replace(found, parameter=self._parameters[run.run_id])

    async def _parameter(self, run: ListedRun) -> Any:
        """Return the first argument in the first event of the run's history."""
        handle = self._client.get_workflow_handle(run.workflow_id, run_id=run.run_id)
        events = handle.fetch_history_events(page_size=1, rpc_timeout=timedelta(seconds=SECONDS))
        async for event in events:
            payloads = event.workflow_execution_started_event_attributes.input.payloads
            values = await self._client.data_converter.decode(payloads)
            return values[0] if values else None
        return None

    async def _read_step(self, run: OpenRun) -> RunDescription | None:
        """Record the step that a run waits for; return None if the server does not describe the run."""
        async with self._gate:
            try:
                described = await describing.describe_run(
                    self._client, run.workflow_id, run.run_id, timedelta(seconds=SECONDS)
                )
            except RPCError:
                return None
            if described is None:
                return None
            raw = described.raw
            cancelling = raw.workflow_extended_info.cancel_requested
            pending = max(raw.pending_activities, key=lambda each: each.attempt, default=None)
            if pending is None:
                self._steps[run.run_id] = self._polls, Step(cancelling=cancelling)
                return described
            details = await self._client.data_converter.decode(pending.heartbeat_details.payloads)
        reported = details[0] if details and isinstance(details[0], list) else []
        rows = tuple(row for one in reported if (row := read_row(LiveMoveRow, one)) is not None)
        step = Step(pending.activity_type.name, int(pending.attempt), rows, cancelling)
        self._steps[run.run_id] = self._polls, step
        return described


async def leased(client: Client, cluster: str) -> set[int]:
    """Return the nodes with an open lease by the server's list of runs; a fenced node has none."""
    prefix = names.lease_id(cluster, 0, "").removesuffix("0/")
    found = set()
    async for run in describing.open_runs(client, cluster, names.NODE_LEASE):
        node = run.workflow_id.removeprefix(prefix).partition("/")[0]
        if run.workflow_id.startswith(prefix) and node.isdigit():
            found.add(int(node))
    return found
