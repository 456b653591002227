"""What the controller's process keeps in order on the server: that `Cluster` runs, the exports' schedule, retention."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, UpdateNamespaceRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities import cluster_run
from activities.cluster_run import ClusterRun
from workflows import options
from workflows.model import names
from workflows.model.rules import RULES

log = logging.getLogger(__name__)

WATCH = 1.0  # seconds between two looks at whether `Cluster` runs
HEALTH = 2.0  # seconds for the server to say that it is there
RETENTION = timedelta(hours=720)  # histories are kept at least so long: the exports need them, and so do people
EVERY = timedelta(hours=1)  # exports


class Housekeeper:
    """Keeps all of it in order.

    `Cluster` is started when it does not run: at first, when it was terminated, and when the database is a new one,
    which then lacks the rest as well. `renew` is called when the database may be an older one than before: what a
    workflow worker remembers of its runs is then of a future that never was, and it would fail their tasks for ever.
    """

    def __init__(
        self,
        client: Callable[[], Awaitable[Client]],
        cluster: str,
        export_directory: str,
        keep_days: int,
        renew: Callable[[], None],
        seen: Callable[[ClusterRun | None], None] = lambda run: None,
    ) -> None:
        """`seen` is called with the open `Cluster` at each look."""
        self._client, self._cluster = client, cluster
        self._export_directory, self._keep_days = export_directory, keep_days
        self._renew, self._seen = renew, seen
        self._before: ClusterRun | None = None
        self._rest_is_due, self._away = True, False

    async def run(self) -> None:
        """Keep house until cancelled. Run it again if it fails: it keeps what it knows of the run before."""
        while True:
            try:
                await self._look(await self._client())
            except RPCError as error:
                if not self._away:
                    log.info("Temporal does not respond: %s", error)
                self._away = True
            await asyncio.sleep(WATCH)

    async def _look(self, client: Client) -> None:
        await client.service_client.check_health(timeout=timedelta(seconds=HEALTH))
        run, before = await cluster_run.current(client, self._cluster), self._before
        if self._away or (before is not None and run is not None and run.run == before.run and run.replaces(before)):
            log.warning("the Temporal server was unavailable, or its database was restored: the worker is replaced")
            self._renew()
        self._before, self._away = run, False
        self._seen(run)
        if run is None:
            await _start(client, self._cluster)
            self._rest_is_due = True
        if self._rest_is_due:
            self._rest_is_due = not await _keep_rest(client, self._cluster, self._export_directory, self._keep_days)


async def _start(client: Client, cluster: str) -> None:
    handle = await client.start_workflow(
        names.CLUSTER,
        {"rules": RULES},
        id=names.cluster_id(cluster),
        task_queue=names.cluster_queue(cluster),
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        task_timeout=options.CLUSTER_TASK_TIMEOUT,
        priority=options.CLUSTER_PRIORITY,
        static_summary=f"the controller of {cluster}",
    )
    log.info("the workflow %s of type %s was started", handle.id, names.CLUSTER)


async def _keep_rest(client: Client, cluster: str, export_directory: str, keep_days: int) -> bool:
    """Retention and schedule; False for what is to be tried again. Without the rights for them a warning is all."""
    jobs: dict[str, Callable[[], Awaitable[None]]] = {
        "raise the namespace's retention to 30 days": lambda: raise_retention(client),
        "schedule the hourly export": lambda: ensure_export_schedule(client, cluster, export_directory, keep_days),
    }
    done = True
    for doing, job in jobs.items():
        try:
            await job()
        except RPCError as error:
            log.warning("cannot %s: %s", doing, error.message)
            done = done and error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED)
    return done


def schedule_id(cluster: str) -> str:
    """The id of the schedule that exports histories."""
    return f"{cluster}/export-schedule"


async def ensure_export_schedule(client: Client, cluster: str, directory: str, keep_days: int) -> None:
    """Have histories exported every hour below `directory`, where exports are kept for `keep_days` (0: for ever); of an
    existing schedule only this is changed.
    """
    action = ScheduleActionStartWorkflow(
        names.EXPORT_HISTORY,
        {"directory": directory, "keep_days": keep_days},
        id=names.export_id(cluster),
        task_queue=names.cluster_queue(cluster),
    )
    schedule = Schedule(
        action=action,
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=EVERY)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP),
    )

    def with_folder(found: ScheduleUpdateInput) -> ScheduleUpdate:
        kept = found.description.schedule
        kept.action = action
        return ScheduleUpdate(schedule=kept)

    try:
        await client.create_schedule(schedule_id(cluster), schedule)
    except ScheduleAlreadyRunningError:
        await client.get_schedule_handle(schedule_id(cluster)).update(with_folder)


async def raise_retention(client: Client) -> None:
    """Keep closed histories of the namespace at least 30 days; a longer retention is left as it is."""
    service = client.workflow_service
    found = await service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    wanted = Duration(seconds=int(RETENTION.total_seconds()))
    if found.config.workflow_execution_retention_ttl.seconds >= wanted.seconds:
        return
    await service.update_namespace(
        UpdateNamespaceRequest(
            namespace=client.namespace, config=NamespaceConfig(workflow_execution_retention_ttl=wanted)
        )
    )
