"""PartitionReassignment: a partition, or a group of them, gets other replicas; the run sees them through (KIP-455)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, ChildWorkflowError, FailureError

from workflows import cancellation, errors, handlers, options
from workflows.asking import Asking
from workflows.model import calls, fields, messages, names, results
from workflows.model import reassignment_runs as runs
from workflows.model.absence import Absence
from workflows.model.calls import ReassignResult
from workflows.model.fields import BadField
from workflows.model.moves import NEXT_REPORT
from workflows.model.phases import Phases
from workflows.model.reassignment_progress import Voices, of_run
from workflows.model.reassignment_request import parse, read_change
from workflows.model.reassignment_runs import ASKING, CATCHING_UP, DELETING, DIRECTING, VERIFYING, Key, Part, Standing
from workflows.reassigning import Handle, by_node, start_step

T = TypeVar("T")

# What runs that began before did one after the other.
AT_ONCE = "directories beside deletions"


@workflow.defn(name=names.PARTITION_REASSIGNMENT)
class PartitionReassignment:
    """ask the controller -> catch_up on the new nodes -> await_deletion on the old ones -> directories -> verify.

    Started by the controller for changes that it has made, or by anyone, and then it asks the controller itself. The
    metadata and the in-sync replicas complete a reassignment without it: the run looks on, and is right also when all
    is done before it begins. A cancel of the run has the controller cancel what is still under way; a cancel by Kafka's
    API ends the run in the same way; a later target ends a partition's row as superseded.
    """

    @workflow.init
    def __init__(self, *given: Any) -> None:
        self._problem: BadField | None = None
        self._parts: dict[Key, Part] = {}
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
        self._cancel_now = True  # the controller is to be asked as soon as the run is asked to cancel, and again
        self._cancel_pause = options.CANCEL_AGAIN_AFTER
        self._following: dict[int, Handle] = {}
        self._silence = options.ASK_AGAIN_AFTER  # how long a node is not asked whose step was of no use
        self._asking = Asking()
        self._voices = Voices()
        self._absent: Mapping[int, Absence] = {}
        self._reached: dict[Key, list[list[Any]]] = {}
        self._short: dict[Key, str] = {}

    @workflow.run
    async def run(self, *given: Any) -> dict[str, Any]:
        """Answer a row per partition and the run's phases.

        Ends cancelled when all partitions were, failed with the type of the first reason, the rows in its details, when
        nothing else came of it. A parameter that cannot be used fails with InvalidPlan and the path of the bad field.
        """
        if self._problem is not None:
            raise errors.invalid_plan(self._problem)
        if not self._made:
            self._phases.enter(ASKING, workflow.time())
            await self._prefer()
            await self._submit()
        await self._see_through()
        if self._throttles:
            await self._patiently(self._asking.ask(release={}))
            self._throttles = {}
        await self._clear_and_direct()
        self._phases.enter(VERIFYING, workflow.time())
        await self._verify()
        self._phases.enter(None, workflow.time())
        await cancellation.handlers_finished()
        return await self._end()

    # --- asking the controller

    async def _prefer(self) -> None:
        """Tell the nodes that are up which directories are asked for, before their replicas are made."""
        found = by_node({part.key: tuple(part.wishes) for part in self._open()})
        await self._patiently(self._all(self._prefer_at(node, keys) for node, keys in found.items()))

    async def _prefer_at(self, node: int, keys: list[Key]) -> None:
        try:
            result = await self._step(calls.PLACE_REPLICAS, node, keys, patient=False)
        except (ActivityError, BadField) as failure:
            workflow.logger.info("Node %d may not know of the directories beforehand: %s", node, failure)
            return
        for row in result.rows:
            if row.outcome == calls.FAILED:
                key = (row.topic, row.partition)
                self._parts[key] = self._parts[key].failed(row.error, row.message)

    async def _submit(self) -> None:
        """Have the controller make the change; what it refuses fails with its words."""
        wanted = self._open()
        if cancellation.asked():
            self._parts |= {part.key: replace(part, verdict=calls.CANCELLED) for part in wanted}
        elif wanted:
            rows = [[part.topic, part.partition, list(part.target), None] for part in wanted]
            answer = await self._patiently(self._asking.ask(rows, hold=self._throttles))
            self._pair = (int(answer.get("generation", 0)), int(answer.get("version", 0)))
            made = {(each.topic, each.partition): each for each in map(read_change, answer.get("made", []))}
            for part, result in zip(wanted, answer.get("results", []), strict=True):
                if result.get("error"):
                    message = str(result.get("message") or f"Kafka's error code {result['error']}")
                    self._parts[part.key] = part.failed(errors.REASSIGNMENT_REFUSED, message)
                elif part.key in made:
                    self._parts[part.key] = part.begun(made[part.key])

    # --- until the replica set is final

    async def _see_through(self) -> None:
        again = options.LOOK_AGAIN_AFTER
        while open_parts := self._open():
            self._phases.enter(CATCHING_UP, workflow.time())
            if cancellation.asked() and self._cancel_now:
                self._cancel_now = False
                await self._cancel(open_parts)
                continue
            self._follow(open_parts)
            self._changed = False
            patience = self._cancel_pause if cancellation.asked() else again
            try:
                await cancellation.uncancelled(workflow.wait_condition(self._something_new, timeout=patience))
            except TimeoutError:
                if cancellation.asked():
                    self._cancel_now = True
                    self._cancel_pause = min(2 * self._cancel_pause, options.LOOK_AGAIN_AFTER_MAX)
                else:
                    again = min(2 * again, options.LOOK_AGAIN_AFTER_MAX)
                    self._take(await self._patiently(self._asking.ask((), [part.key for part in open_parts])))
        for handle in self._following.values():
            handle.cancel()

    async def _cancel(self, parts: list[Part]) -> None:
        """Have the controller cancel what is still under way. It refuses what would need an unclean election: the
        reassignment goes on, the reason stands in its row, and it is asked again, after twice as long each time.
        """
        rows = [[part.topic, part.partition, None, list(part.target)] for part in parts]
        answer = await self._patiently(self._asking.ask(rows, [part.key for part in parts]))
        self._take(answer)
        for part, result in zip(parts, answer.get("results", []), strict=False):
            if result.get("error"):
                message = str(result.get("message") or f"Kafka's error code {result['error']}")
                self._parts[part.key] = self._parts[part.key].refused(message)

    def _something_new(self) -> bool:
        return self._changed or (cancellation.asked() and self._cancel_now)

    def _follow(self, parts: Iterable[Part]) -> None:
        """Look on at the nodes where replicas are added."""
        for node, keys in by_node({part.key: part.followed_at for part in parts}).items():
            if node not in self._following:
                handle = self._start(calls.CATCH_UP, node, keys)
                self._following[node] = handle
                asyncio.create_task(self._followed(node, handle))  # noqa: RUF006 - ends with its handle, which is kept

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
                self._voices.asked.pop(node, None)
            self._changed = True

    async def _silenced(self, node: int, why: str) -> None:
        """Keep in the rows why a node's step is of no use, and wait before the next one: the metadata completes the
        reassignment without it, and the controller reports that.
        """
        workflow.logger.warning("%s", why)
        for key, part in self._parts.items():
            if part.open and node in part.followed_at:
                self._parts[key] = replace(part, message=fields.shown(why))
        pause, self._silence = self._silence, min(2 * self._silence, options.LOOK_AGAIN_AFTER_MAX)
        with contextlib.suppress(TimeoutError):
            await cancellation.uncancelled(workflow.wait_condition(lambda: not self._open(), timeout=pause))

    def _take(self, now: Mapping[str, Any]) -> None:
        """A word of the controller about partitions: rows as `Standing.row`, or [topic, partition] of one that is
        gone.
        """
        self._pair = max(self._pair, (int(now.get("generation", 0)), int(now.get("version", 0))))
        self._absent = now.get("absent", self._absent)
        for row in now.get("rows", []):
            part = self._parts.get((str(row[0]), int(row[1])))
            if part is not None:
                self._parts[part.key] = part.judged(Standing.of(row) if len(row) > 2 else None)
        self._changed = True

    # --- what follows from it

    async def _clear_and_direct(self) -> None:
        """Both at once: a dropped node that stays away keeps no replica from its directory."""
        clear = by_node({part.key: part.to_clear for part in self._parts.values()})
        done = [part for part in self._parts.values() if part.verdict == calls.JOINED]
        wishes = by_node({part.key: tuple(part.wishes) for part in done})
        if clear and wishes and workflow.patched(AT_ONCE):
            deleting = asyncio.create_task(self._delete(clear))
            self._phases.enter(DIRECTING, workflow.time())
            await self._patiently(self._direct(wishes))
            if not deleting.done():
                self._phases.enter(DELETING, workflow.time())
                await self._patiently(deleting)
            return
        if clear:
            self._phases.enter(DELETING, workflow.time())
            await self._patiently(self._delete(clear))
        if wishes:
            self._phases.enter(DIRECTING, workflow.time())
            await self._patiently(self._direct(wishes))

    async def _delete(self, found: Mapping[int, list[Key]]) -> None:
        """Wait until the nodes that were dropped have no data of it any more; who does not answer for long is waited
        for no longer: it deletes by what the metadata says, with or without a run.
        """
        await self._all(self._delete_at(node, keys) for node, keys in found.items())

    async def _delete_at(self, node: int, keys: list[Key]) -> None:
        try:
            self._apply((await self._step(calls.AWAIT_DELETION, node, keys)).rows)
        except (ActivityError, BadField) as failure:
            why = failure.cause if isinstance(failure, ActivityError) else failure
            workflow.logger.warning("Node %d does not say whether its data is gone: %s", node, why)
            for key in keys:
                self._parts[key] = self._parts[key].unsaid(node)

    async def _direct(self, found: Mapping[int, list[Key]]) -> None:
        """Where a replica is not in the directory asked for (the node did not hear of the wish, or could not do it), a
        MoveReplica takes it there.
        """
        await self._all(self._direct_at(node, keys) for node, keys in found.items())

    async def _direct_at(self, node: int, keys: list[Key]) -> None:
        try:
            rows = (await self._step(calls.PLACE_REPLICAS, node, keys, wish=False)).rows
        except ActivityError as failure:
            self._missed(node, keys, fields.shown(str(failure.cause)))
            return
        except BadField as problem:
            self._missed(node, keys, results.unreadable(calls.PLACE_REPLICAS, node, problem))
            return
        held = {(row.topic, row.partition): row for row in rows}
        away: list[Key] = []
        for key in keys:
            row, wanted = held.get(key), self._parts[key].wishes[node]
            if row is not None and row.outcome == calls.FAILED:
                self._missed(node, [key], row.message)
            elif row is None or row.directory != wanted:
                away.append(key)
            else:
                self._reached.setdefault(key, []).append([node, wanted, True])
        if away:
            await self._move(node, away)

    async def _move(self, node: int, keys: list[Key]) -> None:
        info = workflow.info()
        wanted = [(key, self._parts[key].wishes[node]) for key in keys]
        parameter = [
            {"topic": topic, "partition": partition, "node": node, "directory": directory}
            for (topic, partition), directory in wanted
        ]
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
            if row is not None and row.outcome in (calls.SWAPPED, calls.DELETED, calls.IN_PLACE):
                self._reached.setdefault(key, []).append([node, directory, True])
            else:
                why = "nothing is known of it" if row is None else row.message or row.outcome
                self._missed(node, [key], why)

    def _missed(self, node: int, keys: Iterable[Key], why: str) -> None:
        for key in keys:
            directory = self._parts[key].wishes[node]
            self._reached.setdefault(key, []).append([node, directory, False])
            self._short[key] = f"The replica on node {node} is not in {directory}: {why}"

    async def _verify(self) -> None:
        """The controller's last word on what is done; a target that came meanwhile changes nothing of that."""
        done = [part for part in self._parts.values() if part.verdict == calls.JOINED]
        if not done:
            return
        answer = await self._patiently(self._asking.ask((), [part.key for part in done]))
        for row in answer.get("rows", []):
            now = Standing.of(row) if len(row) > 2 else None
            if now is not None and now.key in self._parts:
                self._parts[now.key] = replace(
                    self._parts[now.key], replicas=now.replicas, isr=now.isr, leader=now.leader
                )

    async def _end(self) -> dict[str, Any]:
        for key, why in self._short.items():
            if not self._parts[key].error:
                self._parts[key] = replace(self._parts[key], error=errors.DIRECTORY_NOT_REACHED, message=why)
        parts = list(self._parts.values())
        rows = [part.row(self._reached.get(part.key, ())) for part in parts]
        for row in rows:
            if (row["topic"], row["partition"]) in self._short:
                row["outcome"] = calls.FAILED
        result = {"rows": rows, "phases": self._phases.rows()}
        verdict = runs.verdict(parts, self._short)
        if verdict.status == "failed":
            raise ApplicationError(fields.shown(verdict.message), result, type=verdict.error, non_retryable=True)
        if verdict.status == "cancelled":
            await cancellation.be_asked()
            raise CancelledError("All reassignments were cancelled.")
        return result

    # --- how

    def _open(self) -> list[Part]:
        return [part for part in self._parts.values() if part.open]

    def _start(self, activity: str, node: int, keys: list[Key], *, patient: bool = True, wish: bool = True) -> Handle:
        self._voices.asked[node] = workflow.time()
        return start_step(activity, node, [self._parts[key] for key in keys], self._pair, patient=patient, wish=wish)

    async def _step(
        self, activity: str, node: int, keys: list[Key], *, patient: bool = True, wish: bool = True
    ) -> ReassignResult:
        """Raises ActivityError, and BadField where the node's result cannot be read."""
        try:
            return results.reassigned(await self._start(activity, node, keys, patient=patient, wish=wish), node)
        finally:
            self._voices.asked.pop(node, None)

    def _apply(self, rows: Iterable[calls.ReplicaRow]) -> None:
        for row in rows:
            part = self._parts.get((row.topic, row.partition))
            if part is not None:
                self._parts[part.key] = part.after(row, workflow.time())
            self._pair = max(self._pair, (row.generation, row.version))

    @staticmethod
    async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*work)

    async def _patiently(self, work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
        """See `cancellation.patiently`."""
        return await cancellation.patiently(work)

    # --- what operators, the nodes and the controller send meanwhile

    @workflow.query(description="Phase, bytes, rate and ETA of the run and of every partition")
    def progress(self) -> dict[str, Any]:
        """How far the run is; of copies what their node reported last, and how long ago that was."""
        clock = time.time()  # of whoever asks: the run's own clock stands still while nothing happens
        waiting = ["the controller"] if self._asking.away else []
        silent = {node: self._absent.get(node, Absence.AWAY) for node in self._voices.silent(clock)}
        waiting += [f"node {node}" for node in silent]
        return {
            "workflow_id": workflow.info().workflow_id,
            "cancelling": cancellation.asked(),
            **({"throttles": self._throttles} if self._throttles else {}),
            "started": self._started,
            "phases": self._phases.rows(),
            **of_run(list(self._parts.values()), self._phases.current, waiting, clock, silent),
        }

    @handlers.signal(messages.reports, description="A node reports the progress of its replicas")
    def copy_progress(self, rows: list[dict[str, Any]]) -> None:
        """Live values for `progress`."""
        now = workflow.time()
        for row in rows:
            part = self._parts.get((row["topic"], row["partition"]))
            if part is not None:
                self._parts[part.key] = part.reported(row, now)
                self._voices.note(row["node"], now, row.get("next_in", NEXT_REPORT))

    @handlers.signal(messages.answered, description="The controller responds to a request of the run")
    def answered(self, answer: dict[str, Any]) -> None:
        """{"request", "results", "made", "rows", "generation", "version"}, or "error" when the run is to repeat it."""
        self._asking.take(answer)

    @handlers.signal(messages.retargeted, description="The controller reports partitions with another target, or none")
    def retargeted(self, now: dict[str, Any]) -> None:
        """{"rows", "generation", "version"}."""
        self._take(now)
