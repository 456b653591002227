"""The controller's process maintains on the server: the run of `Cluster`, the exports' schedule, the retention."""

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

from activities.controller import cluster_run
from activities.controller.cluster_run import ClusterRun
from storage_node.asking import Backoff
from workflows import options
from workflows.model import names
from workflows.model.metadata.rules import RULES

log = logging.getLogger(__name__)

WATCH = 1.0  # seconds between two checks whether `Cluster` runs
HEALTH = 2.0  # seconds for the server to respond to a health check
RETENTION = timedelta(hours=720)  # histories are kept at least so long, for exports and operators
EVERY = timedelta(hours=1)  # exports


class Housekeeper:
    """Maintains all of these.

    `Cluster` is started if it does not run: the first time, when it was terminated, and when the database is a new one,
    which then lacks the rest as well. `renew` is called when the database may be older than before: the runs in a
    workflow worker's cache are then ahead of their histories, and it would fail their tasks for ever.
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
        """Prepare the loop; it calls `seen` with the open `Cluster` at each check."""
        self._client, self._cluster = client, cluster
        self._export_directory, self._keep_days = export_directory, keep_days
        self._renew, self._seen = renew, seen
        self._before: ClusterRun | None = None
        self._rest_is_due, self._unavailable = True, False

    async def run(self) -> None:
        """Maintain them until cancelled. Run it again if it fails: it still knows the run that it saw before."""
        while True:
            try:
                await self._look(await self._client())
            except RPCError as error:
                if not self._unavailable:
                    log.info("Temporal does not respond: %s", error)
                self._unavailable = True
            await asyncio.sleep(WATCH)

    async def _look(self, client: Client) -> None:
        await client.service_client.check_health(timeout=timedelta(seconds=HEALTH))
        run, before = await cluster_run.current(client, self._cluster), self._before
        if self._unavailable or (
            before is not None and run is not None and run.run == before.run and run.replaces(before)
        ):
            log.warning("the Temporal server was unavailable, or its database was restored: the worker is replaced")
            self._renew()
        self._before, self._unavailable = run, False
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
    """Maintain retention and schedule; return False to try again. A lack of permissions only causes a warning."""
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


async def keep_exports(
    client: Callable[[], Awaitable[Client]], cluster: str, export_directory: str, keep_days: int
) -> None:
    """Maintain the retention and the exports' schedule of a Kafka cluster's plans until cancelled."""
    backoff = Backoff()
    while True:
        done = False
        try:
            done = await _keep_rest(await client(), cluster, export_directory, keep_days)
        except RPCError as error:
            log.info("Temporal does not respond: %s", error)
        if done:
            backoff = Backoff()
        await asyncio.sleep(EVERY.total_seconds() if done else backoff.failed())


def schedule_id(cluster: str) -> str:
    """Return the id of the schedule that exports histories."""
    return f"{cluster}/export-schedule"


async def ensure_export_schedule(client: Client, cluster: str, directory: str, keep_days: int) -> None:
    """Create a schedule that exports histories every hour below `directory`, and keeps exports there for `keep_days`
    (0: for ever); of an existing schedule only the action is changed.
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
