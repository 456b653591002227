"""Reads a run's history and description from Temporal's server. No call reaches the run or a worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.service import RPCError

from activities.temporal import describing
from activities.temporal.describing import FoundRun, RunDescription
from ops.cli import output
from ops.cli.show.timeline import Pending, Timeline, sentence, timeline
from storage_node.model.fields import BadField
from storage_node.model.ids import TopicPartition
from workflows.model import names
from workflows.model.calls import read_row
from workflows.model.move.parameter import parse_moves
from workflows.model.plans.running import lane_request
from workflows.model.reassignment import request
from workflows.model.reports import LiveMoveRow

#: Seconds for one response of the server.
SECONDS = 5.0
#: The runs of a chain (continue-as-new) that are read, the last ones.
CHAIN = 4
#: The runs of each type that are searched for a partition, the newest ones.
SEARCHED = 200
#: Concurrent requests.
AT_ONCE = 16

#: Types of runs that move partitions, and whether they are on the queue of plans.
MOVERS = ((names.MOVE_REPLICA, False), (names.PARTITION_REASSIGNMENT, False), (names.PLAN_LANE, True))


async def read(client: Client, described: RunDescription, workflow_id: str) -> Timeline:
    """Return the timeline of a run that the server has described. Raises RPCError."""
    chain: list[Sequence[HistoryEvent]] = []
    run_id = described.run_id
    while run_id and len(chain) < CHAIN:
        events = await _events(client, workflow_id, run_id)
        if not events:  # removed after the namespace's retention
            break
        chain.insert(0, events)
        run_id = events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    pending = [await _pending(client, each) for each in described.raw.pending_activities]
    return timeline(workflow_id, chain, pending, earlier=int(bool(run_id)))


async def _events(client: Client, workflow_id: str, run_id: str) -> list[HistoryEvent]:
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    found = handle.fetch_history_events(page_size=1_000, rpc_timeout=timedelta(seconds=SECONDS))
    return [event async for event in found]


async def _pending(client: Client, raw: PendingActivityInfo) -> Pending:
    try:
        details = await client.data_converter.decode(raw.heartbeat_details.payloads)
    except Exception:  # Of another version, or encoded by a codec that this command does not have.
        details = []
    reported = details[0] if details and isinstance(details[0], list) else []
    rows = [row for one in reported if (row := read_row(LiveMoveRow, one)) is not None]
    progress = ""
    if rows:
        copied, total = sum(row.bytes_copied for row in rows), sum(row.bytes_total for row in rows)
        progress = f"{output.size(copied)} of {output.size(total)}"
    return Pending(raw.activity_type.name, int(raw.attempt), sentence(raw.last_failure), progress)


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run of a partition; times are epoch seconds, `closed` is None for an open one."""

    id: str
    run_id: str
    type: str
    status: str
    started: float
    closed: float | None

    def as_json(self) -> dict[str, Any]:
        """Return the row of --json."""
        return asdict(self)


async def runs_of(client: Client, cluster: str, of_plans: str, partition: TopicPartition) -> tuple[list[RunRow], bool]:
    """Return the runs that move a partition, the newest first, and whether all runs of the server were searched.

    They are those of the cluster's controller and, by the name `of_plans`, those of its plans. Raises RPCError.
    """
    gate = asyncio.Semaphore(AT_ONCE)
    whole = True

    async def moves(run: FoundRun) -> bool:
        async with gate:
            return partition in partitions_of(run.type, await parameter_of(client, run.workflow_id, run.run_id))

    found: list[RunRow] = []
    for kind, is_of_plans in MOVERS:
        queue = names.plans_queue(of_plans) if is_of_plans else names.cluster_queue(cluster)
        runs = [run async for run in describing.runs_of_type(client, queue, kind, SEARCHED + 1)]
        whole = whole and len(runs) <= SEARCHED
        runs = runs[:SEARCHED]
        held = await asyncio.gather(*(moves(run) for run in runs))
        found += [
            RunRow(run.workflow_id, run.run_id, run.type, run.status, run.started, run.closed)
            for run, is_mine in zip(runs, held, strict=True)
            if is_mine
        ]
    return sorted(found, key=lambda row: -row.started), whole


async def parameter_of(client: Client, workflow_id: str, run_id: str) -> Any:
    """Return a run's parameter, None for one that cannot be read."""
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    try:
        async for event in handle.fetch_history_events(page_size=1, rpc_timeout=timedelta(seconds=SECONDS)):
            payloads = event.workflow_execution_started_event_attributes.input.payloads
            return json.loads(payloads[0].data) if payloads else None
    except (RPCError, ValueError):
        return None
    return None


def partitions_of(kind: str, parameter: Any) -> set[TopicPartition]:
    """Return the partitions in the parameter of a run of one of `MOVERS`; an empty set for another type, and
    for a parameter that is not valid.
    """
    try:
        if kind == names.MOVE_REPLICA:
            return {TopicPartition(each.topic, each.partition) for each in parse_moves(parameter).replicas}
        if kind == names.PARTITION_REASSIGNMENT:
            return {TopicPartition(part.topic, part.partition) for part in request.parse(parameter).parts}
        if kind == names.PLAN_LANE:
            return {spec.move().partition for spec in lane_request.parse(parameter).moves}
    except BadField:
        pass
    return set()
