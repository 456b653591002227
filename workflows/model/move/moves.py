"""A run of moves as data: the transitions of its replicas, its next step, its progress and its end. Pure.

Each replica has a phase. `Replica.on` alone changes it, by TRANSITIONS: the outcomes of its steps, requests and timers
are events of the same table. The run's replicas pass the phases together (all are created, copied, swapped), so that a
step for fifty costs what a step for one costs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from storage_node.model.error_types import LEAVES_A_COPY, ErrorType
from storage_node.model.moves import MOVED, Event, Outcome, Phase, StallReason
from storage_node.model.sla import SlaVerdict, judge
from workflows.model import calls
from workflows.model.absence import sentence
from workflows.model.calls import MoveRow, ReplicaMove
from workflows.model.reports import NEXT_REPORT, MoveReport
from workflows.model.run_progress import ReplicaProgress
from workflows.model.run_results import Sla

#: The activity that does a phase's step.
STEPS: Mapping[Phase, str] = {
    Phase.CREATING: calls.CREATE_MOVE,
    Phase.COPYING: calls.COPY,
    Phase.SWAPPING: calls.SWAP,
    Phase.DELETING: calls.DELETE_REPLICA,
    Phase.CANCELLING: calls.CANCEL_MOVE,
}

#: The order in which a run executes the phases of its replicas: the earliest first, a cancel before all others.
ORDER = (
    Phase.CANCELLING,
    Phase.CREATING,
    Phase.COPYING,
    Phase.SWAPPING,
    Phase.DELETING,
    Phase.DELETE_DELAY,
)

#: Seconds by which a report may be overdue until the node counts as unavailable, or overloaded.
SILENCE = 15.0

_SUMS = (
    "bytes_copied",
    "bytes_resumed",
    "seconds_queued",
    "seconds_copying",
    "seconds_throttled",
    "seconds_stalled",
    "seconds_locked",
    "attempts",
    "bytes_total",
    "bytes_written",
)


@dataclass(frozen=True, slots=True)
class MovingReplica:
    """One replica of a run: its request, its phase, the row with all facts so far, and when its `.delete` is due
    (epoch s).

    `live` is the node's last report of the copy in progress, `last_report` its time (epoch s; 0: never).
    `before` is the previous target while the node has not accepted a new one yet, else "".
    """

    move: ReplicaMove
    phase: Phase
    row: MoveRow
    due: float = 0.0
    live: MoveReport | None = None
    last_report: float = 0.0
    before: str = ""

    @staticmethod
    def requested(move: ReplicaMove) -> MovingReplica:
        """Return a replica at the start of a run."""
        row = MoveRow(
            move.topic, move.partition, None, directory=move.directory, claim=move.claim, generation=move.generation
        )
        return MovingReplica(move, Phase.CREATING, row)

    @property
    def key(self) -> tuple[str, int]:
        """Return topic and partition."""
        return self.move.topic, self.move.partition

    @property
    def ended(self) -> bool:
        """Return whether the replica needs no other step."""
        return self.phase.ended

    def event_of(self, row: MoveRow) -> Event:
        """Return the event of a step's row: its outcome, or, for some failures, an event that depends on the phase."""
        if self.phase is Phase.CANCELLING and self.row.outcome == Outcome.FAILED:
            return Event.COPY_REMOVED
        if row.outcome == Outcome.FAILED and self.phase is Phase.CREATING and self.before:
            return Event.TARGET_REJECTED
        if row.outcome == Outcome.FAILED and self.phase.before_swap and row.error in LEAVES_A_COPY:
            return Event.FAILED_WITH_COPY
        return Event(row.outcome or Outcome.FAILED)

    def on(self, event: Event, now: float = 0.0, *, row: MoveRow | None = None, directory: str = "") -> MovingReplica:
        """Return the replica after an event, by TRANSITIONS; no other method changes a phase.

        `now` (epoch s) and `row` belong to the events of steps, `directory` to RETARGET. A request or a timer without a
        transition from this phase is too late, and changes nothing. The event of a step without one is a failure of the
        node, and ends the replica as failed.
        """
        transition = TRANSITIONS.get((self.phase, event))
        if transition is None and not event.of_step:
            return self
        given = Given(now, row, directory)
        if transition is None:
            transition, given = UNEXPECTED, replace(given, row=_unexpected(self, event, row))
        return replace(transition.effect(self, given), phase=transition.phase)

    def after(self, row: MoveRow, now: float) -> MovingReplica:
        """Return the replica after its step's row."""
        return self.on(self.event_of(row), now, row=row)

    def reported(self, live: MoveReport, now: float) -> MovingReplica:
        """Return the replica after a report of its copy."""
        return replace(self, live=live, last_report=now)

    def spent(self, seconds: Mapping[str, float]) -> MovingReplica:
        """Return the replica with seconds by reason added, in which its node did not report."""
        before = self.row.seconds_by_reason
        total = before | {reason: round(before.get(reason, 0.0) + more, 3) for reason, more in seconds.items()}
        return replace(self, row=replace(self.row, seconds_by_reason=total))

    def interrupted(self, row: MoveRow) -> MovingReplica:
        """Return the replica with the facts of an interrupted step; its phase and its outcome do not change."""
        return replace(self, row=merge_rows(self.row, replace(row, outcome=self.row.outcome)), live=None)

    def silent(self, since: float, now: float) -> bool:
        """Return whether a report of its copy, requested at `since`, is overdue."""
        promised = self.live.next_in if self.live is not None else NEXT_REPORT
        return self.phase is Phase.COPYING and now - max(since, self.last_report) > promised + SILENCE


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments of an event, see `Replica.on`."""

    now: float = 0.0
    row: MoveRow | None = None
    directory: str = ""


# --- effects of events on a replica's facts


def unchanged(replica: MovingReplica, given: Given) -> MovingReplica:
    """Keep the facts."""
    return replica


def learned(replica: MovingReplica, given: Given) -> MovingReplica:
    """Add up the facts of a step's row; claim and generation are the node's."""
    row = given.row or replica.row
    held = merge_rows(replica.row, row)
    move = replace(
        replica.move, claim=row.claim or replica.move.claim, generation=row.generation or replica.move.generation
    )
    due = given.now + max(row.delete_after, 0.0)
    return replace(replica, move=move, row=held, due=due, live=None, last_report=given.now, before="")


def still_in_place(replica: MovingReplica, given: Given) -> MovingReplica:
    """Add up the facts and keep the outcome: the replica is in place, and its node is responsible for the old copy."""
    row = given.row or replica.row
    return learned(replica, replace(given, row=replace(row, outcome=replica.row.outcome)))


def still_failed(replica: MovingReplica, given: Given) -> MovingReplica:
    """Keep the reason of the failure: only the copy that the move left was removed."""
    return replace(replica, live=None, last_report=given.now)


def retargeted(replica: MovingReplica, given: Given) -> MovingReplica:
    """Set another target. The facts stay except for the bytes, which the new copy counts from 0."""
    row = replace(replica.row, directory=given.directory, bytes_copied=0, bytes_resumed=0)
    move = replace(replica.move, directory=given.directory)
    return replace(replica, move=move, row=row, live=None, before=replica.before or replica.move.directory)


def target_restored(replica: MovingReplica, given: Given) -> MovingReplica:
    """Restore the target before the rejected one; the node decides whether its copy there is valid or begins again."""
    back = retargeted(replica, replace(given, directory=replica.before))
    return replace(back, before="", last_report=given.now)


def _unexpected(replica: MovingReplica, event: Event, row: MoveRow | None) -> MoveRow:
    message = f"The node reported '{event}' for {STEPS.get(replica.phase, replica.phase)}; the run cannot continue."
    return replace(row or replica.row, outcome=Outcome.FAILED, error=ErrorType.NODE_FAILURE, message=message)


@dataclass(frozen=True, slots=True)
class Transition:
    """The next phase, and the effect of the event on the replica's facts."""

    phase: Phase
    effect: Callable[[MovingReplica, Given], MovingReplica] = learned


