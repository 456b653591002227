"""The last batch of commands of each node with its results, so that a repeated batch is applied once. Pure.

Temporal knows an update's id only within the run that accepted it. A node that lost a response sends the same batch
again, perhaps to the run that follows: a create would then be rejected because its topic exists, and a reassignment
would replace a later one. So each batch has a number, and the controller carries the last one of each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from storage_node.model.error_codes import ErrorCode
from workflows.model.metadata.outcome import Refused, Result

#: Results kept over all nodes, the latest batches first: as many as a reassignment of 10,000 partitions has. A batch
#: with more than all of these is remembered by its number, and rejected when it is sent again.
REMEMBERED_RESULTS = 10_000

#: Characters of these results' messages in all; results beyond it are dropped in the same way.
REMEMBERED_CHARACTERS = 200_000

Results = list[list[Result]]


@dataclass(frozen=True, slots=True)
class _Last:
    incarnation: str
    number: int
    commands: int
    results: Results | None
    """None if they were dropped to stay below `REMEMBERED_RESULTS`."""

    @property
    def characters(self) -> int:
        """Return the length of its results' messages in all."""
        return sum(len(str(each.get("message", ""))) for one in self.results or () for each in one)

    def without_results(self) -> _Last:
        """Return the batch without its results, which are dropped."""
        return _Last(self.incarnation, self.number, self.commands, None)


class Batches:
    """The last batch of each node. The numbers of an incarnation increase; 0 is a batch without one."""

    def __init__(self) -> None:
        self._last: dict[int, _Last] = {}

    def results(self, node: int, incarnation: str, number: int, commands: int) -> Results | None:
        """Return the results of a repeated batch, or errors if a later one was applied; None for a new one."""
        known = self._last.get(node)
        if number == 0 or known is None or known.incarnation != incarnation or number > known.number:
            return None
        if number == known.number and known.results is not None and known.commands == commands:
            return known.results
        late = Refused(ErrorCode.REQUEST_TIMED_OUT, "The node has sent a later batch before this one.")
        gone = Refused(
            ErrorCode.REQUEST_TIMED_OUT, "The batch was applied, but the controller has dropped its results."
        )
        return [[(late if number < known.number else gone).result()] for _ in range(commands)]

    def remember(self, node: int, incarnation: str, number: int, results: Results) -> None:
        """Remember a batch that was applied."""
        if number == 0:
            return
        self._last.pop(node, None)  # The latest comes last.
        self._last[node] = _Last(incarnation, number, len(results), results)
        room, characters = REMEMBERED_RESULTS, REMEMBERED_CHARACTERS
        for other, each in reversed(list(self._last.items())):
            if each.results is None:
                continue
            room -= sum(len(one) for one in each.results)
            characters -= each.characters
            if room < 0 or characters < 0:
                self._last[other] = each.without_results()

    def forget(self) -> None:
        """Drop all results, but not that the batches were applied."""
        self._last = {node: each.without_results() for node, each in self._last.items()}

    def rows(self) -> list[list[Any]]:
        """Return the rows for a continue-as-new."""
        return [[node, each.incarnation, each.number, each.commands, each.results] for node, each in self._last.items()]

    @staticmethod
    def of(rows: Sequence[Sequence[Any]]) -> Batches:
        """Return the batches of such rows."""
        it = Batches()
        for node, incarnation, number, count, results in rows:
            it._last[int(node)] = _Last(str(incarnation), int(number), int(count), results)
        return it
