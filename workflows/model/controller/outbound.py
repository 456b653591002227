"""The controller's commands to other runs: child starts, signals and cancels, each kept until acknowledged. Pure.

The server carries out a workflow's commands after the task, and only if their run is still open then. So the controller
keeps each until the server has acknowledged it, and carries the rest into the run that follows. If the server had
carried out one of those all the same, its receiver applies it once, and a run is started once: its id names the change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

START, SIGNAL, CANCEL = "start", "signal", "cancel"

#: So many at a time wait for the server's acknowledgement. A busy server acknowledges some twenty a second, and a run
#: that drains all of them should not wait for long; the server rejects more than 2,000 of a kind.
IN_FLIGHT = 32


@dataclass(frozen=True, slots=True)
class Outbound:
    """One command. `name` is the signal's, or the summary of a start; `payload` its argument; `run_id` "" is the open
    run of that id.
    """

    kind: str
    workflow_id: str
    run_id: str = ""
    name: str = ""
    payload: Any = None

    def row(self) -> list[Any]:
        """Return the row for a continue-as-new."""
        return [self.kind, self.workflow_id, self.run_id, self.name, self.payload]


class Outbox:
    """A queue of commands in the order in which they were added: `take` returns those to send now, `sent` removes one.

    At most one per workflow id is in flight, since the server does not keep their order.
    """

    def __init__(self) -> None:
        self._waiting: deque[Outbound] = deque()
        self._in_flight: dict[int, Outbound] = {}
        self._next = 1

    def __len__(self) -> int:
        """Return the number of commands that the server has not acknowledged, those in flight included."""
        return len(self._waiting) + len(self._in_flight)

    @property
    def in_flight(self) -> int:
        """Return the number of commands in flight: sent to the server and not acknowledged yet."""
        return len(self._in_flight)

    def add(self, one: Outbound) -> None:
        """Add a command behind all that wait."""
        self._waiting.append(one)

    def take(self) -> list[tuple[int, Outbound]]:
        """Return the commands to send to the server now, each with its number for `sent`."""
        taken: list[tuple[int, Outbound]] = []
        busy = {one.workflow_id for one in self._in_flight.values()}
        behind: list[Outbound] = []
        while self._waiting and len(self._in_flight) < IN_FLIGHT:
            one = self._waiting.popleft()
            if one.workflow_id in busy:
                behind.append(one)
                continue
            busy.add(one.workflow_id)
            taken.append((self._next, one))
            self._in_flight[self._next] = one
            self._next += 1
        self._waiting.extendleft(reversed(behind))
        return taken

    def sent(self, number: int) -> None:
        """Remove a command that the server has acknowledged, or rejected for good, since its receiver has ended."""
        self._in_flight.pop(number, None)

    def rows(self) -> list[list[Any]]:
        """Return the rows for a continue-as-new: all unacknowledged commands. Those in flight are sent a second time;
        their receivers apply them once.
        """
        return [one.row() for one in (*self._in_flight.values(), *self._waiting)]

    @staticmethod
    def of(rows: Sequence[Sequence[Any]]) -> Outbox:
        """Return the outbox of such rows, none of it in flight."""
        it = Outbox()
        for kind, workflow_id, run_id, name, payload in rows:
            it.add(Outbound(str(kind), str(workflow_id), str(run_id), str(name), payload))
        return it
