"""The activity `copy`: follows a lane's copies, which threads of the move engine make.

An attempt only attaches to the engine's jobs and observes them, so that an attempt which the server gave up, a lost
connection or a second attempt beside it neither stop nor double a copy; the claim and the disk decide what is copied.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities import reports
from activities.errors import classify, classify_name, expected, given_up
from activities.moves import rows
from storage_node.errors import MovesStopped
from storage_node.model.error_types import ErrorType
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState, Outcome
from workflows.model.calls import MoveCall, MoveResult, MoveRow, ReplicaMove
from workflows.model.reports import LiveMoveRow

if TYPE_CHECKING:
    from storage_node.move.engine import MoveEngine
    from storage_node.move.status import MoveStatus

log = logging.getLogger(__name__)

HEARTBEAT = 1.0  # seconds between two heartbeats
FIRST_SIGNAL = 1.0  # seconds until the first report to the run
FRESH = 1.0  # seconds for which a report counts as the last one of a copy that is stopped
QUICKEST_LOOK = 0.0005  # seconds between two checks of the engine, per replica; grows with the time the copy takes
SLOWEST_LOOK = 0.25

Blocking = Callable[..., Awaitable[Any]]


class LaneCopy:
    """One attempt to copy a lane."""

    def __init__(
        self,
        call: MoveCall,
        engine: MoveEngine,
        blocking: Blocking,
        bases: dict[rows.MoveKey, MoveRow],
    ) -> None:
        self._call, self._engine, self._blocking, self._bases = call, engine, blocking, bases
        self._done: dict[TopicPartition, MoveRow] = {}
        self._open = {rows.partition_of(move): move for move in call.replicas}
        self._statuses: dict[TopicPartition, MoveStatus] = {}
        self._unattached = set(self._open)
        self._reported = 0.0
        self._remember_totals()

    async def run(self) -> MoveResult:
        """Follow the copies to their ends; raises a retryable ApplicationError for an error that a retry may mend."""
        try:
            await self._follow()
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            mine = details is not None and (details.cancel_requested or details.paused or details.reset)
            # Otherwise the attempt was not found or timed out: another one, or another run, may own the move by now.
            if mine:
                await asyncio.shield(self._pause())
                await asyncio.shield(self._last_report())
            activity.heartbeat(self._facts())
            if (error := given_up()) is not None:
                raise error from None
            raise
        return MoveResult(rows=[self._done[rows.partition_of(move)] for move in self._call.replicas])

    async def _follow(self) -> None:
        started = heartbeat = time.monotonic()
        due = started + FIRST_SIGNAL
        activity.heartbeat(self._live())
        while True:
            await self._attach()
            self._look()
            if not self._open:
                return
            now = time.monotonic()
            if now - heartbeat >= HEARTBEAT:
                heartbeat = now
                activity.heartbeat(self._live())
            if now >= due:
                pause = reports.pause(now - started)
                due = now + pause
                await self._report(pause)
            if activity.is_worker_shutdown():
                activity.heartbeat(self._facts())
                raise expected("the node stops", ErrorType.NODE_RESTARTED, self._facts())
            quickest = QUICKEST_LOOK * (len(self._open) + 1)
            await asyncio.sleep(min(SLOWEST_LOOK, max(quickest, (now - started) / 20)))

    async def _attach(self) -> None:
        """Start the copies that the engine does not make for this run yet."""
        if not self._unattached:
            return
        for tp, error in (await self._blocking(self._start, sorted(self._unattached))).items():
            if isinstance(error, MovesStopped):
                continue  # An operator has stopped moves: try again at the next check.
            if error is not None:
                found = classify(error)
                if found.retryable:
                    raise error
                move = self._open[tp]
                ended = rows.already_ended(move, self._engine.status(tp), self._base(move))
                self._end(tp, ended or rows.failed(move, found, self._base(move)))
                continue
            self._unattached.discard(tp)

    def _start(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Exception | None]:
        """Queue these copies; return the engine's error for each, or None."""
        errors: dict[TopicPartition, Exception | None] = {}
        for tp in partitions:
            try:
                self._engine.start_copy(tp, self._open[tp].claim, self._call.throttle)
                errors[tp] = None
            except Exception as error:
                errors[tp] = error
        return errors

    def _look(self) -> None:
        for tp, move in list(self._open.items()):
            if tp in self._unattached:
                continue
            status = self._engine.status(tp)
            if status is None:
                gone = classify_name(ErrorType.STALE_CLAIM, f"{tp}: its `.move` no longer exists")
                self._end(tp, rows.failed(move, gone, self._base(move)))
                continue
            self._statuses[tp] = status
            outcome = rows.ENDS.get(status.state)
            if outcome is None:
                if status.state is MoveState.STOPPED:
                    self._unattached.add(tp)  # It continues as soon as the engine accepts it again.
                continue
            if outcome == Outcome.FAILED and classify_name(status.error, status.message).retryable:
                raise ApplicationError(
                    f"{tp}: {status.message}",
                    self._facts(),
                    type=classify_name(status.error, status.message).type,
                )
            self._end(tp, rows.from_status(move, status, outcome, self._base(move)))

    def _end(self, tp: TopicPartition, row: MoveRow) -> None:
        del self._open[tp]
        self._unattached.discard(tp)
        self._done[tp] = row

    async def _pause(self) -> None:
        for tp, move in self._open.items():
            try:
                await self._blocking(self._engine.pause_copy, tp, move.claim)
            except Exception as error:
                log.info("%s: its copy was not paused: %s", tp, error)

    # Facts

    def _remember_totals(self) -> None:
        """Keep the totals of earlier steps and attempts, to which the engine's counters of this process are added."""
        known = rows.read_rows(self._call.facts)
        details = activity.info().heartbeat_details
        if details and isinstance(details[0], list):
            known |= rows.read_rows(details[0])
        for move in self._call.replicas:
            tp = rows.partition_of(move)
            if tp in known:
                rows.keep_base(self._bases, move, known[tp])

    def _base(self, move: ReplicaMove) -> MoveRow | None:
        return self._bases.get(rows.key_of(move))

    def _row(self, move: ReplicaMove) -> MoveRow:
        tp = rows.partition_of(move)
        if tp in self._done:
            return self._done[tp]
        status = self._statuses.get(tp)
        base = self._base(move)
        if status is None:
            return base or rows.blank(move)
        return rows.from_status(move, status, Outcome.CREATED, base)

    def _facts(self) -> list[MoveRow]:
        return [self._row(move) for move in self._call.replicas]

    def _live(self) -> list[LiveMoveRow]:
        """Return the facts with the live values: the server shows them to clients that describe the run."""
        statuses = [self._statuses.get(rows.partition_of(move)) for move in self._call.replicas]
        return [rows.live(row, status) for row, status in zip(self._facts(), statuses, strict=True)]

    async def _last_report(self) -> None:
        """Report the copies of a step that was cancelled, whose end carries no details."""
        if self._open and time.monotonic() - self._reported > FRESH:
            for tp in self._open:
                if (status := self._engine.status(tp)) is not None:
                    self._statuses[tp] = status
            await self._report(reports.LEAST)

    async def _report(self, next_in: float) -> None:
        """Signal the progress of its replicas to the run."""
        self._reported = time.monotonic()
        states = []
        for move in self._call.replicas:
            status = self._statuses.get(rows.partition_of(move))
            states.append(rows.report(self._row(move), status, next_in))
        await reports.send(states, HEARTBEAT)
