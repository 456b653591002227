"""A run of moves as data: phases, which outcome leads where, what comes next, how far it is and how it ends. All pure.

A replica goes through phases; each step's outcome moves it by TRANSITIONS, the only way it moves. The run takes its
replicas through in step (all are created, copied, swapped together), so that a step for fifty costs what a step for one
costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from workflows.model import calls
from workflows.model.absence import Absence, sentence
from workflows.model.calls import MoveRow, ReplicaMove

# Phases of a replica while it is under way.
CREATING = "creating"  # `.move` and its marker are to be made
COPYING = "copying"  # queued for a slot, or copying
SWAPPING = "swapping"  # the last chunk, the two renames
WAITING = "waiting"  # in place; the source's `.delete` is not due yet
DELETING = "deleting"  # the `.delete` is due
CANCELLING = "cancelling"  # the `.move` is to be removed
# Phases in which it ends.
DONE = "done"
DROPPED = "dropped"
FAILED = "failed"
SUPERSEDED = "superseded"

UNDER_WAY = (CREATING, COPYING, SWAPPING, WAITING, DELETING, CANCELLING)
ENDS = (DONE, DROPPED, FAILED, SUPERSEDED)
#: Where a replica can still be dropped, and told of another directory.
BEFORE_SWAP = (CREATING, COPYING, SWAPPING)

#: (phase, outcome of its step) -> next phase.
TRANSITIONS: Mapping[tuple[str, str], str] = {
    (CREATING, calls.CREATED): COPYING,
    (CREATING, calls.CAUGHT_UP): SWAPPING,
    (CREATING, calls.IN_PLACE): DONE,
    (CREATING, calls.SWAPPED): WAITING,
    (CREATING, calls.DROPPED): DROPPED,
    (CREATING, calls.FAILED): FAILED,
    (CREATING, calls.SUPERSEDED): SUPERSEDED,
    (COPYING, calls.CAUGHT_UP): SWAPPING,
    (COPYING, calls.BEHIND): COPYING,
    (COPYING, calls.SWAPPED): WAITING,
    (COPYING, calls.IN_PLACE): DONE,
    (COPYING, calls.DROPPED): DROPPED,
    (COPYING, calls.FAILED): FAILED,
    (COPYING, calls.SUPERSEDED): SUPERSEDED,
    (SWAPPING, calls.SWAPPED): WAITING,
    (SWAPPING, calls.BEHIND): COPYING,
    (SWAPPING, calls.IN_PLACE): DONE,
    (SWAPPING, calls.DROPPED): DROPPED,
    (SWAPPING, calls.FAILED): FAILED,
    (SWAPPING, calls.SUPERSEDED): SUPERSEDED,
    (DELETING, calls.DELETED): DONE,
    (DELETING, calls.IN_PLACE): DONE,
    (DELETING, calls.SWAPPED): WAITING,
    (DELETING, calls.SUPERSEDED): DONE,
    (DELETING, calls.FAILED): DONE,
    (CANCELLING, calls.DROPPED): DROPPED,
    (CANCELLING, calls.IN_PLACE): DONE,
    (CANCELLING, calls.SWAPPED): WAITING,
    (CANCELLING, calls.DELETED): DONE,
    (CANCELLING, calls.FAILED): FAILED,
    (CANCELLING, calls.SUPERSEDED): SUPERSEDED,
}

#: The activity that does a phase's step.
STEPS: Mapping[str, str] = {
    CREATING: calls.CREATE_MOVE,
    COPYING: calls.COPY,
    SWAPPING: calls.SWAP,
    DELETING: calls.DELETE_REPLICA,
    CANCELLING: calls.CANCEL_MOVE,
}

#: What a replica that reached the directory asked for may be called in a result.
SUCCEEDED = (calls.SWAPPED, calls.DELETED, calls.IN_PLACE)

# Reasons why a replica waits, beside its node's (storage_node.move.stall.StallReason) and those for a node that the run
# misses (workflows.model.absence.Absence).
STOPPED = "stopped"
SUSPENDED = "suspended"  # the Temporal server has paused the run
GROWING_SOURCE = "growing_source"

#: A copy of which nothing was heard for so many seconds beyond what its node promised: the node is away, or too busy.
SILENCE = 15.0
#: What a node promises that has not said when it reports next.
NEXT_REPORT = 10.0

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
class Replica:
    """One replica of a run: what is asked for, its phase, the row with all that is known, and when its `.delete` is due
    (epoch s).

    `live` is the node's last report of the copy under way, `heard` when the node last said anything of this replica
    (epoch s; 0: never). `before` is the directory it was moved to before a new target that its node has not taken yet,
    "" without one.
    """

    move: ReplicaMove
    phase: str
    row: MoveRow
    due: float = 0.0
    live: Mapping[str, Any] | None = None
    heard: float = 0.0
    before: str = ""

    @staticmethod
    def asked(move: ReplicaMove) -> Replica:
        """A replica at the start of a run."""
        row = MoveRow(
            move.topic, move.partition, "", directory=move.directory, claim=move.claim, generation=move.generation
        )
        return Replica(move, CREATING, row)

    @property
    def key(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.move.topic, self.move.partition

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.phase in ENDS

    def to(self, phase: str) -> Replica:
        """The replica in another phase, decided by the run (a cancel, a new target, a timer), not by an outcome."""
        return replace(self, phase=phase)

    def aimed_at(self, directory: str) -> Replica:
        """The replica with another target, to be created anew there; its facts stay, but for the bytes, which the new
        copy counts anew.
        """
        row = replace(self.row, directory=directory, bytes_copied=0, bytes_resumed=0)
        return replace(
            self,
            move=replace(self.move, directory=directory),
            row=row,
            phase=CREATING,
            live=None,
            before=self.before or self.move.directory,
        )

    def rejected(self, row: MoveRow) -> bool:
        """Whether its node rejected the new target: `after` takes the replica back to the one before."""
        return bool(self.before) and self.phase == CREATING and row.outcome == calls.FAILED

    def after(self, row: MoveRow, now: float) -> Replica:
        """The replica after its step's row: the next phase by TRANSITIONS, facts added up, claim and generation as the
        node says.

        An outcome that the table does not know for this phase is a failure of the node's side and ends the replica as
        failed.
        """
        if self.rejected(row):
            # The node knows whether the copy there is still whole or has to start over.
            return replace(self.aimed_at(self.before), before="", heard=now)
        phase = TRANSITIONS.get((self.phase, row.outcome))
        if phase is None and self.phase == DELETING:
            phase = DONE
        elif phase is None:
            message = f"The node answered '{row.outcome}' to {STEPS.get(self.phase, self.phase)}; the run cannot go on."
            phase, row = FAILED, replace(row, outcome=calls.FAILED, error="NodeFailure", message=message)
        if self.phase == CANCELLING and self.row.outcome == calls.FAILED:
            # Only what it left was removed; why it failed stands.
            return replace(self, phase=FAILED, live=None, heard=now)
        # The replica is in place already: what becomes of its old copy is the node's business from here on.
        late = self.phase == DELETING and phase == DONE and row.outcome not in SUCCEEDED
        held = merge_rows(self.row, replace(row, outcome=self.row.outcome) if late else row)
        move = replace(self.move, claim=row.claim or self.move.claim, generation=row.generation or self.move.generation)
        due = now + max(row.delete_after, 0.0)
        return replace(self, move=move, phase=phase, row=held, due=due, live=None, heard=now, before="")

    def reported(self, live: Mapping[str, Any], now: float) -> Replica:
        """The replica after a report of its copy."""
        return replace(self, live=live, heard=now)

    def spent(self, seconds: Mapping[str, float]) -> Replica:
        """The replica with seconds of which its node cannot know, by reason."""
        before = self.row.seconds_by_reason
        total = before | {reason: round(before.get(reason, 0.0) + more, 3) for reason, more in seconds.items()}
        return replace(self, row=replace(self.row, seconds_by_reason=total))

    def silent(self, since: float, now: float) -> bool:
        """Whether its copy, asked for at `since`, should have been heard of by now."""
        promised = float((self.live or {}).get("next_in", NEXT_REPORT))
        return self.phase == COPYING and now - max(since, self.heard) > promised + SILENCE


def merge_rows(before: MoveRow, after: MoveRow) -> MoveRow:
    """The later row with nothing lost: a step that does not know a fact (0 or "") leaves what was known.

    Steps are given the facts so far and answer totals, so that the larger value is the total.
    """
    values: dict[str, Any] = {}
    for each in fields(MoveRow):
        old, new = getattr(before, each.name), getattr(after, each.name)
        values[each.name] = max(old, new) if each.name in _SUMS else (new or old)
    values["delete_after"] = after.delete_after
    values["seconds_by_reason"] = _most(before.seconds_by_reason, after.seconds_by_reason)
    if after.outcome != calls.FAILED and after.outcome != calls.SUPERSEDED:
        values["error"], values["message"] = after.error, after.message
    return MoveRow(**values)


def next_phase(replicas: Iterable[Replica]) -> str | None:
    """The phase whose step comes next: the earliest that any is in, a cancel first; None when all have ended."""
    present = {replica.phase for replica in replicas}
    for phase in (CANCELLING, CREATING, COPYING, SWAPPING, DELETING, WAITING):
        if phase in present:
            return phase
    return None


def failed_rows(replicas: Iterable[Replica], error: str, message: str) -> list[MoveRow]:
    """Rows for a step that failed as a whole."""
    return [
        MoveRow(
            each.move.topic,
            each.move.partition,
            calls.SUPERSEDED if error == "Superseded" else calls.FAILED,
            directory=each.move.directory,
            error=error,
            message=message,
        )
        for each in replicas
    ]


def _most(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return for each reason the larger of its two totals."""
    return {reason: max(before.get(reason, 0.0), after.get(reason, 0.0)) for reason in sorted({*before, *after})}


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run ends: `status` is completed, cancelled or failed; a failed one carries a stable error type and one
    sentence.
    """

    status: str
    error: str = ""
    message: str = ""


def verdict(rows: Sequence[MoveRow]) -> Verdict:
    """Completed when any replica got where it should, cancelled when all were dropped, else failed for the first reason
    found.
    """
    if any(row.outcome in SUCCEEDED for row in rows):
        return Verdict("completed")
    failed = [row for row in rows if row.outcome != calls.DROPPED]
    if not failed:
        return Verdict("cancelled")
    first = failed[0]
    message = first.message or f"{first.topic}-{first.partition} was not moved."
    if len(rows) > 1:
        message = f"None of {len(rows)} replicas was moved; the first, {first.topic}-{first.partition}: {message}"
    return Verdict(
        "failed", first.error or ("Superseded" if first.outcome == calls.SUPERSEDED else "NodeFailure"), message
    )


def sla(seconds: float | None, started: float, in_place: float | None, now: float) -> dict[str, Any]:
    """Whether the run's replicas were in place in time.

    `met` is None without an SLA and while it is open; a run that is past its deadline is late whether it has ended or
    not. Times are epoch seconds; `took` is None until all are in place.
    """
    took = None if in_place is None else round(in_place - started, 3)
    if seconds is None:
        return {"seconds": None, "deadline": None, "took": took, "met": None}
    met: bool | None = took <= seconds if took is not None else (False if now - started > seconds else None)
    return {"seconds": seconds, "deadline": round(started + seconds, 3), "took": took, "met": met}


def eta(total: int, done: int, rate: float, append_rate: float = 0.0, stall: str = "") -> float | None:
    """Seconds until a copy is done at this rate (bytes/s) while its source grows at `append_rate`.

    None when it cannot be told or never comes, 0 when nothing is left.
    """
    left = max(total - done, 0)
    if left == 0:
        return 0.0 if total else None
    if stall == GROWING_SOURCE or rate <= append_rate:
        return None
    return round(left / (rate - append_rate), 1)


def _stall(
    replica: Replica, live: Mapping[str, Any], now: float, waiting_for: str, paused: bool, absence: str
) -> tuple[str, str]:
    """What holds a replica, and a sentence: the node's own word while it is heard of, else what the run knows."""
    if replica.ended:
        return "", ""
    if waiting_for:
        age = (
            f"it was last heard of {max(0.0, now - replica.heard):.0f} s ago"
            if replica.heard
            else "it was never heard of"
        )
        return absence, f"{sentence(absence, waiting_for)}; {age}"
    if paused and replica.phase in BEFORE_SWAP:
        return STOPPED, "the run is paused"
    if replica.phase != COPYING:
        return "", ""
    return str(live.get("stall", "")), str(live.get("stall_message", ""))


