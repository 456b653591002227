"""What the nemesis does and in which order: fixed by the seed alone. Pure.

A decision names an action, the pause before it, and numbers between 0 and 1 with which whoever carries it out picks
among what there is by then (a node, a partition, a directory, how long). So the same seed gives the same decisions,
though what they meet, and when, differs from run to run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

#: How often each action comes up, relative to the others.
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
#: What comes on top where a partition has several replicas.
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
#: What comes on top where a container engine holds the roles.
BY_ENGINE: dict[str, int] = {
    "cut-role": 6,
    "freeze-role": 3,
    "squeeze-node": 5,
}
#: What comes on top where each node has a disk that can be made to fail.
ON_DISKS: dict[str, int] = {
    "disk-errors": 6,
    "disk-hangs": 5,
    "disk-full": 4,
    "bad-file": 5,
}

#: Mean seconds between two decisions.
PAUSE_SECONDS = 0.9
PICKS = 6


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision, `number`-th of its run; `pause` seconds after the one before it."""

    number: int
    action: str
    pause: float
    picks: tuple[float, ...]

    def pick(self, which: int, choices: Sequence[T]) -> T:
        """One of the choices, by the `which`-th number. Raises IndexError where there are none."""
        return choices[int(self.picks[which] * len(choices))]

    def shuffled(self, which: int, choices: Sequence[T]) -> list[T]:
        """The choices in an order fixed by the `which`-th number."""
        found = list(choices)
        random.Random(self.picks[which]).shuffle(found)
        return found

    def between(self, which: int, low: float, high: float) -> float:
        return low + self.picks[which] * (high - low)


def decisions(
    seed: int, *, by_engine: bool = False, replicated: bool = False, disks: bool = False
) -> Iterator[Decision]:
    """Yield the endless row of decisions of a seed; `disks`: where disks can be made to fail."""
    source = random.Random(seed)
    table = WEIGHTS | (BY_ENGINE if by_engine else {}) | (REPLICATED if replicated else {})
    table |= ON_DISKS if disks else {}
    actions, weights = list(table), list(table.values())
    number = 0
    while True:
        number += 1
        pause = min(source.expovariate(1 / PAUSE_SECONDS), 4 * PAUSE_SECONDS)
        action = source.choices(actions, weights)[0]
        yield Decision(number, action, pause, tuple(source.random() for _ in range(PICKS)))
