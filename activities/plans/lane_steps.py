"""The steps of a lane: requests its moves, follows them, cancels them. Each reads the cluster first, and adopts what is
under way, so that it may be repeated at any time, by any worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from activities.kafka_admin.errors import AdminError, NoResponse
from activities.kafka_admin.pool import AdminPool
from activities.kafka_admin.reader import ClusterReader
from activities.plans import requests
from activities.plans.stalled_moves import EvidenceReader
from storage_node.model.ids import TopicPartition
from workflows.model.pace import Paces
from workflows.model.plans import drift
from workflows.model.plans.drift import DriftKind
from workflows.model.plans.running.calls import MovesCall, MoveSpec, MovesResult, PlanMoveRow, move_rows
from workflows.model.plans.running.following import (
    DOUBTFUL,
    MoveOutcome,
    MoveState,
    Seen,
    in_place,
    seen,
    touched_by,
)
from workflows.model.plans.running.stalls import STALLED_AFTER, Pace, StallReason, stall_of
from workflows.model.plans.under_way import LaneReport, LiveMove
from workflows.model.plans.values import ClusterView, MoveKind, PlannedMove

Note = Callable[[LaneReport], None]

QUICKEST_READ, SLOWEST_READ = 0.2, 5.0  # seconds between two reads; grows while nothing ends
#: Seconds for which the step that requests moves also follows them: a step of its own costs more than a few reads.
QUICK = 2.0
SLICE = 900.0  # seconds after which a step returns, so that its run's history shows how far it is
#: Seconds for which all reads must find a requested move neither under way nor done before it is taken for lost, or
#: changed by another client before that ends it: a broker may return metadata from before the controller's last change.
SURE = 6.0
#: How often a lost request is repeated: a broker that was killed forgets a copy that it had not begun.
REPEATS = 3
#: Seconds for which a move waits for the broker that it writes to: it may be restarted, and recover its logs. Then the
#: move fails, to be retried by an operator.
BROKER_PATIENCE = 900.0
CANCEL_PATIENCE = 30.0  # seconds until a cancelled move must be gone
#: Seconds without a byte after which a stalled move between directories is cancelled and requested again, and how often
#: (KAFKA-9087): what it has copied is lost each time.
MEND_AFTER = 600.0
MOST_MENDS = 2
REASON_AGE = 300.0  # seconds for which a step keeps another reason of a stalled move to itself


@dataclass
class Followed:
    """One move while a step follows it."""

    move: PlannedMove
    began: float
    row: PlanMoveRow = field(init=False)
    odd_since: float | None = None
    """Since when (monotonic) all reads have found no trace of the move, or a doubtful outcome."""
    repeats: int = 0
    waits: bool = False
    """The move is not requested while the broker that it writes to is unavailable."""
    doubtful: bool = False
    """The last read found an outcome that is not sure yet."""
    found: Seen = field(default_factory=Seen)
    pace: Pace | None = None
    """How the move has advanced over the reads of this step; None before it was seen under way."""

    def __post_init__(self) -> None:
        self.row = PlanMoveRow(self.move.key)

    def begin(self, earlier: PlanMoveRow) -> None:
        """Take over from an earlier step since when the move has not advanced, and what was tried."""
        self.row = replace(self.row, repeats=earlier.repeats)
        self.waits = earlier.state == MoveState.AWAITING_BROKER
        if self.waits:
            self.row = replace(self.row, since=earlier.since)
        if earlier.stalled:
            self.row = replace(self.row, stalled=earlier.stalled, since=earlier.since, reason=earlier.reason)
            known = Seen(copied=earlier.copied, total=earlier.total)
            self.pace = None if self.waits else Pace.begin(known, self.row.since, self.row.since)

    @property
    def open(self) -> bool:
        return not self.row.outcome

    @property
    def sure(self) -> bool:
        """Return whether what the last read found has been so for long enough."""
        return self.odd_since is not None and time.monotonic() >= self.odd_since + SURE

    def end(self, outcome: MoveOutcome, why: str, now: float) -> None:
        """Note how the move ended."""
        seconds = round(max(0.0, now - self.began), 3)
        self.row = replace(self.row, outcome=str(outcome), reason=why, seconds=seconds, stalled="", since=0.0)

    def answered(self, refusal: requests.Refusal | None, since: float, now: float) -> None:
        """Note the answer to the move's request: one that says nothing is followed by another request, for as long as
        an unavailable broker is waited for, unless the next read shows the move under way.
        """
        if refusal is None:
            return
        outcome, why = refusal
        since = since or round(now, 3)
        if outcome is None and now < since + BROKER_PATIENCE:
            self.wait(StallReason.UNAVAILABLE, why, since, now, "it is requested again")
        else:
            self.end(outcome or MoveOutcome.FAILED, why, now)

    def wait(self, reason: StallReason, why: str, since: float, now: float, advice: str) -> None:
        """Note why the move is not requested yet, or has to be requested again."""
        self.waits = True
        self.row = replace(self.row, state=str(MoveState.AWAITING_BROKER), reason=why, since=since)
        if now >= since + STALLED_AFTER:
            self.row = replace(self.row, stalled=str(reason), reason=f"{why}; {advice}")

    def apply(self, one: Seen, now: float) -> None:
        """Note what a view of the cluster shows."""
        lost = one.outcome is None and one.state == MoveState.NOT_REQUESTED and not self.waits
        odd = one.outcome in DOUBTFUL or lost
        self.doubtful = one.outcome in DOUBTFUL
        self.odd_since = (self.odd_since or time.monotonic()) if odd else None
        if one.outcome is not None and (one.outcome not in DOUBTFUL or self.sure):
            self.row = replace(self.row, copied=one.copied, total=one.total)
            self.end(one.outcome, one.why, now)
            return
        self.found = one
        reason = self.row.reason if self.row.stalled else one.why
        self.row = replace(self.row, state=str(one.state), copied=one.copied, total=one.total, reason=reason)
        if one.state in (MoveState.COPYING, MoveState.PROMOTING, MoveState.UNKNOWN):
            self.pace = Pace.begin(one, now) if self.pace is None else self.pace.then(one, now)
            if not self.pace.stalled(now):
                self.advances()

    def recheck(self, view: ClusterView, now: float) -> bool:
        """Return whether a move that is not under way is to be requested; one whose broker is unavailable waits."""
        verdict = drift.checked(self.move, view)
        since = self.row.since or round(now, 3)
        self.waits = verdict.kind == DriftKind.BROKER_UNAVAILABLE and now < since + BROKER_PATIENCE
        if self.waits:
            advice = "restart it, or cancel the plan"
            self.wait(StallReason.TARGET_SILENT, verdict.why, since, now, advice)
        elif verdict.kind in (DriftKind.TARGET_GONE, DriftKind.BROKER_UNAVAILABLE):
            self.end(MoveOutcome.FAILED, verdict.why, now)
        # The replica that the plan has found is gone. It ends the move once later reads show the same.
        return self.open and not self.waits and verdict.kind != DriftKind.REPLICAS_CHANGED

    def advances(self) -> None:
        """Note that the move has not stalled, or no longer."""
        if self.row.stalled:
            self.row = replace(self.row, stalled="", since=0.0, reason=self.found.why)

    def stalls(self, reason: StallReason, why: str) -> None:
        """Note why the move does not advance."""
        since = self.pace.advanced if self.pace is not None else self.began
        self.row = replace(self.row, stalled=str(reason), since=round(since, 3), reason=why)


class LaneSteps:
    """The activities of lanes of one cluster."""

    def __init__(self, pool: AdminPool, reader: ClusterReader, wall: Callable[[], float] = time.time) -> None:
        self._pool, self._reader, self._wall = pool, reader, wall

    async def request(self, call: MovesCall, *, first: bool = True) -> MovesResult:
        """Request the moves that are neither in place nor under way, and follow them for `QUICK` seconds: most small
        ones have ended by then. Raises `AdminError`: repeat the step then.

        Moves that are found done were in place already, unless this is not the `first` attempt of the step.
        """
        followed = self._followed(call)
        view = await self._seen(followed)
        now = self._wall()
        for one in followed:
            found = seen(one.move, view)
            one.apply(in_place(found) if first else found, now)
        due = [one for one in followed if one.open and not one.doubtful and one.row.state == MoveState.NOT_REQUESTED]
        due = [one for one in due if one.recheck(view, now)]
        refused = await requests.request_all(self._pool, [one.move for one in due])
        for one in due:
            one.answered(refused.get(one.move.key), one.row.since, self._wall())
        if any(one.open for one in followed):
            await asyncio.sleep(QUICKEST_READ)
            await self._follow(followed, QUICK)
        return _result(followed)

    async def follow(self, call: MovesCall, note: Note = lambda _: None) -> MovesResult:
        """Return once at most `call.finishing_at` moves are open, or after `SLICE` seconds, with a row for each. `note`
        gets a report of each read of the cluster.
        """
        followed = self._followed(call)
        await self._follow(followed, SLICE, note, call.finishing_at)
        return _result(followed)

    async def _follow(
        self, followed: Sequence[Followed], seconds: float, note: Note = lambda _: None, finishing_at: int = 0
    ) -> None:
        until = time.monotonic() + seconds
        pause = QUICKEST_READ
        began = time.monotonic()
        known = {one.move.key: one.row.stalled for one in followed}
        evidence = EvidenceReader(self._pool)
        paces = Paces()
        while True:
            open_before = sum(one.open for one in followed)
            try:
                view = await self._seen(followed, max_age=pause / 2)
            except AdminError as error:
                self._unavailable(followed, error)
            else:
                await self._look(followed, view)
                await self._judge([one for one in followed if one.open], view, evidence)
            note(_report(followed, paces, self._wall()))
            if sum(one.open for one in followed) <= finishing_at or time.monotonic() >= until:
                return
            # The run learns at once that a move has stalled, or advances again; of another reason a while later.
            changed = [one.row.stalled for one in followed if one.open and one.row.stalled != known[one.move.key]]
            if changed and (not all(changed) or not any(known.values()) or time.monotonic() >= began + REASON_AGE):
                return
            ended = open_before - sum(one.open for one in followed)
            pause = QUICKEST_READ if ended else min(SLOWEST_READ, pause * 1.3)
            await asyncio.sleep(pause)

    async def _look(self, followed: Sequence[Followed], view: ClusterView) -> None:
        now = self._wall()
        directing: dict[tuple[int, TopicPartition], tuple[Followed, str]] = {}
        lost: list[Followed] = []
        due: list[Followed] = []
        for one in followed:
            if not one.open:
                continue
            found = seen(one.move, view)
            one.apply(found, now)
            if found.state == MoveState.DIRECTING and one.open:
                directing |= {
                    (node, one.move.partition): (one, path)
                    for node, path in found.misplaced
                    if (node, one.move.partition) not in view.futures
                }
            elif one.open and found.state == MoveState.NOT_REQUESTED and found.outcome is None:
                if one.waits:
                    due.append(one)
                elif one.sure:
                    lost.append(one)
            elif not one.doubtful:
                one.waits = False
        # What gets no response is requested again after the next read.
        rejected = await requests.direct(self._pool, {key: path for key, (_, path) in directing.items()})
        for key, (outcome, why) in rejected.items():
            if outcome is None:
                directing[key][0].row = replace(directing[key][0].row, reason=why)
            else:
                directing[key][0].end(outcome, why, self._wall())
        with contextlib.suppress(NoResponse):
            await self._repeat(lost, view)
        with contextlib.suppress(NoResponse):
            await self._request_due(due, view, now)

    async def _request_due(self, waiting: Sequence[Followed], view: ClusterView, now: float) -> None:
        """Request the moves whose broker is back; one whose request got no response waits on, and is adopted."""
        due = [one for one in waiting if one.recheck(view, now)]
        for one in due:
            one.waits = True  # until the response is here
        refused = await requests.request_all(self._pool, [one.move for one in due]) if due else {}
        for one in due:
            since = one.row.since
            one.waits, one.odd_since = False, None
            one.row = replace(one.row, stalled="", since=0.0)
            one.answered(refused.get(one.move.key), since, self._wall())

    def _unavailable(self, followed: Sequence[Followed], error: AdminError) -> None:
        now = self._wall()
        for one in followed:
            if one.open and not one.waits:
                one.pace = one.pace or Pace.begin(one.found, now)
                one.row = replace(one.row, state=str(MoveState.UNKNOWN), reason=str(error))
                if one.pace.stalled(now):
                    one.stalls(StallReason.UNAVAILABLE, f"{error}; the move continues meanwhile if its brokers run")

    async def _judge(self, followed: Sequence[Followed], view: ClusterView, evidence: EvidenceReader) -> None:
        """Note why moves do not advance; request those again of which that is known to help."""
        now = self._wall()
        stalled = [(one, one.pace) for one in followed if one.pace is not None and one.pace.stalled(now)]
        if not stalled:
            return
        read = await evidence.of([one.move for one, _ in stalled], view, time.monotonic())
        for one, pace in stalled:
            if one.move.partition not in view.partitions:
                continue
            found = stall_of(one.move, one.found, view, pace, now, read)
            why = found.sentence
            if found.repeats and one.row.repeats >= MOST_MENDS:
                why = f"{found.why}, after {one.row.repeats} requests more; restart the broker, or cancel the plan"
            one.stalls(found.reason, why)
            if found.repeats and one.row.repeats < MOST_MENDS and now >= pace.advanced + MEND_AFTER:
                await self._mend(one, view)

    async def _mend(self, one: Followed, view: ClusterView) -> None:
        """Cancel a move by a request to the replica's directory, and request it again (KAFKA-9087)."""
        try:
            if await requests.cancel_all(self._pool, [one.move], view):
                return
            one.row = replace(one.row, repeats=one.row.repeats + 1)
            one.pace = None
            refused = await requests.request_all(self._pool, [one.move])
        except AdminError:
            return  # A request that left no trace is repeated as a lost one.
        one.answered(refused.get(one.move.key), 0.0, self._wall())

    async def _repeat(self, lost: Sequence[Followed], view: ClusterView) -> None:
        """Repeat requests that left no trace. A reassignment that is gone was cancelled: KRaft never loses one."""
        again = []
        for one in lost:
            one.odd_since = None
            if one.move.kind == MoveKind.REPLICAS:
                one.end(
                    MoveOutcome.SUPERSEDED,
                    f"another client cancelled the reassignment of {one.move.partition}",
                    self._wall(),
                )
            elif (verdict := drift.checked(one.move, view)).kind == DriftKind.REPLICAS_CHANGED:
                one.end(MoveOutcome.SUPERSEDED, verdict.why, self._wall())
            elif one.repeats == REPEATS:
                why = (
                    f"broker {one.move.node} accepted the move of {one.move.partition} {REPEATS + 1} times and did not"
                )
                one.end(
                    MoveOutcome.FAILED,
                    f"{why} begin it, or another client cancels it; see the broker's log",
                    self._wall(),
                )
            else:
                one.repeats += 1
                again.append(one)
        refused = await requests.request_all(self._pool, [one.move for one in again])
        for one in again:
            one.answered(refused.get(one.move.key), 0.0, self._wall())

    async def cancel(self, call: MovesCall) -> MovesResult:
        """Cancel the moves that are under way, and return how each ended. Raises `AdminError`: repeat the step then."""
        followed = self._followed(call)
        until = time.monotonic() + CANCEL_PATIENCE
        rejected: dict[str, str] = {}
        while True:
            view = await self._seen(followed)
            now = self._wall()
            under_way = []
            for one in followed:
                if not one.open:
                    continue
                one.apply(seen(one.move, view), now)
                if one.doubtful:
                    one.end(MoveOutcome.CANCELLED, one.row.reason, now)
                elif one.open and one.row.state == MoveState.NOT_REQUESTED:
                    one.end(MoveOutcome.CANCELLED, "", now)
                elif one.open and one.row.state == MoveState.DIRECTING:
                    one.end(MoveOutcome.MOVED, "cancelled before all replicas reached their directories", now)
                elif one.open:
                    under_way.append(one)
            if not under_way:
                return _result(followed)
            if time.monotonic() >= until:
                for one in under_way:
                    one.row = replace(one.row, reason=rejected.get(one.move.key, "the cancel has not taken effect yet"))
                return _result(followed)
            rejected = await requests.cancel_all(self._pool, [one.move for one in under_way], view)
            await asyncio.sleep(QUICKEST_READ)

    async def _seen(self, followed: Sequence[Followed], max_age: float = 0.0) -> ClusterView:
        """Read the moves that have not ended, and the brokers that they change."""
        left = [one.move for one in followed if one.open]
        nodes = {node for move in left for node in touched_by(move)}
        return await self._reader.of({move.partition for move in left}, nodes, max_age)

    def _followed(self, call: MovesCall) -> list[Followed]:
        began = call.requested or self._wall()
        followed = [Followed(MoveSpec(**row).move(), began) for row in call.moves]
        earlier = {row.key: row for row in move_rows(call.stalled, "$.stalled")}
        for one in followed:
            if one.move.key in earlier:
                one.begin(earlier[one.move.key])
        return followed


def _report(followed: Sequence[Followed], paces: Paces, now: float) -> LaneReport:
    """Return how far the open moves are, with their rates where enough reads have shown them."""
    moves = []
    for one in followed:
        row, move = one.row, one.move
        if not one.open:
            continue
        if row.total > 0 and row.state in (MoveState.COPYING, MoveState.PROMOTING):
            paces.add(row.key, now, max(0, row.total - row.copied))
        rate, slow, fast = paces.rates(row.key) or (None, None, None)
        reads, writes = tuple(sorted(move.reads)), tuple(sorted(move.writes))
        moves.append(LiveMove(row.key, row.state, row.copied, row.total, rate, slow, fast, reads, writes, row.stalled))
    return LaneReport.of(round(now, 3), moves)


def _result(followed: Sequence[Followed]) -> MovesResult:
    return MovesResult(
        [
            replace(one.row, state=str(MoveState.AWAITING_BROKER)) if one.open and one.waits else one.row
            for one in followed
        ]
    )