#: (phase, event) -> next phase and effect. Missing requests and timers change nothing, missing events of steps are
#: UNEXPECTED.
TRANSITIONS: Mapping[tuple[Phase, Event], Transition] = {
    (Phase.CREATING, Event.CREATED): Transition(Phase.COPYING),
    (Phase.CREATING, Event.CAUGHT_UP): Transition(Phase.SWAPPING),
    (Phase.CREATING, Event.SWAPPED): Transition(Phase.DELETE_DELAY),
    (Phase.CREATING, Event.IN_PLACE): Transition(Phase.DONE),
    (Phase.CREATING, Event.CANCELLED): Transition(Phase.CANCELLED),
    (Phase.CREATING, Event.FAILED): Transition(Phase.FAILED),
    (Phase.CREATING, Event.FAILED_WITH_COPY): Transition(Phase.CANCELLING),
    (Phase.CREATING, Event.SUPERSEDED): Transition(Phase.SUPERSEDED),
    (Phase.CREATING, Event.TARGET_REJECTED): Transition(Phase.CREATING, target_restored),
    (Phase.CREATING, Event.RETARGET): Transition(Phase.CREATING, retargeted),
    (Phase.CREATING, Event.CANCEL): Transition(Phase.CANCELLING, unchanged),
    (Phase.CREATING, Event.DROP): Transition(Phase.CANCELLING, unchanged),
    (Phase.COPYING, Event.CAUGHT_UP): Transition(Phase.SWAPPING),
    (Phase.COPYING, Event.BEHIND): Transition(Phase.COPYING),
    (Phase.COPYING, Event.SWAPPED): Transition(Phase.DELETE_DELAY),
    (Phase.COPYING, Event.IN_PLACE): Transition(Phase.DONE),
    (Phase.COPYING, Event.CANCELLED): Transition(Phase.CANCELLED),
    (Phase.COPYING, Event.FAILED): Transition(Phase.FAILED),
    (Phase.COPYING, Event.FAILED_WITH_COPY): Transition(Phase.CANCELLING),
    (Phase.COPYING, Event.SUPERSEDED): Transition(Phase.SUPERSEDED),
    (Phase.COPYING, Event.RETARGET): Transition(Phase.CREATING, retargeted),
    (Phase.COPYING, Event.CANCEL): Transition(Phase.CANCELLING, unchanged),
    (Phase.COPYING, Event.DROP): Transition(Phase.CANCELLING, unchanged),
    (Phase.SWAPPING, Event.SWAPPED): Transition(Phase.DELETE_DELAY),
    (Phase.SWAPPING, Event.BEHIND): Transition(Phase.COPYING),
    (Phase.SWAPPING, Event.IN_PLACE): Transition(Phase.DONE),
    (Phase.SWAPPING, Event.CANCELLED): Transition(Phase.CANCELLED),
    (Phase.SWAPPING, Event.FAILED): Transition(Phase.FAILED),
    (Phase.SWAPPING, Event.FAILED_WITH_COPY): Transition(Phase.CANCELLING),
    (Phase.SWAPPING, Event.SUPERSEDED): Transition(Phase.SUPERSEDED),
    (Phase.SWAPPING, Event.RETARGET): Transition(Phase.CREATING, retargeted),
    (Phase.SWAPPING, Event.CANCEL): Transition(Phase.CANCELLING, unchanged),
    (Phase.SWAPPING, Event.DROP): Transition(Phase.CANCELLING, unchanged),
    (Phase.DELETE_DELAY, Event.DELETE_DUE): Transition(Phase.DELETING, unchanged),
    (Phase.DELETING, Event.DELETED): Transition(Phase.DONE),
    (Phase.DELETING, Event.IN_PLACE): Transition(Phase.DONE),
    (Phase.DELETING, Event.SWAPPED): Transition(Phase.DELETE_DELAY),
    (Phase.DELETING, Event.CREATED): Transition(Phase.DONE, still_in_place),
    (Phase.DELETING, Event.CAUGHT_UP): Transition(Phase.DONE, still_in_place),
    (Phase.DELETING, Event.BEHIND): Transition(Phase.DONE, still_in_place),
    (Phase.DELETING, Event.CANCELLED): Transition(Phase.DONE, still_in_place),
    (Phase.DELETING, Event.FAILED): Transition(Phase.DONE, still_in_place),
    (Phase.DELETING, Event.SUPERSEDED): Transition(Phase.DONE, still_in_place),
    (Phase.CANCELLING, Event.CANCELLED): Transition(Phase.CANCELLED),
    (Phase.CANCELLING, Event.IN_PLACE): Transition(Phase.DONE),
    (Phase.CANCELLING, Event.SWAPPED): Transition(Phase.DELETE_DELAY),
    (Phase.CANCELLING, Event.DELETED): Transition(Phase.DONE),
    (Phase.CANCELLING, Event.FAILED): Transition(Phase.FAILED),
    (Phase.CANCELLING, Event.SUPERSEDED): Transition(Phase.SUPERSEDED),
    (Phase.CANCELLING, Event.COPY_REMOVED): Transition(Phase.FAILED, still_failed),
}
#: The transition of a step's event without an entry for its phase.
UNEXPECTED = Transition(Phase.FAILED)


