"""Runs of workflows without a server: activations made by hand, and what the server would make of the commands.

A run here is the SDK's own instance of it, in the sandbox, as a worker has it. What the SDK's core would send comes as
jobs; its commands are checked as the server checks them: a command that the server rejects fails the workflow
task just as an error in the workflow's code does.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.json_format import MessageToDict
from temporalio import workflow
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.activity_result import ActivityResolution
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.common import Priority, TypedSearchAttributes
from temporalio.converter import DataConverter
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

from workflows.runner import workflow_runner

QUEUE = "c"
#: The length that the server allows for a workflow's id, in bytes (limit.maxIDLength).
LONGEST_ID = 1000
#: What one payload, or one failure, may have before the server refuses the command that carries it.
LARGEST_PAYLOAD = 2 * 1024 * 1024
ENDS = (
    "complete_workflow_execution",
    "fail_workflow_execution",
    "cancel_workflow_execution",
    "continue_as_new_workflow_execution",
)


class TaskFailed(AssertionError):
    """A workflow task failed: the server would have it done again and again."""


def plain(value: Any) -> Payload:
    """A payload as a client in any language sends it: JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    return Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(value).encode())


def refused_by_server(command: WorkflowCommand) -> str:
    """Why the server would refuse a command, "" when it takes it (its checks of a task's commands)."""
    kind = command.WhichOneof("variant")
    if command.ByteSize() > LARGEST_PAYLOAD:
        return f"{kind} has {command.ByteSize()} bytes"
    if kind in ("signal_external_workflow_execution", "request_cancel_external_workflow_execution"):
        target = getattr(command, kind).workflow_execution
        if not target.workflow_id:
            return f"{kind} names no workflow"
        if len(target.workflow_id.encode()) > LONGEST_ID:
            return f"{kind} names a workflow by {len(target.workflow_id.encode())} bytes"
        if target.run_id:
            try:
                uuid.UUID(target.run_id)
            except ValueError:
                return f"{kind} names the run {target.run_id!r}, which is no UUID"
    if kind == "start_child_workflow_execution":
        name = command.start_child_workflow_execution.workflow_id
        if not name or len(name.encode()) > LONGEST_ID:
            return f"{kind} names a workflow by {len(name.encode())} bytes"
    return ""


def _made(runner: WorkflowRunner, details: WorkflowInstanceDetails) -> WorkflowInstance:
    """A worker makes instances on its event loop, and activates them elsewhere."""

    async def make() -> WorkflowInstance:
        return runner.create_instance(details)

    with asyncio.Runner() as loop:
        return loop.run(make())


