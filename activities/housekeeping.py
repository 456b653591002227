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
    WorkflowExecutionStatus,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from workflows.model import names

log = logging.getLogger(__name__)

WATCH = 3.0  # seconds between two looks at whether `Cluster` runs
RETENTION = timedelta(hours=720)  # histories are kept at least so long: the exports need them, and so do people
EVERY = timedelta(hours=1)  # exports


async def keep_house(client: Client, cluster: str, export_directory: str) -> None:
    """Keep all of it in order until cancelled.

    `Cluster` is started when it does not run: at first, when it was terminated, and when the database is a new one,
    which then lacks the rest as well.
    """
    rest_is_due = True
    while True:
        try:
            if not await _runs(client, names.cluster_id(cluster)):
                await _start(client, cluster)
                rest_is_due = True
            if rest_is_due:
                rest_is_due = not await _keep_rest(client, cluster, export_directory)
        except RPCError as error:
            log.warning("whether the controller's workflow runs is not known: %s", error)
        await asyncio.sleep(WATCH)


async def _start(client: Client, cluster: str) -> None:
    handle = await client.start_workflow(
        names.CLUSTER,
        {},
        id=names.cluster_id(cluster),
        task_queue=names.cluster_queue(cluster),
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=f"the controller of {cluster}",
    )
    log.info("the workflow %s of type %s was started", handle.id, names.CLUSTER)


async def _keep_rest(client: Client, cluster: str, export_directory: str) -> bool:
    """Retention and schedule; False for what is to be tried again. Without the rights for them a warning is all."""
    jobs: dict[str, Callable[[], Awaitable[None]]] = {
        "raise the namespace's retention to 30 days": lambda: raise_retention(client),
        "schedule the hourly export": lambda: ensure_export_schedule(client, cluster, export_directory),
    }
    done = True
    for doing, job in jobs.items():
        try:
            await job()
        except RPCError as error:
            log.warning("cannot %s: %s", doing, error.message)
            done = done and error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED)
    return done


async def _runs(client: Client, workflow_id: str) -> bool:
    try:
        found = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return False
        raise
    return found.status == WorkflowExecutionStatus.RUNNING


def schedule_id(cluster: str) -> str:
    """The id of the schedule that exports histories."""
    return f"{cluster}/export-schedule"


async def ensure_export_schedule(client: Client, cluster: str, directory: str) -> None:
    """Have histories exported every hour below `directory`; an existing schedule is kept, but for the folder."""
    action = ScheduleActionStartWorkflow(
        names.EXPORT_HISTORY,
        {"directory": directory},
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
