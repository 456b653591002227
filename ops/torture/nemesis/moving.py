"""Operations on moves by Temporal's SDK and Kafka's admin API; each returns its outcome."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast
from uuid import uuid4

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError

from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.moves import runs
from ops.torture import disk
from ops.torture.checks.facts import RowFact, RunFact
from ops.torture.history import now
from ops.torture.roles import Roles
from ops.torture.temporal_calls import TemporalCalls
from storage_node.config.table import MOVE_RATE
from storage_node.model.ids import TopicPartition
from workflows.model import names
from workflows.model.run_progress import MoveProgress

T = TypeVar("T")

ANSWER_SECONDS = 10.0
UNLIMITED = 10**12
AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class ReplicaOnDisk:
    """A replica on disk."""

    node: int
    directory: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Moving:
    """Operations on moves. Blocking, thread-safe; failures raise `OpsError`."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles
        self._calls = TemporalCalls(lambda: roles.temporal_address)
        self._begun: dict[str, int] = {}
        """The node of each run that was started here: the run's id does not contain it."""

    def node_of(self, workflow_id: str) -> int:
        """Return the node on which a run moves replicas; -1 if unknown."""
        named = re.fullmatch(rf"{re.escape(self._roles.cluster)}/move/(\d+)/.+", workflow_id)
        return int(named[1]) if named else self._begun.get(workflow_id, -1)

    def replicas(self) -> list[ReplicaOnDisk]:
        """Return every replica on disk, sorted."""
        found = []
        for node in self._roles.nodes:
            for directory in self._roles.log_dirs(node):
                for folder in disk.folders(self._roles.disk(node, directory)):
                    if (place := disk.place_of(folder)) is not None:
                        found.append(ReplicaOnDisk(node, directory, *place))
        return sorted(found, key=lambda r: (r.topic, r.partition, r.node))

    def copies(self) -> list[ReplicaOnDisk]:
        """Return every copy in progress (`.move`), with its target directory."""
        found = []
        for node in self._roles.nodes:
            for directory in self._roles.log_dirs(node):
                for folder in disk.folders(self._roles.disk(node, directory)):
                    place = disk.place_of(folder.removesuffix(".move")) if folder.endswith(".move") else None
                    if place is not None:
                        found.append(ReplicaOnDisk(node, directory, *place))
        return sorted(found, key=lambda r: (r.topic, r.partition, r.node))

    # By Kafka's admin API

    def alter(self, node: int, moves: dict[tuple[str, int], str]) -> str:
        """Send AlterReplicaLogDirs; return the names of the error codes."""
        wanted = {TopicPartition(*place): directory for place, directory in moves.items()}
        with KafkaAdmin(self._roles.bootstrap, ANSWER_SECONDS) as admin:
            codes = admin.alter_log_dirs(node, wanted)
        return ", ".join(sorted({code.name for code in codes.values()}))

    def limit_node(self, node: int, rate: int) -> None:
        with KafkaAdmin(self._roles.bootstrap, ANSWER_SECONDS) as admin:
            admin.set_node_config(node, {MOVE_RATE: str(rate)})

    # By Temporal

    def start(self, replicas: list[ReplicaOnDisk], directory: str, throttle: int | None) -> str:
        """Start MoveReplica for replicas of one node; return the workflow id."""
        entries: list[dict[str, Any]] = [
            {"topic": r.topic, "partition": r.partition, "node": r.node, "directory": directory} for r in replicas
        ]
        if throttle is not None:
            entries[0]["throttle"] = throttle
        chosen = f"torture-{uuid4().hex[:8]}-{replicas[0]}"
        self._begun[chosen] = replicas[0].node

        async def work(client: Client) -> str:
            await client.start_workflow(
                names.MOVE_REPLICA,
                entries[0] if len(entries) == 1 else entries,
                id=chosen,
                task_queue=names.cluster_queue(self._roles.cluster),
                rpc_timeout=timedelta(seconds=ANSWER_SECONDS),
            )
            return chosen

        return self.temporal(work)

    def open_runs(self) -> list[str]:
        """Return the ids of the open MoveReplica runs, sorted."""

        async def work(client: Client) -> list[str]:
            query = f'WorkflowType="{names.MOVE_REPLICA}" AND ExecutionStatus="Running"'
            return sorted({run.id async for run in client.list_workflows(query)})

        return self.temporal(work)

    def cancel(self, workflow_id: str) -> str:
        async def work(client: Client) -> str:
            await client.get_workflow_handle(workflow_id).cancel(rpc_timeout=timedelta(seconds=ANSWER_SECONDS))
            return "requested"

        return self.temporal(work)

    def update(self, workflow_id: str, name: str, *arguments: Any) -> str:
        """Send an update to a run; return its result, or the reason of its rejection."""

        async def work(client: Client) -> str:
            handle = client.get_workflow_handle(workflow_id)
            try:
                return json.dumps(await asyncio.wait_for(handle.execute_update(name, args=arguments), ANSWER_SECONDS))
            except WorkflowUpdateFailedError as error:
                return f"rejected: {error.cause}"

        return self.temporal(work)

    def progress(self, workflow_id: str) -> MoveProgress:
        """Return the result of a run's `progress` query. Raises `OpsError`."""

        async def work(client: Client) -> MoveProgress:
            query = client.get_workflow_handle(workflow_id).query("progress", result_type=MoveProgress)
            return cast(MoveProgress, await asyncio.wait_for(query, ANSWER_SECONDS))

        return self.temporal(work)

    def metadata(self) -> dict[str, Any]:
        """Return the controller's state as rows."""

        async def work(client: Client) -> dict[str, Any]:
            query = client.get_workflow_handle(names.cluster_id(self._roles.cluster)).query("state")
            answer = await asyncio.wait_for(query, ANSWER_SECONDS)
            return answer if isinstance(answer, dict) else {}

        return self.temporal(work)

    def all_runs(self) -> list[RunFact]:
        """Return every MoveReplica run with its outcome."""

        async def work(client: Client) -> list[RunFact]:
            query = f'WorkflowType="{names.MOVE_REPLICA}"'
            found = [run async for run in client.list_workflows(query)]
            gate = asyncio.Semaphore(AT_ONCE)

            async def one(run: WorkflowExecution) -> RunFact:
                async with gate:
                    outcome = await _outcome(client, run.id, run.run_id, run.status)
                    return replace(
                        outcome,
                        node=self.node_of(run.id),
                        since=_monotonic(run.start_time),
                        until=_monotonic(run.close_time),
                    )

            return list(await asyncio.gather(*(one(run) for run in found)))

        return self.temporal(work, seconds=120)

    def temporal(self, work: Callable[[Client], Awaitable[T]], seconds: float = 3 * ANSWER_SECONDS) -> T:
        """Run `work` with the Temporal client. Raises `OpsError`."""
        return self._calls.call(work, seconds)