def merge_rows(before: MoveRow, after: MoveRow) -> MoveRow:
    """Return the later row, with the facts of the earlier one that it does not have (0 or "").

    Steps get the facts so far and return totals, so that the larger value is the total.
    """
    values: dict[str, Any] = {}
    for each in fields(MoveRow):
        old, new = getattr(before, each.name), getattr(after, each.name)
        values[each.name] = max(old, new) if each.name in _SUMS else (new or old)
    values["delete_after"] = after.delete_after
    values["seconds_by_reason"] = _most(before.seconds_by_reason, after.seconds_by_reason)
    if after.outcome not in (Outcome.FAILED, Outcome.SUPERSEDED):
        values["error"], values["message"] = after.error, after.message
    return MoveRow(**values)


def next_phase(replicas: Iterable[MovingReplica]) -> Phase | None:
    """Return the phase whose step is next: the earliest of any replica, a cancel first; None if all have ended."""
    present = {replica.phase for replica in replicas}
    return next((phase for phase in ORDER if phase in present), None)


def failed_rows(replicas: Iterable[MovingReplica], error: str, message: str) -> list[MoveRow]:
    """Return the rows of a step that failed as a whole."""
    return [
        MoveRow(
            each.move.topic,
            each.move.partition,
            Outcome.SUPERSEDED if error == ErrorType.SUPERSEDED else Outcome.FAILED,
            directory=each.move.directory,
            error=error,
            message=message,
        )
        for each in replicas
    ]