class Driven:
    """One run. `send` gives it jobs and returns its commands; those without a result yet are in `open`."""

    def __init__(
        self,
        kind: type,
        *arguments: Payload,
        workflow_id: str = QUEUE,
        continued: bool = False,
        runner: WorkflowRunner | None = None,
    ) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.run_id = str(uuid.UUID(int=1))
        self.length = 3
        self.open: dict[tuple[str, int], WorkflowCommand] = {}
        self.ended: WorkflowCommand | None = None
        definition = workflow._Definition.must_from_class(kind)
        self._instance = _made(
            runner or workflow_runner(),
            WorkflowInstanceDetails(
                payload_converter_factory=DataConverter.default._new_payload_converter,
                failure_converter_class=DataConverter.default.failure_converter_class,
                interceptor_classes=[],
                defn=definition,
                info=self._info(definition.name or "", workflow_id, continued),
                randomness_seed=1,
                extern_functions={},
                disable_eager_activity_execution=False,
                worker_level_failure_exception_types=[],
                patch_activation_callback=None,
                last_completion_result=Payloads(),
                last_failure=Failure(),
            ),
        )
        start = WorkflowActivationJob()
        start.initialize_workflow.workflow_type = definition.name or ""
        start.initialize_workflow.workflow_id = workflow_id
        start.initialize_workflow.arguments.extend(arguments)
        self.started = self.send(start)

    def _info(self, name: str, workflow_id: str, continued: bool) -> workflow.Info:
        return workflow.Info(
            attempt=1,
            continued_run_id=str(uuid.UUID(int=2)) if continued else None,
            cron_schedule=None,
            execution_timeout=None,
            first_execution_run_id=self.run_id,
            headers={},
            namespace="default",
            original_execution_run_id=self.run_id,
            parent=None,
            root=None,
            raw_memo={},
            retry_policy=None,
            run_id=self.run_id,
            run_timeout=None,
            search_attributes={},
            start_time=self.now,
            workflow_start_time=self.now,
            task_queue=QUEUE,
            task_timeout=timedelta(seconds=10),
            typed_search_attributes=TypedSearchAttributes.empty,
            workflow_id=workflow_id,
            workflow_type=name,
            priority=Priority.default,
        )

    def send(self, *jobs: WorkflowActivationJob) -> list[WorkflowCommand]:
        """One activation with these jobs. Raises TaskFailed."""
        act = WorkflowActivation(
            run_id=self.run_id, history_length=self.length, jobs=jobs, available_internal_flags=[2]
        )
        act.timestamp.FromDatetime(self.now)
        self.length += len(jobs)
        completion = self._instance.activate(act)
        if completion.HasField("failed"):
            raise TaskFailed(completion.failed.failure.message)
        commands = list(completion.successful.commands)
        for command in commands:
            if why := refused_by_server(command):
                raise TaskFailed(f"the server refuses a command: {why}")
            kind = command.WhichOneof("variant") or ""
            held = getattr(command, kind)
            if kind in ENDS:
                self.ended = command
            elif hasattr(held, "seq") and not kind.startswith(("cancel", "request_cancel_activity")):
                self.open[kind, held.seq] = command
            elif kind == "cancel_timer":
                self.open.pop(("start_timer", held.seq), None)
        return commands

    # --- jobs

    @staticmethod
    def signal(name: str, *payloads: Payload) -> WorkflowActivationJob:
        """A signal."""
        job = WorkflowActivationJob()
        job.signal_workflow.originating_event_id = 5
        job.signal_workflow.signal_name = name
        job.signal_workflow.input.extend(payloads)
        return job

    @staticmethod
    def update(name: str, *payloads: Payload, validate: bool = True, number: int = 0) -> WorkflowActivationJob:
        """An update, with an id of its own unless it has a `number`."""
        job = WorkflowActivationJob()
        job.do_update.id = job.do_update.protocol_instance_id = (
            uuid.UUID(int=number).hex if number else uuid.uuid4().hex
        )
        job.do_update.name = name
        job.do_update.run_validator = validate
        job.do_update.input.extend(payloads)
        return job

    @staticmethod
    def cancel() -> WorkflowActivationJob:
        """A cancel of the run."""
        job = WorkflowActivationJob()
        job.cancel_workflow.reason = "enough"
        return job

    def query(self, name: str, *payloads: Payload) -> Any:
        """Return a query's result. Raises AssertionError when it fails."""
        job = WorkflowActivationJob()
        job.query_workflow.query_id = "q"
        job.query_workflow.query_type = name
        job.query_workflow.arguments.extend(payloads)
        (command,) = self.send(job)
        result = command.respond_to_query
        assert result.HasField("succeeded"), result.failed.message
        return json.loads(result.succeeded.response.data)

    # --- results of the run's commands

    def resolve(self, answers: Mapping[str, Callable[[Any], Any]], *, timers: bool = False) -> list[WorkflowCommand]:
        """Resolve, in one activation, what is open: activities by name (a result, or None to leave them), and whatever
        was signalled, cancelled or started, which succeeds; with `timers`, those fire too.
        """
        jobs = [job for job in (self._job(*each, answers, timers) for each in list(self.open.items())) if job]
        return self.send(*jobs) if jobs else []

    def _job(
        self,
        key: tuple[str, int],
        command: WorkflowCommand,
        answers: Mapping[str, Callable[[Any], Any]],
        timers: bool,
    ) -> WorkflowActivationJob | None:
        kind, seq = key
        job = WorkflowActivationJob()
        if kind == "schedule_activity":
            held = command.schedule_activity
            make = answers.get(held.activity_type)
            result = make(json.loads(held.arguments[0].data)) if make is not None else None
            if result is None:
                return None
            job.resolve_activity.seq = seq
            job.resolve_activity.result.CopyFrom(
                result if isinstance(result, ActivityResolution) else completed(result)
            )
        elif kind == "start_timer":
            if not timers:
                return None
            self.now += command.start_timer.start_to_fire_timeout.ToTimedelta()
            job.fire_timer.seq = seq
        elif kind == "signal_external_workflow_execution":
            job.resolve_signal_external_workflow.seq = seq
        elif kind == "request_cancel_external_workflow_execution":
            job.resolve_request_cancel_external_workflow.seq = seq
        elif kind == "start_child_workflow_execution":
            job.resolve_child_workflow_execution_start.seq = seq
            job.resolve_child_workflow_execution_start.succeeded.run_id = str(uuid.UUID(int=seq))
            self.open["child", seq] = command
        else:
            return None
        del self.open[key]
        return job


def completed(result: Any) -> ActivityResolution:
    """An activity that came to an end."""
    resolution = ActivityResolution()
    resolution.completed.result.CopyFrom(plain(result))
    return resolution


def signals_in(commands: Iterable[WorkflowCommand]) -> list[tuple[str, str, Sequence[Any]]]:
    """The signals among commands: the run they go to, their name, their arguments."""
    return [
        (held.workflow_execution.workflow_id, held.signal_name, [json.loads(each.data) for each in held.args])
        for held in (each.signal_external_workflow_execution for each in commands)
        if held.signal_name
    ]


def rejections(commands: Iterable[WorkflowCommand]) -> list[dict[str, Any]]:
    """The failures by which updates were refused."""
    return [
        MessageToDict(each.update_response.rejected)
        for each in commands
        if each.HasField("update_response") and each.update_response.HasField("rejected")
    ]