def _monotonic(at: datetime | None) -> int:
    """Convert a time of Temporal's to the clock of all events; 0 for None."""
    return 0 if at is None else now() + int((at.timestamp() - time.time()) * 1e9)


async def _outcome(client: Client, workflow_id: str, run_id: str, status: WorkflowExecutionStatus | None) -> RunFact:
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    name = status.name.lower() if status else "unknown"
    if status is WorkflowExecutionStatus.RUNNING:
        waiting = "the query failed"
        try:
            query = handle.query("progress", result_type=MoveProgress)
            progress: MoveProgress = await asyncio.wait_for(query, ANSWER_SECONDS)
            waiting = f"phase {progress.phase}, waiting for {progress.waiting_for or 'nothing'}"
            waiting += ", paused" if progress.paused else ""
        except Exception as error:  # any failure of the query is the reason that its state is unknown
            waiting = f"the query failed ({str(error) or type(error).__name__})"
        return RunFact(workflow_id, -1, name, waiting=waiting)
    reason, result = "", None
    try:
        result = await handle.result()
    except WorkflowFailureError as error:
        reason = runs.why(error)
        if isinstance(error.cause, ApplicationError) and error.cause.details:
            result = error.cause.details[0]
    rows = result.get("rows", []) if isinstance(result, dict) else []
    return RunFact(workflow_id, -1, name, reason, tuple(_row(row) for row in rows))


def _row(row: dict[str, Any]) -> RowFact:
    return RowFact(
        (str(row["topic"]), int(row["partition"])),
        str(row["outcome"]),
        str(row.get("directory", "")),
        int(row.get("generation", 0)),
        str(row.get("error", "")),
        str(row.get("message", "")),
        str(row.get("source", "")),
    )
