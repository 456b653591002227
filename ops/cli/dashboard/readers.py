"""Reads the sources of the live dashboard: the nodes' private API or Apache Kafka's brokers, and Temporal's server.

Each reader is used by one thread. Neither calls the controller. Moves and reassignments cost their runs no query; a
plan or a drain, whose figures no node has, is queried once in `QUERY_SECONDS`, whatever the number of viewers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from temporalio.client import Client

from activities.temporal import describing
from ops.cli import nodes
from ops.cli.dashboard.facts import BrokersFacts, NodeFacts, NodesFacts, RunFacts, TemporalFacts
from ops.cli.kafka_admin import KafkaAdmin, NodeAddress
from ops.cli.moves import open_moves, open_runs, runs, view
from ops.cli.moves.future_replicas import FutureReplicas
from ops.cli.moves.open_runs import OpenRun, OpenRuns
from ops.cli.moves.view import NodeMoves
from ops.cli.plan import runs as plan_runs
from ops.cli.reassign import polling
from ops.cli.target import Target
from ops.dashboards.live.hub import SourceFailed
from ops.stack.errors import OpsError
from workflows.model import names
from workflows.model.plans.running.plan_results import EvacuationProgress, PlanProgress

T = TypeVar("T")

#: Seconds for one response of a node: a silent one must not make the facts of the others old.
NODE_SECONDS = 2.0
#: Seconds for all requests of one read to the server, the connection included.
TEMPORAL_SECONDS = 3.0
#: Seconds between two queries of a plan or a drain, and those that one read queries at most.
QUERY_SECONDS, QUERIES = 5.0, 10
#: Seconds for the response to such a query.
RESPONSE_SECONDS = 2.0
#: Seconds for Kafka's own id, by which the plans of a cluster without a name are found, and between two requests.
ID_SECONDS, ID_PAUSE = 2.0, 30.0


class NodesReader:
    """Reads all storage nodes in parallel, and keeps what each of them reported last."""

    def __init__(self, target: Target, clock: Callable[[], float] = time.time) -> None:
        self._addresses, self._clock = nodes.Addresses(target), clock
        self._last: dict[int, NodeFacts] = {}

    def read(self) -> NodesFacts:
        """Return the newest facts of each node. Raises SourceFailed if no address is known."""
        try:
            known = self._addresses.get()
        except OpsError as error:
            raise SourceFailed(str(error)) from error
        with ThreadPoolExecutor(max_workers=max(1, len(known))) as pool:
            read = pool.map(self._one, known)
            self._last = {where.node: facts for where, facts in zip(known, read, strict=True)}
        problem = self._addresses.problem
        return NodesFacts(dict(self._last), () if problem is None else (str(problem),))

    def _one(self, where: NodeAddress) -> NodeFacts:
        last = self._last.get(where.node, NodeFacts())
        moves = open_moves.query_node(where, NODE_SECONDS)
        if isinstance(moves, OpsError):
            return NodeFacts(last.moves, last.reassignments, last.as_of, moves)
        reassignments = polling.query_node(where, seconds=NODE_SECONDS)
        if isinstance(reassignments, OpsError):
            return NodeFacts(last.moves, last.reassignments, last.as_of, reassignments)
        return NodeFacts(moves, reassignments, self._clock())

    def close(self) -> None:
        """Hold nothing."""


class BrokersReader:
    """Reads Apache Kafka's brokers through their admin API."""

    def __init__(self, target: Target) -> None:
        self._bootstrap, self._futures = target.bootstrap, FutureReplicas(target.bootstrap)

    def read(self) -> BrokersFacts:
        """Return the future replicas and the reassignments. Raises SourceFailed if no broker responds."""
        try:
            moves, notes = self._futures.read()
            with KafkaAdmin(self._bootstrap) as admin:
                return BrokersFacts(tuple(moves), polling.by_kafka(admin), tuple(notes))
        except OpsError as error:
            raise SourceFailed(str(error)) from error

    def close(self) -> None:
        """Hold nothing."""


