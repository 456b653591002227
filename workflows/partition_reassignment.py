"""PartitionReassignment: requests the reassignment of up to fifty partitions and follows it to its end (KIP-455)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, ChildWorkflowError, FailureError

from storage_node.model import fields
from storage_node.model.error_types import ErrorType
from storage_node.model.fields import BadField
from storage_node.model.moves import MOVED, StallReason
from storage_node.model.reassignments import PartitionOutcome, ReassignmentPhase, ReplicaOutcome
from workflows import cancellation, errors, handlers, options, updates
from workflows.controller_client import ControllerClient
from workflows.model import calls, messages, names, results
from workflows.model.calls import ReassignResult
from workflows.model.move.moves import RunEnd
from workflows.model.phases import PAUSED, Phases
from workflows.model.reassignment import limits, runs
from workflows.model.reassignment.progress import NodeReports, of_run
from workflows.model.reassignment.request import parse, read_change
from workflows.model.reassignment.runs import Key, PartitionRun, PartitionView
from workflows.model.reports import ReplicaReport
from workflows.model.run_progress import ReassignmentProgress
from workflows.model.run_results import Paused, ReassignmentRunResult, Throttle
from workflows.reassigning import Handle, by_node, start_step
from workflows.updates import rejection

T = TypeVar("T")


@workflow.defn(name=names.PARTITION_REASSIGNMENT)
class PartitionReassignment:
    """request -> catch_up on the new nodes -> await_deletion on the old ones -> directories -> verify.

    The controller starts a run for changes that it has made; a run that a client starts requests the change itself. The
    metadata and the in-sync replicas complete a reassignment without the run, which only observes it, and may begin
    after its end. A cancel of the run makes the controller cancel the open reassignments; a cancel through Kafka's API
    ends the run in the same way; a later target ends a partition's row as superseded.

    A pause and a limit are throttles (KIP-73) of the replicas that are being added, which the run leases: a paused one
    fetches no more than one batch in some hours. What they have copied stays.
    """

    @workflow.init
    def __init__(self, *given: Any) -> None:
        self._problem: BadField | None = None
        self._parts: dict[Key, PartitionRun] = {}
        self._made, self._pair = False, (0, 0)
        self._throttles: Mapping[str, Any] = {}
        try:
            request = parse(handlers.only(given))
            self._made, self._pair = request.made, request.pair
            self._parts = {part.key: part for part in request.parts}
            self._throttles = request.throttles
        except BadField as problem:
            self._problem = problem
        self._started = workflow.info().start_time.timestamp()
        self._phases = Phases()
        self._changed = False
        self._cancel_now = True
        """Whether to request the cancel of open reassignments from the controller, once the run's was requested."""
        self._cancel_pause = options.CANCEL_AGAIN_AFTER
        self._following: dict[int, Handle] = {}
        self._silence = options.REQUEST_AGAIN_AFTER
        """The pause before the next step on a node whose last one failed."""
        self._controller = ControllerClient()
        self._node_reports = NodeReports()
        self._absent: Mapping[int, StallReason] = {}
        self._reached: dict[Key, list[tuple[int, str, bool]]] = {}
        self._short: dict[Key, str] = {}
        self._paused = self._holding = self._copied = False
        """Whether the run is paused, whether it holds throttles for that, and whether the replica sets are final."""
        self._limit: tuple[int | None] | None = None
        """The limit that an operator has requested and that is not held yet."""
        self._asked, self._applied = 0, 0
        """Requests for other throttles so far, and those that the controller has carried out."""

    @workflow.run
    async def run(self, *given: Any) -> ReassignmentRunResult:
        """Request the reassignment and follow it to its end.

        The run ends as cancelled if all partitions were, and fails with the type of the first reason and the rows as
        details if all failed. An invalid parameter fails with InvalidPlan and the path of the bad field.
        """
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        if not self._made:
            self._phases.enter(ReassignmentPhase.ASKING, workflow.time())
            await self._prefer()
            await self._submit()
        await self._follow_to_end()
        self._copied = True
        if self._throttles or self._holding:
            await self._shielded(self._controller.request(release={}))
            self._throttles = {}
        await self._delete_and_direct()
        self._phases.enter(ReassignmentPhase.VERIFYING, workflow.time())
        await self._verify()
        self._phases.enter(None, workflow.time())
        await cancellation.handlers_finished()
        return await self._end()

    # --- the request to the controller

    async def _prefer(self) -> None:
        """Send the preferred log directories to the nodes, before they create their replicas."""
        found = by_node({part.key: tuple(part.preferred_dirs) for part in self._open()})
        await self._shielded(self._all(self._prefer_at(node, keys) for node, keys in found.items()))

    async def _prefer_at(self, node: int, keys: list[Key]) -> None:
        try:
            result = await self._step(calls.PLACE_REPLICAS, node, keys, patient=False)
        except (ActivityError, BadField) as failure:
            workflow.logger.info(
                "Node %d may not know its preferred log directories before it creates replicas, which are then moved "
                "at the end: %s",
                node,
                failure,
            )
            return
        for row in result.rows:
            if row.outcome == ReplicaOutcome.FAILED:
                key = (row.topic, row.partition)
                self._parts[key] = self._parts[key].failed(row.error, row.message)

    async def _submit(self) -> None:
        """Request the change from the controller; partitions that it rejects fail with its message."""
        wanted = self._open()
        if cancellation.requested():
            self._parts |= {part.key: replace(part, verdict=ReplicaOutcome.CANCELLED) for part in wanted}
        elif wanted:
            rows = [[part.topic, part.partition, list(part.target), None] for part in wanted]
            response = await self._shielded(self._controller.request(rows, hold=self._throttles))
            self._pair = (int(response.get("generation", 0)), int(response.get("version", 0)))
            made = {(each.topic, each.partition): each for each in map(read_change, response.get("made", []))}
            for part, result in zip(wanted, response.get("results", []), strict=True):
                if result.get("error"):
                    message = str(result.get("message") or f"Kafka's error code {result['error']}")
                    self._parts[part.key] = part.failed(ErrorType.REASSIGNMENT_REFUSED, message)
                elif part.key in made:
                    self._parts[part.key] = part.begun(made[part.key])

    # --- until the replica set is final

    async def _follow_to_end(self) -> None:
        again = options.LOOK_AGAIN_AFTER
        while open_parts := self._open():
            self._phases.enter(ReassignmentPhase.CATCHING_UP, workflow.time())
            if cancellation.requested() and self._cancel_now:
                self._cancel_now = False
                await self._cancel(open_parts)
                continue
            if self._asked != self._applied:
                await self._shielded(self._hold(open_parts))
                continue
            self._follow(open_parts)
            self._changed = False
            patience = self._cancel_pause if cancellation.requested() else again
            try:
                await cancellation.uncancelled(workflow.wait_condition(self._something_new, timeout=patience))
            except TimeoutError:
                if cancellation.requested():
                    self._cancel_now = True
                    self._cancel_pause = min(2 * self._cancel_pause, options.LOOK_AGAIN_AFTER_MAX)
                else:
                    again = min(2 * again, options.LOOK_AGAIN_AFTER_MAX)
                    self._apply_state(
                        await self._shielded(self._controller.request((), [part.key for part in open_parts]))
                    )
        for handle in self._following.values():
            handle.cancel()

    async def _cancel(self, parts: list[PartitionRun]) -> None:
        """Request the cancel of the open reassignments. The controller rejects those that would need an unclean
        election: they continue with the reason in their rows, and the run repeats the request, after twice as long
        each time.
        """
        rows = [[part.topic, part.partition, None, list(part.target)] for part in parts]
        response = await self._shielded(self._controller.request(rows, [part.key for part in parts]))
        self._apply_state(response)
        for part, result in zip(parts, response.get("results", []), strict=False):
            if result.get("error"):
                message = str(result.get("message") or f"Kafka's error code {result['error']}")
                self._parts[part.key] = self._parts[part.key].cancel_rejected(message)

    def _something_new(self) -> bool:
        return self._changed or self._asked != self._applied or (cancellation.requested() and self._cancel_now)

    async def _hold(self, parts: list[PartitionRun]) -> None:
        """Hold the throttles that operators have requested, and release what they no longer request."""
        asked, released = self._asked, False
        if self._limit is not None:
            (rate,), self._limit = self._limit, None
            self._throttles = limits.limited(parts, rate) if rate is not None else {}
            released = rate is None
        if self._holding and not self._paused:
            released, self._holding = True, False
        if released:
            await self._controller.request(release={})
        if self._throttles:
            await self._controller.request(hold=self._throttles)
        if self._paused:
            self._holding = True
            await self._controller.request(hold=limits.paused(parts))
        self._applied = asked

    def _follow(self, parts: Iterable[PartitionRun]) -> None:
        """Start a step on each node that adds replicas, to follow them."""
        for node, keys in by_node({part.key: part.followed_at for part in parts}).items():
            if node not in self._following:
                handle = self._start(calls.CATCH_UP, node, keys)
                self._following[node] = handle
                asyncio.create_task(self._followed(node, handle))  # noqa: RUF006 - It ends with its handle.

    async def _followed(self, node: int, handle: Handle) -> None:
        try:
            self._apply(results.reassigned(await handle, node).rows)
        except ActivityError as failure:
            if not isinstance(failure.cause, CancelledError):
                await self._silenced(node, f"Node {node} does not report how far it is: {failure.cause}")
        except BadField as problem:
            await self._silenced(node, results.unreadable(calls.CATCH_UP, node, problem))
        finally:
            if self._following.get(node) is handle:
                del self._following[node]
                self._node_reports.requested.pop(node, None)
            self._changed = True

    async def _silenced(self, node: int, why: str) -> None:
        """Keep in the rows why a node's step failed, and wait before the next one: the metadata completes the
        reassignment without it, and the controller reports that.
        """
        workflow.logger.warning("%s", why)
        for key, part in self._parts.items():
            if part.open and node in part.followed_at:
                self._parts[key] = replace(part, message=fields.shown(why))
        pause, self._silence = self._silence, min(2 * self._silence, options.LOOK_AGAIN_AFTER_MAX)
        with contextlib.suppress(TimeoutError):
            await cancellation.uncancelled(workflow.wait_condition(lambda: not self._open(), timeout=pause))

    def _apply_state(self, now: Mapping[str, Any]) -> None:
        """Apply the controller's state of partitions: rows as `PartitionView.row`, or [topic, partition] of a deleted
        one.
        """
        self._pair = max(self._pair, (int(now.get("generation", 0)), int(now.get("version", 0))))
        self._absent = now.get("absent", self._absent)
        for row in now.get("rows", []):
            part = self._parts.get((str(row[0]), int(row[1])))
            if part is not None:
                self._parts[part.key] = part.judged(PartitionView.of(row) if len(row) > 2 else None)
        self._changed = True

    # --- once the replica set is final

    async def _delete_and_direct(self) -> None:
        """Await deletions and move replicas to their directories, at the same time: a removed node that is unavailable
        delays no move.
        """
        clear = by_node({part.key: part.to_clear for part in self._parts.values()})
        done = [part for part in self._parts.values() if part.verdict == ReplicaOutcome.JOINED]
        preferred = by_node({part.key: tuple(part.preferred_dirs) for part in done})
        deleting = asyncio.create_task(self._delete(clear)) if clear else None
        if preferred:
            self._phases.enter(ReassignmentPhase.DIRECTING, workflow.time())
            await self._shielded(self._direct(preferred))
        if deleting is not None and not deleting.done():
            self._phases.enter(ReassignmentPhase.DELETING, workflow.time())
            await self._until_deleted(deleting)

    async def _until_deleted(self, deleting: asyncio.Task[None]) -> None:
        """Await the deletions; from a cancel on at most DELETION_PATIENCE: a disk may refuse one for ever, and the node
        needs no run to try again.
        """
        while not deleting.done():
            patience = options.DELETION_PATIENCE if cancellation.requested() else None
            try:
                await cancellation.uncancelled(workflow.wait_condition(deleting.done, timeout=patience))
            except TimeoutError:
                deleting.cancel()
        if not deleting.cancelled():
            deleting.result()

    async def _delete(self, found: Mapping[int, list[Key]]) -> None:
        """Wait until the removed nodes have deleted their data, at most DELETION_PATIENCE for one that is unavailable:
        it deletes the data by the metadata, with or without a run.
        """
        await self._all(self._delete_at(node, keys) for node, keys in found.items())

    async def _delete_at(self, node: int, keys: list[Key]) -> None:
        try:
            self._apply((await self._step(calls.AWAIT_DELETION, node, keys)).rows)
        except (ActivityError, BadField, asyncio.CancelledError) as failure:
            why = failure.cause if isinstance(failure, ActivityError) else failure
            workflow.logger.warning("Node %d has not confirmed that its data is deleted: %s", node, why)
            for key in keys:
                self._parts[key] = self._parts[key].deletion_unconfirmed(node)

    async def _direct(self, found: Mapping[int, list[Key]]) -> None:
        """Move replicas that are not in their preferred log directory (the node did not know it, or it was unavailable)
        with a run of MoveReplica.
        """
        await self._all(self._direct_at(node, keys) for node, keys in found.items())

    async def _direct_at(self, node: int, keys: list[Key]) -> None:
        try:
            rows = (await self._step(calls.PLACE_REPLICAS, node, keys, note=False)).rows
        except ActivityError as failure:
            self._missed(node, keys, fields.shown(str(failure.cause)))
            return
        except BadField as problem:
            self._missed(node, keys, results.unreadable(calls.PLACE_REPLICAS, node, problem))
            return
        held = {(row.topic, row.partition): row for row in rows}
        elsewhere: list[Key] = []
        for key in keys:
            row, wanted = held.get(key), self._parts[key].preferred_dirs[node]
            if row is not None and row.outcome == ReplicaOutcome.FAILED:
                self._missed(node, [key], row.message)
            elif row is None or row.directory != wanted:
                elsewhere.append(key)
            else:
                self._reached.setdefault(key, []).append((node, wanted, True))
        if elsewhere:
            await self._move(node, elsewhere)

    async def _move(self, node: int, keys: list[Key]) -> None:
        info = workflow.info()
        wanted = [(key, self._parts[key].preferred_dirs[node]) for key in keys]
        parameter = [calls.MoveParameter(topic, partition, node, directory) for (topic, partition), directory in wanted]
        try:
            child = await workflow.start_child_workflow(
                names.MOVE_REPLICA,
                parameter,
                id=f"{info.workflow_id}/{info.run_id[:8]}/directories/{node}",
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            )
            rows = results.moved(await child).rows
        except (ChildWorkflowError, FailureError) as failure:
            why = failure.cause.message if isinstance(failure.cause, FailureError) else str(failure)
            self._missed(node, keys, fields.shown(why))
            return
        except BadField as problem:
            self._missed(node, keys, results.unreadable(names.MOVE_REPLICA, node, problem))
            return
        ended = {(row.topic, row.partition): row for row in rows}
        for key, directory in wanted:
            row = ended.get(key)
            if row is not None and row.outcome in MOVED:
                self._reached.setdefault(key, []).append((node, directory, True))
            else:
                why = "the move returned no result for it" if row is None else row.message or str(row.outcome)
                self._missed(node, [key], why)

    def _missed(self, node: int, keys: Iterable[Key], why: str) -> None:
        for key in keys:
            directory = self._parts[key].preferred_dirs[node]
            self._reached.setdefault(key, []).append((node, directory, False))
            self._short[key] = f"The replica on node {node} is not in {directory}: {why}"

    async def _verify(self) -> None:
        """Request the final state of completed partitions from the controller; a later target does not change the
        outcome.
        """
        done = [part for part in self._parts.values() if part.verdict == ReplicaOutcome.JOINED]
        if not done:
            return
        response = await self._shielded(self._controller.request((), [part.key for part in done]))
        for row in response.get("rows", []):
            now = PartitionView.of(row) if len(row) > 2 else None
            if now is not None and now.key in self._parts:
                self._parts[now.key] = replace(
                    self._parts[now.key], replicas=now.replicas, isr=now.isr, leader=now.leader
                )

    async def _end(self) -> ReassignmentRunResult:
        for key, why in self._short.items():
            if not self._parts[key].error:
                self._parts[key] = replace(self._parts[key], error=ErrorType.DIRECTORY_NOT_REACHED, message=why)
        parts = list(self._parts.values())
        rows = [part.row(self._reached.get(part.key, ())) for part in parts]
        rows = [
            replace(row, outcome=PartitionOutcome.FAILED) if (row.topic, row.partition) in self._short else row
            for row in rows
        ]
        result = ReassignmentRunResult(rows, self._phases.spans())
        verdict = runs.verdict(parts, self._short)
        if verdict.status is RunEnd.FAILED:
            raise ApplicationError(fields.shown(verdict.message), result, type=verdict.error, non_retryable=True)
        if verdict.status is RunEnd.CANCELLED:
            await cancellation.request_own()
            raise CancelledError("All reassignments were cancelled.")
        return result

    # --- helpers

    def _open(self) -> list[PartitionRun]:
        return [part for part in self._parts.values() if part.open]

    def _start(self, activity: str, node: int, keys: list[Key], *, patient: bool = True, note: bool = True) -> Handle:
        self._node_reports.requested[node] = workflow.time()
        return start_step(activity, node, [self._parts[key] for key in keys], self._pair, patient=patient, note=note)

    async def _step(
        self, activity: str, node: int, keys: list[Key], *, patient: bool = True, note: bool = True
    ) -> ReassignResult:
        """Run a step and return its result. Raises ActivityError, and BadField if the node's result is unreadable."""
        try:
            return results.reassigned(await self._start(activity, node, keys, patient=patient, note=note), node)
        finally:
            self._node_reports.requested.pop(node, None)

    def _apply(self, rows: Iterable[calls.ReplicaRow]) -> None:
        for row in rows:
            part = self._parts.get((row.topic, row.partition))
            if part is not None:
                self._parts[part.key] = part.after(row, workflow.time())
            self._pair = max(self._pair, (row.generation, row.version))

    @staticmethod
    async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*work)

    async def _shielded(self, work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
        """See `cancellation.shielded`."""
        return await cancellation.shielded(work)

    # --- what operators, the nodes and the controller send meanwhile

    @workflow.query(description="Phase, bytes, rate and ETA of the run and of every partition")
    def progress(self) -> ReassignmentProgress:
        """Return how far the run is; of copies the nodes' last reports, and their ages."""
        clock = time.time()  # Of the worker: the run's own clock only advances with its workflow tasks.
        waiting = ["the controller"] if self._controller.unavailable else []
        silent = {node: self._absent.get(node, StallReason.UNAVAILABLE) for node in self._node_reports.silent(clock)}
        waiting += [f"node {node}" for node in silent]
        return of_run(
            list(self._parts.values()),
            self._phases,
            waiting,
            clock,
            silent,
            workflow_id=workflow.info().workflow_id,
            started=self._started,
            cancelling=cancellation.requested(),
            throttles=self._throttles,
            paused=self._paused,
        )

    @workflow.update(description="Hold the copies of the replicas that are being added; what they have copied stays")
    async def pause(self, *given: Any) -> Paused:
        """Respond once the controller has set the throttles. The memo, which the server lists, shows the pause."""
        self._paused = True
        workflow.upsert_memo({PAUSED: True})
        await self._until_held()
        return Paused(self._paused)

    @pause.validator
    def _may_pause(self, *given: Any) -> None:
        updates.checked(lambda: handlers.nothing(given))
        self._needs_open_run()
        updates.may_pause(self._paused)

    @workflow.update(description="Resume a paused run")
    async def resume(self, *given: Any) -> Paused:
        """Respond once the throttles from before the pause apply again."""
        self._paused = False
        workflow.upsert_memo({PAUSED: None})
        await self._until_held()
        return Paused(self._paused)

    @resume.validator
    def _may_resume(self, *given: Any) -> None:
        updates.checked(lambda: handlers.nothing(given))
        updates.may_resume(self._paused)

    @workflow.update(description="Limit this run on each node: {rate: bytes/s, a size such as 20MB, or null}")
    async def set_throttle(self, *given: Any) -> Throttle:
        """Respond once the controller has set the throttles; they replace those of the run's parameter."""
        rate = updates.rate_of(handlers.only(given))
        self._limit = (rate,)
        await self._until_held()
        return Throttle(rate)

    @set_throttle.validator
    def _may_set_throttle(self, *given: Any) -> None:
        self._needs_open_run()
        updates.checked(lambda: updates.rate_of(handlers.only(given)))

    async def _until_held(self) -> None:
        """Wait until the run's loop, which alone sends requests to the controller, has carried out the last request, or
        nothing is copied any more.
        """
        self._asked += 1
        mine = self._asked
        await workflow.wait_condition(lambda: self._applied >= mine or self._copied)

    def _needs_open_run(self) -> None:
        if self._problem is not None or cancellation.requested() or self._copied or not self._open():
            raise rejection("All replicas of this run are copied or cancelled.", ErrorType.TOO_LATE)

    @handlers.signal(messages.replica_reports, description="A node reports the progress of its replicas")
    def copy_progress(self, rows: list[ReplicaReport]) -> None:
        """Keep live values for `progress`."""
        now = workflow.time()
        for row in rows:
            part = self._parts.get((row.topic, row.partition))
            if part is not None:
                self._parts[part.key] = part.reported(row, now)
                self._node_reports.note(row.node, now, row.next_in)

    @handlers.signal(messages.answered, description="The controller responds to a request of the run")
    def answered(self, response: dict[str, Any]) -> None:
        """Accept {"request", "results", "made", "rows", "generation", "version"}; repeat the request on "error"."""
        self._controller.accept(response)

    @handlers.signal(messages.retargeted, description="The controller reports partitions with another target, or none")
    def retargeted(self, now: dict[str, Any]) -> None:
        """Apply {"rows", "generation", "version"}."""
        self._apply_state(now)