def held_by(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The replica of a run's `progress` that tells what holds the run; None while any of it gets on.

    A source that grows faster than its copy comes first: with it the run has no end.
    """
    held = [row for row in rows if row["stall"]]
    growing = [row for row in held if row["stall"] == GROWING_SOURCE]
    if growing:
        return growing[0]
    if any(row["phase"] in UNDER_WAY and row["phase"] != WAITING and not row["stall"] for row in rows):
        return None
    return held[0] if held else None


def progress(
    replica: Replica, now: float, waiting_for: str = "", paused: bool = False, absence: str = Absence.AWAY
) -> dict[str, Any]:
    """What `progress` tells of one replica: the last report of its copy, or what the last step answered.

    While the run waits for its node, `waiting_for` names it and `absence` is the reason: the last report remains,
    `report_age` seconds old (None: nothing was ever heard).
    """
    live = replica.live or {}
    total = int(live.get("bytes_total") or replica.row.bytes_total)
    done = int(live.get("bytes_copied", replica.row.bytes_copied))
    done = total if replica.phase in (SWAPPING, WAITING, DELETING, DONE) else min(done, total)
    away = bool(waiting_for) and not replica.ended
    rate = 0.0 if away else float(live.get("rate", 0.0))
    growth = 0.0 if away else float(live.get("append_rate", 0.0))
    stall, message = _stall(replica, live, now, waiting_for, paused, absence)
    return {
        "topic": replica.move.topic,
        "partition": replica.move.partition,
        "phase": replica.phase,
        "state": f"waiting for {waiting_for}" if away else str(live.get("state", "")),
        "source": replica.row.source,
        "directory": replica.move.directory,
        "claim": replica.move.claim,
        "generation": replica.move.generation,
        "bytes_total": total,
        "bytes_copied": done,
        "bytes_resumed": int(live.get("bytes_resumed", replica.row.bytes_resumed)),
        "rate": rate,
        "append_rate": growth,
        "eta_seconds": eta(total, done, rate, growth, stall) if replica.phase == COPYING else None,
        "stall": stall,
        "stall_message": message,
        "seconds_by_reason": _most(replica.row.seconds_by_reason, live.get("seconds_by_reason") or {}),
        "attempt": int(live.get("attempt", replica.row.attempts)),
        "report_age": round(max(0.0, now - replica.heard), 3) if replica.heard else None,
        "outcome": replica.row.outcome if replica.ended else "",
        "error": replica.row.error,
        "message": replica.row.message,
    }
