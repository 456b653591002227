"""MoveReplica: one replica, or a lane of replicas of one node, moves to another log directory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.workflow import ActivityHandle

from storage_node.model import fields
from storage_node.model.error_types import ErrorType
from storage_node.model.fields import BadField
from storage_node.model.moves import Event, Outcome, Phase
from workflows import cancellation, errors, handlers, options, steps, updates
from workflows.model import messages, names
from workflows.model.absence import Missed
from workflows.model.calls import MoveRow
from workflows.model.move import moves
from workflows.model.move.moves import MovingReplica, RunEnd
from workflows.model.move.parameter import ParsedMoves, parse_moves
from workflows.model.phases import PAUSED, Phases
from workflows.model.reports import MoveReport
from workflows.model.run_progress import MoveProgress
from workflows.model.run_results import Dropped, MoveRunResult, Paused, Retargeted, Sla, Throttle
from workflows.updates import Key, ReplicaUpdate, rejection


@workflow.defn(name=names.MOVE_REPLICA)
class MoveReplica:
    """create_move -> copy -> swap -> (until the source's `.delete` is due) -> delete_replica.

    A replica that is small enough for create_move to copy is swapped next. Each step's activity reads the disk first
    and does the next missing step, so that a step may be repeated whatever its last attempt did. The run checks for a
    cancel between all steps, since it may arrive together with a step's end: replicas before the swap are undone by
    cancel_move, however long the node is unavailable; replicas after the swap are in place and stay.
    """

    @workflow.init
    def __init__(self, *given: Any) -> None:
        self._problem: BadField | None = None
        self._parameter = ParsedMoves(-1, ())
        try:
            self._parameter = parse_moves(handlers.only(given))
        except BadField as problem:
            self._problem = problem
        self._replicas: dict[Key, MovingReplica] = {
            (move.topic, move.partition): MovingReplica.requested(move) for move in self._parameter.replicas
        }
        self._throttle = self._parameter.throttle
        self._paused = False
        self._updates: dict[Key, ReplicaUpdate] = {}
        self._step: ActivityHandle[Any] | None = None
        self._interrupted = False
        self._known: bool | None = None
        self._accepted = any(move.claim for move in self._parameter.replicas)
        """Whether the node accepted the moves itself, and so exists."""
        self._patient = False
        self._unavailable = False
        """Whether the node did not pick up the last step, or died in it, and has not reported since."""
        self._missed = Missed()
        self._requesting_reason: asyncio.Task[None] | None = None
        self._deaths = 0
        self._step_requested = 0.0
        """When the step in progress was requested, epoch s."""
        self._started = workflow.info().start_time.timestamp()
        self._settled: float | None = None
        """When no replica had a copy to make any more, epoch s."""
        self._phases = Phases()

    @workflow.run
    async def run(self, *given: Any) -> MoveRunResult:
        """Move the replicas.

        If no replica was moved, the run fails with the type of the first reason and the rows as details; if all were
        dropped, it ends as cancelled. An invalid parameter fails with InvalidPlan and the path of the bad field.
        """
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        while (phase := self._next()) is not None:
            if self._paused and phase in (Phase.COPYING, Phase.SWAPPING):
                self._phases.enter(PAUSED, workflow.time())
                await cancellation.uncancelled(
                    workflow.wait_condition(lambda: not self._paused or bool(self._open_updates()))
                )
            elif phase == Phase.DELETE_DELAY:
                await self._until_due()
            else:
                self._phases.enter(phase, workflow.time())
                await self._do(phase)
        self._phases.enter(None, workflow.time())
        await cancellation.handlers_finished()
        return await self._end()

    # --- the next step

    def _next(self) -> Phase | None:
        """Apply a cancel and the requests of updates, then return the phase whose step is next, None at the end."""
        if cancellation.requested():
            for key, replica in self._replicas.items():
                self._replicas[key] = replica.on(Event.CANCEL)
        for key, update in self._open_updates().items():
            replica = self._replicas[key]
            if not replica.phase.before_swap:
                self._updates[key] = replace(
                    update, taken=True, rejected=f"{key[0]}-{key[1]} is {replica.phase}: it is too late to change it."
                )
                continue
            self._updates[key] = replace(update, taken=True)
            event = Event.DROP if update.directory is None else Event.RETARGET
            self._replicas[key] = replica.on(event, directory=update.directory or "")
        phase = moves.next_phase(self._replicas.values())
        before_delete = phase in (None, Phase.DELETE_DELAY, Phase.DELETING)
        if before_delete and self._settled is None:
            self._settled = workflow.time()
        return phase

    def _in(self, *phases: Phase) -> list[MovingReplica]:
        return [replica for replica in self._replicas.values() if replica.phase in phases]

    def _open_updates(self) -> dict[Key, ReplicaUpdate]:
        return {key: update for key, update in self._updates.items() if not update.taken}

    # --- steps

    async def _until_due(self) -> None:
        due = max(replica.due for replica in self._in(Phase.DELETE_DELAY))
        if (left := due - workflow.time()) > 0:
            self._phases.enter(Phase.DELETE_DELAY, workflow.time())
            await cancellation.uncancelled(workflow.sleep(timedelta(seconds=left), summary="until the .delete is due"))
        if workflow.time() >= due:
            for replica in self._in(Phase.DELETE_DELAY):
                self._replicas[replica.key] = replica.on(Event.DELETE_DUE)

    async def _do(self, phase: Phase) -> None:
        """Run one step for all replicas in this phase."""
        group = self._in(phase)
        self._interrupted = False
        self._step_requested = workflow.time()
        self._step = steps.start_step(
            phase,
            self._parameter.node,
            group,
            self._throttle,
            self._reason(phase),
            patient=self._patient,
            accepted=self._accepted,
            report_deaths=self._deaths < options.DEAD_ATTEMPTS_REPORTED,
        )
        outcome: list[MoveRow] | steps.Stopped
        try:
            outcome = steps.rows_of(phase, self._parameter.node, await self._step, group)
        except ActivityError as failure:
            outcome = steps.rows_after(failure, group, interrupted=self._interrupted or cancellation.requested())
            self._keep(steps.facts_of(failure, group))
        except asyncio.CancelledError:
            # The cancel arrived together with the step's result: the next step finds on disk what this one has done.
            if not (cancellation.requested() or self._interrupted):
                raise
            outcome = steps.Stopped()
        finally:
            self._step = None
        self._unavailable = isinstance(outcome, steps.Stopped) and (outcome.unclaimed or outcome.died)
        if self._unavailable:
            self._miss()
        else:
            self._heard()
        if isinstance(outcome, list):
            self._apply(outcome, group)
        elif outcome.died:
            self._deaths += 1
        elif outcome.unclaimed and not await self._node_exists():
            # A node that never registered holds no copy: there is nothing to undo.
            cluster = workflow.info().task_queue
            message = f"Node {self._parameter.node} is not known to cluster {cluster}; name one that has registered."
            if phase == Phase.CANCELLING:
                self._apply([replace(each.row, outcome=Outcome.CANCELLED) for each in group], group)
            else:
                self._apply(moves.failed_rows(group, ErrorType.UNKNOWN_NODE, message), group)

    def _reason(self, phase: Phase) -> str:
        return (
            (workflow.cancellation_reason() or "cancelled" if cancellation.requested() else "dropped")
            if phase == Phase.CANCELLING
            else ""
        )

    def _apply(self, rows: Sequence[MoveRow], group: Sequence[MovingReplica]) -> None:
        now = workflow.time()
        found = {(row.topic, row.partition): row for row in rows}
        for replica in (self._replicas[each.key] for each in group):
            row = found.get(replica.key)
            if row is None:
                message = f"The node returned no result for {replica.key[0]}-{replica.key[1]}; see the node's log."
                row = moves.failed_rows([replica], ErrorType.NODE_FAILURE, message)[0]
            event = replica.event_of(row)
            if event is Event.TARGET_REJECTED and (update := self._updates.get(replica.key)) is not None:
                self._updates[replica.key] = replace(update, rejected=row.message, kind=row.error)
            self._replicas[replica.key] = replica.on(event, now, row=row)

    def _keep(self, facts: dict[Key, MoveRow]) -> None:
        """Add the facts of an interrupted step; its outcome stays open."""
        for key, row in facts.items():
            self._replicas[key] = self._replicas[key].interrupted(row)

    async def _node_exists(self) -> bool:
        """Request from the controller whether the node has ever registered; unless it responds that it has not, the run
        waits for the node from then on.
        """
        if self._accepted:
            self._patient = True
            return True
        self._known = None
        try:
            await self._locate()
            await workflow.wait_condition(lambda: self._known is not None, timeout=options.LOCATE_TIMEOUT)
        except (TimeoutError, ApplicationError):
            workflow.logger.warning(
                "The controller has not responded whether node %d exists: the run waits for the node",
                self._parameter.node,
            )
        except asyncio.CancelledError:
            if not cancellation.requested():
                raise
            return True
        self._patient = self._known is not False
        return self._patient

    async def _locate(self) -> None:
        """Request the node's state from the controller, which responds with the signal `located`."""
        info = workflow.info()
        request = {"node": self._parameter.node, "workflow_id": info.workflow_id, "run_id": info.run_id}
        await workflow.get_external_workflow_handle(names.cluster_id(info.task_queue)).signal("locate", request)

    # --- a node that does not report

    def _miss(self) -> None:
        """Note that the node did not pick up a step, or died in it, and request the reason from the controller."""
        if not self._missed.now:
            heard = max(replica.last_report for replica in self._replicas.values())
            self._missed.begin(max(heard, self._step_requested))
            self._requesting_reason = asyncio.create_task(self._request_reason())

    async def _request_reason(self) -> None:
        for pause in options.REQUEST_REASON_AFTER:
            await workflow.sleep(pause, summary="until the controller may know why the node is unavailable")
            try:
                await self._locate()
            except ApplicationError:
                workflow.logger.info(
                    "No controller runs that could report why node %d is unavailable", self._parameter.node
                )
            if self._missed.certain:
                return

    def _heard(self) -> None:
        """Note that the node reports again: the time without it counts for the reason that the controller gave."""
        if not self._missed.now:
            return
        if self._requesting_reason is not None:
            self._requesting_reason.cancel()
        spent = self._missed.end(workflow.time())
        for replica in self._replicas.values():
            if not replica.ended:
                self._replicas[replica.key] = replica.spent(spent)

    async def _end(self) -> MoveRunResult:
        rows = [replica.row for replica in self._replicas.values()]
        verdict = moves.verdict(rows)
        result = MoveRunResult(rows, self._sla(workflow.time()), self._phases.spans())
        if verdict.status is RunEnd.FAILED:
            raise ApplicationError(fields.shown(verdict.message), result, type=verdict.error, non_retryable=True)
        if verdict.status is RunEnd.CANCELLED:
            await cancellation.request_own()
            raise CancelledError("All replicas were dropped.")
        return result

    def _sla(self, now: float) -> Sla:
        return moves.sla(self._replicas.values(), self._parameter.sla_seconds, self._started, self._settled, now)

    # --- what operators, the node and the controller send meanwhile

    @workflow.query(description="Phase, bytes, rate and ETA of the run and of every replica")
    def progress(self) -> MoveProgress:
        """Return how far the run is; of copies the node's last report, and its age."""
        clock = time.time()  # Of the worker: the run's own clock only advances with its workflow tasks.
        waiting_for = self._waiting_for(clock)
        rows = [
            moves.progress(replica, clock, waiting_for, self._paused, self._missed.absence)
            for replica in self._replicas.values()
        ]
        total, done = sum(row.bytes_total for row in rows), sum(row.bytes_copied for row in rows)
        copying = [row for row in rows if row.phase == Phase.COPYING]
        rate, growth = sum(row.rate for row in copying), sum(row.append_rate for row in copying)
        held = moves.run_stall(rows)
        return MoveProgress(
            workflow_id=workflow.info().workflow_id,
            node=self._parameter.node,
            phase=self._phases.current,
            waiting_for=waiting_for,
            paused=self._paused,
            cancelling=cancellation.requested(),
            throttle=self._throttle,
            bytes_total=total,
            bytes_copied=done,
            rate=rate,
            eta_seconds=moves.eta(total, done, rate, growth, "" if held is None else held.stall),
            stall=held.stall if held else "",
            stall_message=held.stall_message if held else "",
            started=self._started,
            sla=self._sla(clock),
            replicas=rows,
            phases=self._phases.spans(),
        )

    def _waiting_for(self, clock: float) -> str:
        """Return the node if its next report or step is overdue, else ""."""
        copies = self._replicas.values() if self._step is not None else ()
        if self._unavailable or any(replica.silent(self._step_requested, clock) for replica in copies):
            return f"node {self._parameter.node}"
        return ""

    @handlers.signal(messages.move_reports, description="The node reports the progress of its copies")
    def copy_progress(self, rows: list[MoveReport]) -> None:
        """Keep live values for `progress`; reports for an earlier target are ignored."""
        self._unavailable = False
        self._heard()
        for row in rows:
            replica = self._replicas.get((row.topic, row.partition))
            if (
                replica is not None
                and replica.phase == Phase.COPYING
                and row.directory in (None, replica.move.directory)
            ):
                self._replicas[replica.key] = replica.reported(row, workflow.time())

    @handlers.signal(messages.located, description="The controller responds whether a node is known and fenced")
    def located(self, response: dict[str, Any]) -> None:
        """Note the response to `locate`."""
        self._known = bool(response.get("known"))
        self._missed.learn(response)

    @workflow.update(description="Stop copying; what is on disk stays")
    async def pause(self, *given: Any) -> Paused:
        """Respond once no step is running. The memo, which the server lists, shows that the run is paused."""
        self._paused = True
        workflow.upsert_memo({PAUSED: True})
        await self._interrupt()
        return Paused(self._paused)

    @pause.validator
    def _may_pause(self, *given: Any) -> None:
        updates.checked(lambda: handlers.nothing(given))
        self._needs_open_run()
        updates.may_pause(self._paused)

    @workflow.update(description="Resume a paused run")
    async def resume(self, *given: Any) -> Paused:
        """Start the next step at once."""
        self._paused = False
        workflow.upsert_memo({PAUSED: None})
        return Paused(False)

    @resume.validator
    def _may_resume(self, *given: Any) -> None:
        updates.checked(lambda: handlers.nothing(given))
        updates.may_resume(self._paused)

    @workflow.update(description="Limit this run: {rate: bytes/s, a size such as 20MB, or null}")
    async def set_throttle(self, *given: Any) -> Throttle:
        """Set the limit; a copy in progress continues from where it is."""
        rate = updates.rate_of(handlers.only(given))
        if rate != self._throttle:
            self._throttle = rate
            if self._in(Phase.COPYING):
                await self._interrupt()
        return Throttle(self._throttle)

    @set_throttle.validator
    def _may_set_throttle(self, *given: Any) -> None:
        self._needs_open_run()
        updates.checked(lambda: updates.rate_of(handlers.only(given)))

    @workflow.update(description="Move one replica to another directory instead: {topic, partition, directory}")
    async def set_target(self, *given: Any) -> Retargeted:
        """Respond once the `.move` in the new directory exists. Fails with TooLate if the replica was swapped before,
        or with the node's reason for rejecting the directory: the move then continues to the previous one.
        """
        (update,) = given
        key = updates.replica_of(update, self._replicas, "directory")
        directory = updates.directory_of(update)
        await self._apply_update(key, ReplicaUpdate(directory), lambda replica: replica.phase != Phase.CREATING)
        return Retargeted(*key, directory)

    @set_target.validator
    def _may_set_target(self, *given: Any) -> None:
        update = updates.checked(lambda: handlers.only(given))
        key = updates.checked(lambda: updates.replica_of(update, self._replicas, "directory"))
        directory = updates.checked(lambda: updates.directory_of(update))
        self._may_be_updated(key)
        if self._replicas[key].move.directory == directory:
            already = f"$.directory is {directory}, which is its target already."
            raise rejection(already, ErrorType.NOTHING_TO_CHANGE)

    @workflow.update(description="Cancel the move of one replica: {topic, partition}")
    async def drop(self, *given: Any) -> Dropped:
        """Respond once its `.move` is deleted; fails with TooLate if the replica was swapped before."""
        (update,) = given
        key = updates.replica_of(update, self._replicas)
        await self._apply_update(key, ReplicaUpdate(), lambda replica: replica.phase != Phase.CANCELLING)
        return Dropped(*key, str(self._replicas[key].row.outcome or ""))

    @drop.validator
    def _may_drop(self, *given: Any) -> None:
        update = updates.checked(lambda: handlers.only(given))
        key = updates.checked(lambda: updates.replica_of(update, self._replicas))
        if self._replicas[key].phase in (Phase.CANCELLING, Phase.CANCELLED):
            raise rejection(f"{key[0]}-{key[1]} is cancelled already.", ErrorType.NOTHING_TO_CHANGE)
        self._may_be_updated(key)

    async def _apply_update(
        self, key: Key, update: ReplicaUpdate, carried_out: Callable[[MovingReplica], bool]
    ) -> None:
        self._updates[key] = update
        await self._interrupt()
        await workflow.wait_condition(lambda: self._updates[key].taken)
        await workflow.wait_condition(lambda: bool(self._updates[key].rejected) or carried_out(self._replicas[key]))
        if rejected := self._updates[key].rejected:
            raise rejection(rejected, self._updates[key].kind)

    async def _interrupt(self) -> None:
        """Cancel the step in progress, if any, and wait until it has ended; a swap that has begun completes.

        A result that the same workflow task delivered is applied first: a cancel would discard it.
        """
        step = self._step
        if step is None:
            return
        await cancellation.uncancelled(workflow.wait_condition(lambda: True))
        if self._step is not step:
            return
        self._interrupted = True
        step.cancel()
        await workflow.wait_condition(lambda: self._step is not step)

    def _needs_open_run(self) -> None:
        if (
            self._problem is not None
            or cancellation.requested()
            or not any(each.phase.before_swap for each in self._replicas.values())
        ):
            raise rejection("All replicas of this run are copied or cancelled.", ErrorType.TOO_LATE)

    def _may_be_updated(self, key: Key) -> None:
        replica = self._replicas[key]
        if cancellation.requested() or not replica.phase.before_swap:
            raise rejection(f"{key[0]}-{key[1]} is {replica.phase}: it is too late to change it.", ErrorType.TOO_LATE)
        if key in self._open_updates():
            raise rejection(f"An earlier update of {key[0]}-{key[1]} is in progress; wait until it has completed.")