class TemporalReader:
    """Reads the open runs. `reported` returns what the nodes report now: only the steps of other runs are read.

    `named` is the option --cluster: without a name the plans of a cluster are found by Kafka's own id, as
    `rehome plan` finds them, and by the default name as long as no broker responds.
    """

    def __init__(
        self,
        target: Target,
        reported: Callable[[], NodeMoves],
        clock: Callable[[], float] = time.time,
        named: str | None = None,
    ) -> None:
        self._target, self._reported, self._clock, self._named = target, reported, clock, named
        self._of_plans = ""
        self._id_due = 0.0
        self._session: runs.Session | None = None
        self._moves: OpenRuns | None = None
        self._reassignments: OpenRuns | None = None
        self._queried: dict[str, tuple[float, RunFacts[Any]]] = {}

    def read(self) -> TemporalFacts:
        """Return the open runs. Raises SourceFailed if the server does not respond in time."""
        if self._session is None:
            self._session = runs.Session(self._target).__enter__()
        self._find_name()
        try:
            return self._session.run(self._within)
        except OpsError as error:
            raise SourceFailed(str(error)) from error

    def _find_name(self) -> None:
        """Read the name of the cluster's plans, unless it is known or was requested shortly before."""
        if self._of_plans or not self._target.bootstrap or time.monotonic() < self._id_due:
            return
        with contextlib.suppress(OpsError):  # The page shows that no broker responds.
            self._of_plans = plan_runs.cluster_of(self._target, self._named, ID_SECONDS)
        self._id_due = time.monotonic() + ID_PAUSE

    async def _within(self, client: Client) -> TemporalFacts:
        try:
            return await asyncio.wait_for(self._read(client), TEMPORAL_SECONDS)
        except TimeoutError as error:
            raise OpsError(
                f"Temporal at {self._target.temporal_address} has not responded within {TEMPORAL_SECONDS:g} s; is it "
                "running? see: rehome stack status"
            ) from error

    async def _read(self, client: Client) -> TemporalFacts:
        cluster = self._target.cluster
        if self._moves is None or self._reassignments is None:
            self._moves = OpenRuns(client, cluster)
            self._reassignments = OpenRuns(client, cluster, names.PARTITION_REASSIGNMENT)
        reported = self._reported()
        moves: list[OpenRun] = []
        reassignments: list[OpenRun] = []
        if self._target.has_runs:
            moves = await self._moves.read(lambda run: view.lacks(run, reported), open_runs.STEPS_PER_POLL)
            reassignments = await self._reassignments.read(lambda _: False)
        of_plans = self._of_plans or cluster
        plans = [plan.workflow_id for plan in await plan_runs.listed(client, of_plans, every=False)]
        queue = names.plans_queue(of_plans)
        drains = [run.workflow_id async for run in describing.open_runs(client, queue, names.EVACUATE_DIRECTORY)]
        kinds: dict[str, type[Any]] = {
            **dict.fromkeys(plans, PlanProgress),
            **dict.fromkeys(drains, EvacuationProgress),
        }
        facts = await self._progress(client, kinds)
        return TemporalFacts(
            tuple(moves),
            tuple(reassignments),
            tuple(facts[each] for each in plans),
            tuple(facts[each] for each in drains),
        )

    async def _progress(self, client: Client, kinds: Mapping[str, type[Any]]) -> Mapping[str, RunFacts[Any]]:
        """Return the progress of plans and drains, by the type of each; those that were queried longest ago are
        queried.
        """
        self._queried = {each: self._queried.get(each, (float("-inf"), RunFacts(each))) for each in kinds}
        due = sorted((at, each) for each, (at, _) in self._queried.items() if time.monotonic() >= at + QUERY_SECONDS)

        async def one(workflow_id: str) -> None:
            found = await _in_time(plan_runs.progress_of(client, workflow_id, kinds[workflow_id]))
            last = self._queried[workflow_id][1]
            facts: RunFacts[Any] = (
                RunFacts(workflow_id, last.progress, last.as_of, silent=True)
                if found is None
                else RunFacts(workflow_id, found, self._clock())
            )
            self._queried[workflow_id] = time.monotonic(), facts

        await asyncio.gather(*(one(each) for _, each in due[:QUERIES]))
        return {each: facts for each, (_, facts) in self._queried.items()}

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.__exit__()


async def _in_time(request: Awaitable[T | None]) -> T | None:
    try:
        found = await asyncio.wait_for(request, RESPONSE_SECONDS)
    except (TimeoutError, OpsError):  # No worker serves the run, or it has ended since it was listed.
        return None
    return found
