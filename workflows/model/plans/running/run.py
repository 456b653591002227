"""The state of a plan's run: its lanes, what became of their moves, and what a continued run carries over. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows.model.plans.running import packing
from workflows.model.plans.running.calls import PlanMoveRow, move_rows
from workflows.model.plans.running.following import REACHED, MoveOutcome
from workflows.model.plans.running.packing import LaneState

NO_ROW = "the lane's run ended without a row for it"
#: Failed moves that a run keeps with their reasons; beyond that they are counted.
MOST_FAILURES = 200
#: Moves that may be skipped by name.
MOST_SKIPPED = 1_000
#: Moves of a lane that do not advance, and of a plan, that are shown with their reasons.
MOST_STALLED = 20
#: Moves that a run keeps by key because the others of their lanes reached their targets; beyond that a retry begins all
#: moves of a lane again, which is harmless: those that have reached their targets are in place.
MOST_MISSED = 5_000


class PlanPhase(StrEnum):
    """The phase of a plan."""

    CHECKING = "checking"
    AWAITING_APPROVAL = "awaiting_approval"
    MOVING = "moving"
    PAUSED = "paused"
    OUTSIDE_WINDOW = "outside_window"
    CANCELLING = "cancelling"
    ROLLING_BACK = "rolling_back"
    VERIFYING = "verifying"


class PauseMode(StrEnum):
    """What becomes of the moves under way when a plan is paused."""

    FINISH = "finish"
    CANCEL = "cancel"


@dataclass
class PlanRun:
    """The lanes of a plan and their moves. `open_lanes` has the keys of an open lane's moves, by the lane's number."""

    states: list[LaneState] = field(default_factory=list)
    open_lanes: dict[int, list[str]] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    """How often a lane has begun, if more than once."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """Moves by outcome."""
    failures: list[PlanMoveRow] = field(default_factory=list)
    missed: dict[int, list[str]] = field(default_factory=dict)
    """The moves of a lane that did not reach what the plan says, by its number; [] stands for all of them."""
    copied: int = 0
    """Bytes of moves that ended where the plan wants them."""
    copied_now: int = 0
    """Bytes that the open lanes had copied at the last read."""
    seconds: float = 0.0
    skipped: list[str] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    """The open lanes that a pause has stopped: what they have cancelled begins again."""
    left_total: int | None = None
    """All bytes of the lanes that had not ended at the last read; None before it."""
    stalled: dict[int, list[PlanMoveRow]] = field(default_factory=dict)
    """The moves of an open lane that do not advance, by its number."""
    unlisted: list[int] = field(default_factory=list)
    """The open lanes that have yet to list their replicas as throttled: they began before the plan had a throttle."""
    finishing: set[int] = field(default_factory=set)
    """The open lanes with few moves left: the next lane is started and requested while these end, so that no disk is
    idle meanwhile. A continued run does not know them."""

    def planned(self, lanes: int) -> None:
        """Begin with so many lanes."""
        self.states = [LaneState.PENDING] * lanes

    def begun(self, number: int, keys: Sequence[str]) -> int:
        """Note that a lane begins; return which attempt of it this is, from 1."""
        self.states[number] = LaneState.RUNNING
        self.open_lanes[number] = list(keys)
        self.attempts[number] = self.attempts.get(number, 0) + 1
        return self.attempts[number]

    def ended(self, number: int, rows: Iterable[PlanMoveRow]) -> bool:
        """Note the rows of a lane that has ended; return False for one that is not open (a repeated message).

        A move without a row has failed; rows of other moves are ignored. A lane that a pause has stopped becomes
        pending again with the moves that were cancelled.
        """
        if number not in self.open_lanes:
            return False
        keys = self.open_lanes.pop(number)
        self.finishing.discard(number)
        self.stalled.pop(number, None)
        self.unlisted = [each for each in self.unlisted if each != number]
        stopped = number in self.stopped
        self.stopped = [each for each in self.stopped if each != number]
        by_key = {row.key: row for row in rows}
        missed, again = [], []
        for key in keys:
            row = by_key.get(key) or PlanMoveRow(key, str(MoveOutcome.FAILED), reason=NO_ROW)
            row = row if row.outcome else replace(row, outcome=str(MoveOutcome.FAILED))
            if stopped and row.outcome == MoveOutcome.CANCELLED:
                again.append(key)
                continue
            self.outcomes[row.outcome] = self.outcomes.get(row.outcome, 0) + 1
            if row.reached:
                self.copied += row.copied if row.outcome == MoveOutcome.MOVED else 0
                self.seconds += row.seconds
            else:
                missed.append(key)
                self.failures = [*self.failures, row][-MOST_FAILURES:]
        if again:
            # What failed in a stopped lane is tried once more with it.
            self._uncount(missed)
        self.states[number] = LaneState.PENDING if again else LaneState.FAILED if missed else LaneState.DONE
        left = [*missed, *again]
        named = sum(map(len, self.missed.values()))
        if not left:
            self.missed.pop(number, None)
        else:
            self.missed[number] = left if len(left) < len(keys) or number in self.missed else []
            if named + len(left) > MOST_MISSED:
                self.missed[number] = []
        if not self.open_lanes:
            self.copied_now = 0
            if not self.left:
                self.left_total = 0
        return True

    def looked(self, copied: int, total: int) -> None:
        """Note what a read shows of the lanes that have not ended."""
        self.copied_now, self.left_total = copied, total

    def rate(self, seconds: float) -> float:
        """Return how fast the plan has copied in so many seconds of moving, in bytes/s; 0 before it has copied."""
        return (self.copied + self.copied_now) / seconds if seconds > 0 else 0.0

    def bytes_total(self, planned: int) -> int:
        """Return all bytes of the plan: topics grow while it runs, so that the planned ones would not do."""
        return planned if self.left_total is None else self.copied + max(self.left_total, self.copied_now)

    def stalls(self, number: int, rows: Sequence[PlanMoveRow]) -> None:
        """Note which moves of an open lane do not advance."""
        self.stalled.pop(number, None)
        if rows and number in self.open_lanes:
            self.stalled[number] = list(rows)[:MOST_STALLED]
            self.finishing.discard(number)

    def finishes(self, number: int) -> None:
        """Note that an open lane has few moves left, all of which advance."""
        if number in self.open_lanes and number not in self.stalled:
            self.finishing.add(number)

    @property
    def stalled_rows(self) -> list[PlanMoveRow]:
        """Return the first moves that do not advance, with their reasons."""
        rows = [row for _, each in sorted(self.stalled.items()) for row in each]
        return rows[:MOST_STALLED]

    def stop_for_pause(self) -> None:
        """Note that a pause stops the open lanes."""
        self.stopped = sorted(self.open_lanes)

    def list_open(self) -> None:
        """Note that the plan has a throttle between brokers now, which holds for the open lanes as well."""
        self.unlisted = sorted(self.open_lanes)

    def lost(self, number: int, why: str) -> None:
        """Note that the run of an open lane ended without its rows."""
        self.ended(number, [PlanMoveRow(key, str(MoveOutcome.FAILED), reason=why) for key in self.open_lanes[number]])

    def pending(self, number: int) -> bool:
        """Return whether a lane may begin."""
        return number < len(self.states) and self.states[number] == LaneState.PENDING

    @property
    def failed(self) -> bool:
        """Return whether a lane has a move that `retry` would begin again."""
        return LaneState.FAILED in self.states

    def retry(self) -> int:
        """Make every lane with a move that failed pending again; return their number."""
        numbers = packing.numbers_in(self.states, LaneState.FAILED)
        for number in numbers:
            self.states[number] = LaneState.PENDING
        # Whatever missed its target belongs to one of these lanes.
        self.outcomes = {outcome: count for outcome, count in self.outcomes.items() if outcome in REACHED}
        self.failures = []
        return len(numbers)

    def _uncount(self, keys: Collection[str]) -> None:
        for row in self.failures:
            if row.key in keys:
                self.outcomes[row.outcome] -= 1
        self.failures = [row for row in self.failures if row.key not in keys]
        self.outcomes = {outcome: count for outcome, count in self.outcomes.items() if count}

    def due(self, number: int, keys: Iterable[str]) -> list[str]:
        """Return the moves of a lane that it begins with: of a lane that failed before, those that failed."""
        missed = set(self.missed.get(number, ()))
        return [key for key in keys if not missed or key in missed]

    def back_to_pending(self, number: int) -> None:
        """Note that an open lane has no run any more: it begins again, and adopts its moves."""
        self.open_lanes.pop(number, None)
        self.finishing.discard(number)
        self.stalled.pop(number, None)
        self.stopped = [each for each in self.stopped if each != number]
        self.unlisted = [each for each in self.unlisted if each != number]
        self.states[number] = LaneState.PENDING

    @property
    def left(self) -> int:
        """Return the number of lanes that have not begun."""
        return sum(state == LaneState.PENDING for state in self.states)

    def carried(self) -> dict[str, Any]:
        """Return the state for the run that continues this one; packed, since keys and reasons may be long."""
        rest: dict[str, Any] = {
            "open_lanes": [[number, keys] for number, keys in self.open_lanes.items()],
            "attempts": [
                [number, count]
                for number, count in self.attempts.items()
                if count > 1 or self.states[number] == LaneState.PENDING
            ],
            "outcomes": self.outcomes,
            "failures": [asdict(row) for row in self.failures],
            "missed": [[number, keys] for number, keys in self.missed.items()],
            "copied": self.copied,
            "copied_now": self.copied_now,
            "seconds": self.seconds,
            "skipped": self.skipped,
            "stopped": self.stopped,
        }
        if self.stalled:
            rest["stalled"] = [[number, [asdict(row) for row in rows]] for number, rows in self.stalled.items()]
        if self.unlisted:
            rest["unlisted"] = self.unlisted
        return {"states": packing.pack_states(self.states), "rest": packing.pack(json.dumps(rest))}

    @staticmethod
    def of(value: Any, path: str = "$.carried.run") -> PlanRun:
        """Read `carried`. Raises BadField."""
        row = fields.an_object(value, path, ("states", "rest"))
        states = packing.unpack_states(fields.a_string(fields.need(row, "states", path), f"{path}.states"))
        text = packing.unpack(fields.a_string(fields.need(row, "rest", path), f"{path}.rest"))
        try:
            rest = fields.an_object(json.loads(text), path)
        except (ValueError, RecursionError) as error:
            raise BadField(f"{path}.rest", f"is not JSON: {error}") from error
        attempts = {number: 1 for number, state in enumerate(states) if state != LaneState.PENDING}
        open_lanes, last = _by_lane(rest, "open_lanes", path), len(states) - 1
        for number in open_lanes:
            fields.a_number(number, f"{path}.open_lanes", 0, last)
        return PlanRun(
            states,
            open_lanes,
            attempts | {number: each for number, each in _pairs(rest, "attempts", path, fields.a_number)},
            {
                fields.a_string(outcome, f"{path}.outcomes"): fields.a_number(count, f"{path}.outcomes.{outcome}")
                for outcome, count in fields.an_object(rest.get("outcomes", {}), f"{path}.outcomes").items()
            },
            move_rows(rest.get("failures", []), f"{path}.failures"),
            _by_lane(rest, "missed", path),
            fields.a_number(rest.get("copied", 0), f"{path}.copied"),
            fields.a_number(rest.get("copied_now", 0), f"{path}.copied_now"),
            fields.a_measure(rest.get("seconds", 0.0), f"{path}.seconds"),
            _keys(rest.get("skipped", []), f"{path}.skipped"),
            list(fields.numbers(rest.get("stopped", []), f"{path}.stopped")),
            stalled=dict(_pairs(rest, "stalled", path, move_rows)),
            unlisted=[
                number
                for number in fields.numbers(rest.get("unlisted", []), f"{path}.unlisted")
                if number in open_lanes
            ],
        )


def _keys(value: Any, path: str) -> list[str]:
    return [fields.a_string(each, f"{path}[{at}]") for at, each in enumerate(fields.a_list(value, path))]


def _pairs(row: Mapping[str, Any], name: str, path: str, read: Callable[[Any, str], Any]) -> Iterator[tuple[int, Any]]:
    for at, pair in enumerate(fields.a_list(row.get(name, []), f"{path}.{name}")):
        here = f"{path}.{name}[{at}]"
        if len(fields.a_list(pair, here)) != 2:
            raise BadField(here, "must be a lane's number and a value")
        yield fields.a_number(pair[0], f"{here}[0]"), read(pair[1], f"{here}[1]")


def _by_lane(row: Mapping[str, Any], name: str, path: str) -> dict[int, list[str]]:
    return dict(_pairs(row, name, path, _keys))
