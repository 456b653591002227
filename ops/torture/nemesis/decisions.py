"""The nemesis' actions and their order, determined by the seed alone. Pure.

A decision has an action, the pause before it, and numbers between 0 and 1 by which the nemesis picks a node, partition,
directory or duration from those that exist at that time. The same seed yields the same decisions, but the state that
they find, and its timing, differ from run to run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")

#: The relative frequency of each action.
WEIGHTS: dict[str, int] = {
    "move-by-sdk": 16,
    "move-by-api": 12,
    "move-many": 8,
    "cancel-by-temporal": 5,
    "cancel-by-current-directory": 4,
    "cancel-by-any": 4,
    "retarget-by-api": 5,
    "retarget-by-update": 4,
    "pause": 4,
    "resume": 4,
    "throttle-run": 4,
    "throttle-node": 4,
    "stop-moves": 2,
    "resume-moves": 2,
    "delete-records": 5,
    "side-topic": 6,
    "kill-node": 6,
    "kill-controller": 2,
    "kill-temporal": 2,
    "freeze-node": 4,
    "die-at-point": 9,
}
#: Further actions where partitions have several replicas.
REPLICATED: dict[str, int] = {
    "reassign": 16,
    "reassign-many": 4,
    "reassign-again": 6,
    "cancel-reassignment": 6,
    "cancel-reassignment-by-temporal": 3,
    "elect-leaders": 4,
    "throttle-replication": 6,
    "kill-leader": 5,
    "freeze-past-lease": 4,
    "stop-node": 4,
}
#: Further actions where the roles run in containers.
BY_ENGINE: dict[str, int] = {
    "cut-role": 6,
    "freeze-role": 3,
    "squeeze-node": 5,
}
#: Further actions where each node has a disk with fault injection.
ON_DISKS: dict[str, int] = {
    "disk-errors": 6,
    "disk-hangs": 5,
    "disk-full": 4,
    "bad-file": 5,
    "disk-replaced": 3,
}

#: Mean seconds between two decisions.
PAUSE_SECONDS = 0.9
PICKS = 7


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision, the `number`-th of its run, `pause` seconds after the previous one."""

    number: int
    action: str
    pause: float
    picks: tuple[float, ...]

    def pick(self, which: int, choices: Sequence[T]) -> T:
        """Return one of `choices`, by the `which`-th number. Raises IndexError if there are none."""
        return choices[int(self.picks[which] * len(choices))]

    def shuffled(self, which: int, choices: Sequence[T]) -> list[T]:
        """Return `choices` in an order determined by the `which`-th number."""
        found = list(choices)
        random.Random(self.picks[which]).shuffle(found)
        return found

    def between(self, which: int, low: float, high: float) -> float:
        return low + self.picks[which] * (high - low)


def weights_of(*, by_engine: bool = False, replicated: bool = False, disks: bool = False) -> dict[str, int]:
    """Return the weights of the actions; `disks`: include disk faults."""
    table = WEIGHTS | (BY_ENGINE if by_engine else {}) | (REPLICATED if replicated else {})
    return table | (ON_DISKS if disks else {})


class Every:
    """Actions that happen every so many seconds, each in place of what the seed decides then."""

    def __init__(self, seconds: Mapping[str, float], began: float) -> None:
        self._seconds = dict(seconds)
        self._due = {action: began + each for action, each in seconds.items()}

    def chosen(self, decision: Decision, now: float) -> Decision:
        """Return `decision` with the action that is due for the longest time at `now`, if one is."""
        action = min(self._due, key=self._due.__getitem__, default="")
        if not action or now < self._due[action]:
            return decision
        self._due[action] += self._seconds[action]
        return replace(decision, action=action)


def decisions(
    seed: int, *, by_engine: bool = False, replicated: bool = False, disks: bool = False
) -> Iterator[Decision]:
    """Yield the infinite sequence of a seed's decisions."""
    source = random.Random(seed)
    weights = weights_of(by_engine=by_engine, replicated=replicated, disks=disks)
    number = 0
    while True:
        number += 1
        pause = min(source.expovariate(1 / PAUSE_SECONDS), 4 * PAUSE_SECONDS)
        action = source.choices(list(weights), list(weights.values()))[0]
        yield Decision(number, action, pause, tuple(source.random() for _ in range(PICKS)))
