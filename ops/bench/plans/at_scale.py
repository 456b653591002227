"""A plan of 100,000 small moves on a simulated cluster, run by the real workflows, worker and Temporal server.

`--moves` changes its size. The cluster's own work is simulated (`ops.bench.plans.simulated`); what is measured is what
carrying out a plan costs: its runs, the worker, and the requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle

from activities.plans.store import PlanStore
from ops.bench.bench import Bench
from ops.bench.plans.plan_worker import CLUSTER, MIB, PlanWorker
from ops.bench.plans.simulated import Shape
from ops.bench.plans.temporal import temporal
from ops.bench.table import Figure
from workflows.model import names
from workflows.model.plans import document
from workflows.model.plans.running import packing
from workflows.model.plans.running.following import MoveOutcome
from workflows.model.plans.running.plan_results import PlanOutcome, PlanProgress, PlanResult

#: The targets: minutes, events of any history, bytes of any payload.
MINUTES, EVENTS, PAYLOAD = 10.0, 5_000, 200_000
ALL_MOVES = 100_000
PATIENCE = 3_600.0
LOOK = 15.0
_OPTIONS = {"health_gate": True, "verify": True}


@dataclass
class Largest:
    """The longest history and the largest payload of the runs, with what they belong to."""

    runs: int = 0
    events: int = 0
    payload: int = 0
    where: str = ""

    def add(self, kind: str, events: list[HistoryEvent]) -> None:
        """Count a run's history."""
        self.runs += 1
        self.events = max(self.events, len(events))
        for event in events:
            for payload in payloads(event):
                if payload.ByteSize() > self.payload:
                    self.payload, self.where = payload.ByteSize(), f"{kind}, event {event.event_id}"


def plans_at_scale(bench: Bench) -> list[Figure]:
    """Run one plan; measure its time, histories, payloads, and the worker's memory."""
    folder = bench.folder / "plans-at-scale"
    folder.mkdir()
    bench.say(f"{bench.moves:,} moves of a simulated cluster ...")
    with temporal(folder) as address, PlanWorker(folder, address, str(bench.moves)) as worker:
        measured = asyncio.run(_run(bench, address, worker))
        requests, memory = worker.end()
    bench.say(f"requests: {requests}; load of the machine: {os.getloadavg()}")
    result, seconds, largest = measured
    what = f"plan of {bench.moves:,} moves on a simulated cluster"
    done = result.outcome == PlanOutcome.DONE and result.outcomes == {MoveOutcome.MOVED: bench.moves}
    whole = bench.moves >= ALL_MOVES
    return [
        Figure(
            f"{what}: submitted to verified",
            f"{seconds:.0f} s" + ("" if done else f", {result.outcome}: {result.outcomes}"),
            ratio=seconds / (60 * MINUTES) if whole else None,
            wanted=f"< {MINUTES:.0f} min" if whole else "",
            met=done and seconds < 60 * MINUTES if whole else None,
        ),
        Figure(
            f"the same: longest history of {largest.runs:,} runs",
            f"{largest.events:,} events",
            wanted=f"< {EVENTS:,}",
            met=largest.events < EVENTS,
        ),
        Figure(
            "the same: largest payload",
            f"{largest.payload / 1e3:,.0f} kB ({largest.where})",
            wanted=f"< {PAYLOAD / 1e3:,.0f} kB",
            met=largest.payload < PAYLOAD,
        ),
        Figure("the same: peak memory of the worker", f"{memory / MIB:,.0f} MiB"),
        Figure("the same: requests to the cluster", f"{60 * sum(requests.values()) / seconds:,.0f} a minute"),
    ]


async def _run(bench: Bench, address: str, worker: PlanWorker) -> tuple[PlanResult, float, Largest]:
    client = await Client.connect(address)
    text = document.to_text(document.read(Shape(bench.moves).plan()))
    # By its name, as beside workers that share a folder of plans.
    parameter = {"version": 1, "plan": PlanStore(worker.plans).put(text), "options": _OPTIONS}
    bench.say(f"the plan's text has {len(text):,} bytes, {len(packing.pack(text)):,} packed")
    began = time.monotonic()
    plan = await client.start_workflow(
        names.REASSIGNMENT_PLAN,
        parameter,
        id=names.plan_id(CLUSTER, "scale"),
        task_queue=names.plans_queue(CLUSTER),
        result_type=PlanResult,
    )
    watching = asyncio.create_task(_say(bench, plan, worker, began))
    try:
        result = await asyncio.wait_for(plan.result(), PATIENCE)
    finally:
        watching.cancel()
    seconds = time.monotonic() - began
    bench.say(f"phases: {result.phases}")
    largest = Largest()
    async for kind, events in _histories(client):
        largest.add(kind, events)
    return result, seconds, largest


async def _say(bench: Bench, plan: WorkflowHandle[Any, Any], worker: PlanWorker, began: float) -> None:
    while True:
        await asyncio.sleep(LOOK)
        with contextlib.suppress(Exception):
            found: PlanProgress = await plan.query("progress", result_type=PlanProgress)
            bench.say(
                f"{time.monotonic() - began:6.1f} s {found.phase} {found.outcomes}, "
                f"{len(found.lanes_running)} lanes under way, {found.lanes_left} left; {worker.used()}"
            )


async def _histories(client: Client) -> AsyncIterator[tuple[str, list[HistoryEvent]]]:
    async for run in client.list_workflows():
        handle = client.get_workflow_handle(run.id, run_id=run.run_id)
        yield run.workflow_type, [event async for event in handle.fetch_history_events()]


def payloads(message: Any) -> Iterator[Payload]:
    """Yield the payloads of a message, in any depth."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            each: Any = [one for one in value.values() if hasattr(one, "ListFields")]
        else:
            each = value if field.is_repeated else [value]
        for one in each:
            yield from payloads(one)
