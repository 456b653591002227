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
PAUSE = 1.0  # seconds before something the server refused is tried again
RETENTION = timedelta(hours=720)  # histories are kept at least so long: the exports need them, and so do people
EVERY = timedelta(hours=1)  # exports


async def keep_cluster_running(client: Client, cluster: str) -> None:
    """Start the `Cluster` workflow when it does not run (first start, terminated, a new database), until cancelled."""
    handle = client.get_workflow_handle(names.cluster_id(cluster))
    while True:
        try:
            if not await _runs(client, names.cluster_id(cluster)):
                await client.start_workflow(
                    names.CLUSTER,
                    {},
                    id=handle.id,
                    task_queue=names.cluster_queue(cluster),
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                    static_summary=f"the controller of {cluster}",
                )
                log.info("the workflow %s of type %s was started", handle.id, names.CLUSTER)
        except RPCError as error:
            log.warning("whether the controller's workflow runs is not known: %s", error)
        await asyncio.sleep(WATCH)


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


async def keep_house(client: Client, cluster: str, export_directory: str) -> None:
    """Retention and schedule, tried until both are there. Without the rights for them a warning is all that happens."""
    jobs: dict[str, Callable[[], Awaitable[None]]] = {
        "raise the namespace's retention to 30 days": lambda: raise_retention(client),
        "schedule the hourly export": lambda: ensure_export_schedule(client, cluster, export_directory),
    }
    for doing, job in jobs.items():
        while True:
            try:
                await job()
                break
            except RPCError as error:
                log.warning("cannot %s: %s", doing, error.message)
                if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
                    break
            await asyncio.sleep(PAUSE)