def _most(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return for each reason the larger of its two totals."""
    return {reason: max(before.get(reason, 0.0), after.get(reason, 0.0)) for reason in sorted({*before, *after})}


class RunEnd(StrEnum):
    """How a run ends."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run ends; a failed one carries a stable error type and one sentence."""

    status: RunEnd
    error: str = ""
    message: str = ""


def verdict(rows: Sequence[MoveRow]) -> Verdict:
    """Return how the run ends: completed if any replica was moved, cancelled if all were, else failed with the first
    reason.
    """
    if any(row.outcome in MOVED for row in rows):
        return Verdict(RunEnd.COMPLETED)
    failed = [row for row in rows if row.outcome != Outcome.CANCELLED]
    if not failed:
        return Verdict(RunEnd.CANCELLED)
    first = failed[0]
    message = first.message or f"{first.topic}-{first.partition} was not moved."
    if len(rows) > 1:
        message = f"None of {len(rows)} replicas was moved; the first, {first.topic}-{first.partition}: {message}"
    return Verdict(
        RunEnd.FAILED,
        first.error or (ErrorType.SUPERSEDED if first.outcome == Outcome.SUPERSEDED else ErrorType.NODE_FAILURE),
        message,
    )


def sla(
    replicas: Collection[MovingReplica], seconds: float | None, started: float, settled: float | None, now: float
) -> Sla:
    """Return whether the run met its deadline, with all its replicas (its lane) as one; times are epoch seconds.

    `settled` is when no replica had a copy to make any more, None before. The lane is in place if a replica is and none
    failed: a replica that was dropped does not count, one that failed makes the lane miss its deadline.
    """
    in_place = any(each.phase.in_place for each in replicas)
    after = round((now if settled is None else settled) - started, 3)
    took = after if settled is not None and in_place else None
    if seconds is None:
        return Sla(took=took)
    failed = next((each for each in replicas if each.phase is Phase.FAILED), None)
    verdict = judge(
        Outcome.FAILED if failed else Outcome.IN_PLACE if in_place else Outcome.CANCELLED,
        failed.row.error if failed else "",
        under_way=settled is None,
        late=after > seconds,
        has_deadline=True,
    )
    met = {SlaVerdict.YES: True, SlaVerdict.NO: False}.get(verdict)
    return Sla(seconds, round(started + seconds, 3), took, met)


def eta(total: int, done: int, rate: float, append_rate: float = 0.0, stall: str = "") -> float | None:
    """Return the seconds until a copy completes at this rate (bytes/s) while its source grows at `append_rate`.

    None if they are unknown or infinite, 0 if no bytes are left.
    """
    left = max(total - done, 0)
    if left == 0:
        return 0.0 if total else None
    if stall == StallReason.GROWING_SOURCE or rate <= append_rate:
        return None
    return round(left / (rate - append_rate), 1)


def _stall(
    replica: MovingReplica, live: MoveReport, now: float, waiting_for: str, paused: bool, absence: str
) -> tuple[str, str]:
    """Return a replica's stall reason and a sentence: the node's while it reports, else the run's."""
    if replica.ended:
        return "", ""
    if waiting_for:
        age = (
            f"its last report is {max(0.0, now - replica.last_report):.0f} s old"
            if replica.last_report
            else "it has not reported yet"
        )
        return absence, f"{sentence(absence, waiting_for)}; {age}"
    if paused and replica.phase.before_swap:
        return StallReason.STOPPED, "the run is paused"
    if replica.phase is not Phase.COPYING:
        return "", ""
    return live.stall, live.stall_message


def run_stall(rows: Sequence[ReplicaProgress]) -> ReplicaProgress | None:
    """Return the replica of a run's `progress` whose stall reason is the run's; None while any replica advances.

    A source that grows faster than its copy comes first, since the run cannot complete with it.
    """
    held = [row for row in rows if row.stall]
    growing = [row for row in held if row.stall == StallReason.GROWING_SOURCE]
    if growing:
        return growing[0]
    if any(not row.stall and row.phase in STEPS for row in rows):
        return None
    return held[0] if held else None


def progress(
    replica: MovingReplica,
    now: float,
    waiting_for: str = "",
    paused: bool = False,
    absence: str = StallReason.UNAVAILABLE,
) -> ReplicaProgress:
    """Return the row of one replica in `progress`: the last report of its copy, or the result of its last step.

    While the run waits for its node, `waiting_for` names it and `absence` is the reason: the last report remains,
    `report_age` seconds old (None: the node has not reported).
    """
    live, row = replica.live or MoveReport(*replica.key), replica.row
    total = live.bytes_total or row.bytes_total
    done = row.bytes_copied if live.bytes_copied is None else live.bytes_copied
    done = total if replica.phase is Phase.SWAPPING or replica.phase.in_place else min(done, total)
    away = bool(waiting_for) and not replica.ended
    rate = 0.0 if away else live.rate
    growth = 0.0 if away else live.append_rate
    stall, message = _stall(replica, live, now, waiting_for, paused, absence)
    return ReplicaProgress(
        topic=replica.move.topic,
        partition=replica.move.partition,
        phase=replica.phase,
        state=f"waiting for {waiting_for}" if away else live.state,
        source=row.source,
        directory=replica.move.directory,
        claim=replica.move.claim,
        generation=replica.move.generation,
        bytes_total=total,
        bytes_copied=done,
        bytes_resumed=row.bytes_resumed if live.bytes_resumed is None else live.bytes_resumed,
        rate=rate,
        append_rate=growth,
        eta_seconds=eta(total, done, rate, growth, stall) if replica.phase is Phase.COPYING else None,
        stall=stall,
        stall_message=message,
        seconds_by_reason=_most(row.seconds_by_reason, live.seconds_by_reason),
        attempt=row.attempts if live.attempt is None else live.attempt,
        report_age=round(max(0.0, now - replica.last_report), 3) if replica.last_report else None,
        outcome=str(row.outcome or "") if replica.ended else "",
        error=row.error,
        message=row.message,
    )
