"""A workflow's code in the SDK's own workflow instance, one workflow task at a time, and what a server does about its
commands, held in memory. The test decides what comes with which task; there is no server.

What it keeps to: an update's id is known within one run; child starts, signals and cancels are carried out some time
after the task that gave them, and not at all once their run is closed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.bridge.proto.child_workflow import StartChildWorkflowExecutionFailedCause as Cause
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.common import Priority, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.converter import DataConverter
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails

CONVERTER = DataConverter.default
START = datetime(2026, 11, 20, tzinfo=UTC)
_TASK_EVENTS = 3  # scheduled, started, completed
#: "All jobs of a task before workflow code runs", as our workers have it.
_FLAGS = [2]


_REMOVE = WorkflowActivationJob()
_REMOVE.remove_from_cache.SetInParent()


def payload(value: Any) -> Payload:
    return CONVERTER.payload_converter.to_payloads([value])[0]


def plain(found: Payload) -> Any:
    """The JSON of a payload."""
    return json.loads(found.data)


@dataclass(frozen=True)
class Sent:
    """A child start, a signal or a cancel that the server has carried out; `name` is the workflow's type, the signal's
    name, or "".
    """

    kind: str
    workflow_id: str
    run_id: str = ""
    name: str = ""
    content: Any = None
    replaces: bool = False  # a start that ends the run of this id that is open
    once: bool = False  # a start that the server rejects where a run has had this id, open or closed


@dataclass(frozen=True)
class TaskDone:
    """A workflow task of a run: the jobs that it brought, when, and the commands that came of it."""

    jobs: tuple[WorkflowActivationJob, ...]
    length: int
    now: float
    commands: tuple[WorkflowCommand, ...]

    @property
    def updates_only(self) -> bool:
        """Whether it brought updates and nothing else: the history has no event for it before it has ended."""
        return all(job.HasField("do_update") for job in self.jobs)


class DrivenRuns:
    """The chain of runs of one workflow.

    Jobs are collected by `update`, `signal`, `carry_out`, `finish` and `fire`; `task` gives all of them to the run at
    once. `do` does an activity: it gets its type and parameter, and returns the result. Every run draws its own ids,
    other chains those of another `seed`.
    """

    def __init__(
        self,
        kind: type,
        workflow_id: str,
        parameter: Any,
        do: Callable[[str, Any], Any] = lambda _type, _call: None,
        seed: int = 0,
    ) -> None:
        self._kind, self._id, self._do, self._seed = kind, workflow_id, do, seed
        self.now = 0.0
        self.answers: dict[str, list[Any]] = {}
        """By update id the responses of the run, or for a repeated id the server's."""
        self.sent: list[Sent] = []
        self.dropped: list[Sent] = []
        """Given to the server by a run that closed before they were carried out."""
        self.open: set[str] = set()
        self.begun: set[str] = set()
        """The runs that have ever been started, by id."""
        self.unacknowledged = False
        """Whether child starts are carried out whose acknowledgement comes too late for their run."""
        self.repeated = 0
        """How many child starts were rejected because their run has been started before."""
        self.carried: list[Any] = []
        """What each run began with."""
        self.timers_left = 0
        """Timers of runs that continued as new: each of them might have fired just then."""
        self.largest = 0
        self._begin([payload(parameter)])

    # --- what comes from outside

    def update(self, name: str, update_id: str, parameter: Any) -> None:
        if update_id in self._updates:
            if self._updates[update_id] is not None:
                self.answers.setdefault(update_id, []).append(self._updates[update_id])
            return
        self._updates[update_id] = None
        job = WorkflowActivationJob()
        job.do_update.id = job.do_update.protocol_instance_id = update_id
        job.do_update.name, job.do_update.run_validator = name, True
        job.do_update.input.append(payload(parameter))
        self._jobs.append(job)

    def signal(self, name: str, parameter: Any) -> None:
        job = WorkflowActivationJob()
        job.signal_workflow.signal_name = name
        job.signal_workflow.originating_event_id = self._length
        job.signal_workflow.input.append(payload(parameter))
        self._jobs.append(job)

    # --- what the server does

    @property
    def outbound(self) -> int:
        """How many child starts, signals and cancels the server has yet to carry out."""
        return len(self._outbound)

    def carry_out(self, count: int) -> None:
        """The first ones of these."""
        due, self._outbound = self._outbound[:count], self._outbound[count:]
        for seq, one in due:
            job = WorkflowActivationJob()
            if one.kind == "signal":
                job.resolve_signal_external_workflow.seq = seq
            elif one.kind == "cancel":
                job.resolve_request_cancel_external_workflow.seq = seq
            else:
                found = job.resolve_child_workflow_execution_start
                found.seq = seq
                if self._taken(one):
                    self.repeated += one.once
                    found.failed.workflow_id, found.failed.workflow_type = one.workflow_id, one.name
                    found.failed.cause = Cause.START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_WORKFLOW_ALREADY_EXISTS
                    self._jobs.append(job)
                    continue
                found.succeeded.run_id = f"{one.workflow_id}/run"
                self.open.add(one.workflow_id)
                self.begun.add(one.workflow_id)
            self.sent.append(one)
            self._jobs.append(job)

    def _taken(self, start: Sent) -> bool:
        return start.workflow_id in (self.begun if start.once else self.open) and not start.replaces

    def _too_late(self) -> None:
        """What the server makes of commands whose run is closed: it drops them; or, `unacknowledged`, it has carried
        out child starts just before, and no run learns of it.
        """
        for _, one in self._outbound:
            if self.unacknowledged and one.kind == "start" and not self._taken(one):
                self.open.add(one.workflow_id)
                self.begun.add(one.workflow_id)
                self.sent.append(one)
            else:
                self.dropped.append(one)

    def finish(self) -> None:
        """All activities under way."""
        for seq, (kind, call) in self._activities.items():
            job = WorkflowActivationJob()
            job.resolve_activity.seq = seq
            job.resolve_activity.result.completed.result.CopyFrom(payload(self._do(kind, call)))
            self._jobs.append(job)
        self._activities = {}

    def fire(self) -> bool:
        """Let time pass until the next timer; False when there is none."""
        if not self._timers:
            return False
        seq = min(self._timers, key=lambda each: (self._timers[each], each))
        self.now = max(self.now, self._timers.pop(seq))
        job = WorkflowActivationJob()
        job.fire_timer.seq = seq
        self._jobs.append(job)
        return True

    @property
    def idle(self) -> bool:
        """Whether there is nothing to give a task for."""
        return not self._jobs

    def task(self) -> bool:
        """Give a workflow task to the run, with all that has come; return whether it has continued as new."""
        jobs, self._jobs = self._jobs, []
        if not jobs:
            return False
        self._length += len(jobs) + _TASK_EVENTS
        commands = self._activate(*jobs)
        self.done.append(TaskDone(tuple(jobs), self._length, self.now, tuple(commands)))
        for command in commands:
            self._length += 1
            if command.HasField("continue_as_new_workflow_execution"):
                self.timers_left += len(self._timers)
                self._too_late()
                arguments = list(command.continue_as_new_workflow_execution.arguments)
                self.close()
                self._begin(arguments)
                return True
            self._take(command)
        return False

    def settle(self, rounds: int = 200) -> None:
        """Let everything that is under way come to its end."""
        for _ in range(rounds):
            self.carry_out(self.outbound)
            self.finish()
            if self.idle and not self.fire():
                return
            self.task()
        assert not self.outbound, "it does not come to an end"

    def check_joined(self) -> int:
        """Compare the open run with one that gets a task without commands together with the updates of the next task.

        A worker that begins afresh joins the two, and a later replay does not, or the other way round (sdk-rust issue
        1146): both must lead to the same commands, or no replay agrees with the history any more. Returns how many
        pairs there were.
        """
        afresh, waiting, pairs = self._make(), None, 0
        for at, task in enumerate(self.done):
            following = self.done[at + 1] if at + 1 < len(self.done) else None
            if not task.commands and waiting is None and following is not None and following.updates_only:
                waiting = task
                continue
            jobs = [*(waiting.jobs if waiting is not None else ()), *task.jobs]
            commands = self._activate(*jobs, instance=afresh, length=task.length, now=task.now)
            found, wanted = [str(each) for each in commands], [str(each) for each in task.commands]
            assert found == wanted, f"joined with the task before it, task {at} leads to other commands"
            pairs, waiting = pairs + (waiting is not None), None
        self._activate(_REMOVE, instance=afresh)
        return pairs

    def close(self) -> None:
        """Forget the run."""
        self._activate(_REMOVE)

    # --- inside

    def _begin(self, arguments: list[Payload]) -> None:
        self._outbound: list[tuple[int, Sent]] = []
        self._activities: dict[int, tuple[str, Any]] = {}
        self._timers: dict[int, float] = {}
        self._updates: dict[str, Any] = {}
        self._length = 1
        self.done: list[TaskDone] = []
        self.carried.append(plain(arguments[0]))
        self.largest = max(self.largest, len(arguments[0].data))
        self._run_id = f"run-{len(self.carried)}"
        self._instance = self._make()
        job = WorkflowActivationJob()
        start = job.initialize_workflow
        start.workflow_type, start.workflow_id = self._definition.name or "", self._id
        start.arguments.extend(arguments)
        start.randomness_seed = self._seed + len(self.carried)
        self._jobs = [job]

    @property
    def _definition(self) -> workflow._Definition:
        return workflow._Definition.must_from_class(self._kind)

    def _make(self) -> WorkflowInstance:
        at = START + timedelta(seconds=self.now)
        info = workflow.Info(
            attempt=1,
            continued_run_id=None,
            cron_schedule=None,
            execution_timeout=None,
            first_execution_run_id="run-1",
            headers={},
            namespace="default",
            original_execution_run_id=self._run_id,
            parent=None,
            root=None,
            priority=Priority.default,
            raw_memo={},
            retry_policy=None,
            run_id=self._run_id,
            run_timeout=None,
            search_attributes={},
            start_time=at,
            task_queue=self._id,
            task_timeout=timedelta(seconds=10),
            typed_search_attributes=TypedSearchAttributes.empty,
            workflow_id=self._id,
            workflow_start_time=at,
            workflow_type=self._definition.name or "",
        )
        details = WorkflowInstanceDetails(
            payload_converter_factory=CONVERTER.payload_converter_class,
            failure_converter_class=CONVERTER.failure_converter_class,
            interceptor_classes=[],
            defn=self._definition,
            info=info,
            randomness_seed=self._seed + len(self.carried),
            extern_functions={},
            disable_eager_activity_execution=False,
            worker_level_failure_exception_types=[],
            patch_activation_callback=None,
            last_completion_result=Payloads(),
            last_failure=None,
        )

        async def make() -> WorkflowInstance:  # as a worker does, on its loop
            return UnsandboxedWorkflowRunner().create_instance(details)

        return asyncio.run(make())

    def _activate(
        self,
        *jobs: WorkflowActivationJob,
        instance: WorkflowInstance | None = None,
        length: int | None = None,
        now: float | None = None,
    ) -> list[WorkflowCommand]:
        act = WorkflowActivation(
            run_id=self._run_id, history_length=self._length if length is None else length, jobs=jobs
        )
        act.available_internal_flags.extend(_FLAGS)
        act.timestamp.FromDatetime(START + timedelta(seconds=self.now if now is None else now))
        done = (instance or self._instance).activate(act)
        assert not done.HasField("failed"), f"the workflow task fails: {done.failed.failure.message}"
        return list(done.successful.commands)

    def _take(self, command: WorkflowCommand) -> None:
        kind = command.WhichOneof("variant")
        if kind == "start_timer":
            timer = command.start_timer
            self._timers[timer.seq] = self.now + timer.start_to_fire_timeout.ToTimedelta().total_seconds()
        elif kind == "cancel_timer":
            self._timers.pop(command.cancel_timer.seq, None)
        elif kind == "schedule_activity":
            work = command.schedule_activity
            self._activities[work.seq] = (work.activity_type, plain(work.arguments[0]))
        elif kind == "start_child_workflow_execution":
            child = command.start_child_workflow_execution
            replaces = child.workflow_id_reuse_policy == WorkflowIDReusePolicy.TERMINATE_IF_RUNNING
            once = child.workflow_id_reuse_policy == WorkflowIDReusePolicy.REJECT_DUPLICATE
            one = Sent("start", child.workflow_id, "", child.workflow_type, plain(child.input[0]), replaces, once)
            self._outbound.append((child.seq, one))
        elif kind == "signal_external_workflow_execution":
            signal = command.signal_external_workflow_execution
            to = signal.workflow_execution
            one = Sent("signal", to.workflow_id, to.run_id, signal.signal_name, plain(signal.args[0]))
            self._outbound.append((signal.seq, one))
        elif kind == "request_cancel_external_workflow_execution":
            to = command.request_cancel_external_workflow_execution.workflow_execution
            seq = command.request_cancel_external_workflow_execution.seq
            self._outbound.append((seq, Sent("cancel", to.workflow_id, to.run_id)))
        elif kind == "update_response":
            self._answered(command)
        elif kind != "set_patch_marker":
            raise AssertionError(f"the run gave a command that no test expects: {kind}")

    def _answered(self, command: WorkflowCommand) -> None:
        answer = command.update_response
        if answer.HasField("accepted"):
            return
        refused = answer.HasField("rejected")
        found = {"refused": answer.rejected.message} if refused else plain(answer.completed)
        self._updates[answer.protocol_instance_id] = found
        self.answers.setdefault(answer.protocol_instance_id, []).append(found)
