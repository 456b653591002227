"""How far the moves of a lane are while its step follows them: the details of the step's heartbeats. Pure.

They are in no history, so that they cost a run nothing, and whoever watches reads them from Temporal's server.
Times are epoch seconds, sizes bytes, rates bytes per second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from storage_node.model import fields
from workflows.model.plans.values import Disk

#: Moves that one heartbeat has; of a larger lane the others are counted.
MOST_MOVES = 200


@dataclass(frozen=True, slots=True)
class LiveMove:
    """A move that has not ended. `rate` is how fast the bytes left become fewer, `slow` and `fast` its range of the
    last minute; they are None while they are unknown. `reads` and `writes` are the disks that it uses.
    """

    key: str
    state: str = ""
    copied: int = 0
    total: int = 0
    rate: float | None = None
    slow: float | None = None
    fast: float | None = None
    reads: tuple[Disk, ...] = ()
    writes: tuple[Disk, ...] = ()
    stalled: str = ""

    @property
    def left(self) -> int:
        """Return the bytes that are to be copied."""
        return max(0, self.total - self.copied)


@dataclass(frozen=True, slots=True)
class LaneReport:
    """The open moves of a lane when its step last read the cluster, and how many more there are."""

    at: float
    moves: tuple[LiveMove, ...] = field(default=())
    more: int = 0

    @staticmethod
    def of(at: float, moves: Iterable[LiveMove]) -> LaneReport:
        """Return the report of a lane, with at most `MOST_MOVES`."""
        found = tuple(moves)
        return LaneReport(at, found[:MOST_MOVES], max(0, len(found) - MOST_MOVES))

    def as_json(self) -> dict[str, Any]:
        """Return the value that `read` accepts."""
        return {"at": self.at, "moves": [_row(move) for move in self.moves], "more": self.more}


def _row(move: LiveMove) -> dict[str, Any]:
    row = asdict(move) | {
        name: [[disk.node, disk.path] for disk in getattr(move, name)] for name in ("reads", "writes")
    }
    return {name: value for name, value in row.items() if value not in ("", None, [])}


def read(value: Any) -> LaneReport:
    """Read a heartbeat's details. Raises BadField for one of another version, and for those of another step."""
    row = fields.an_object(value, "$", ("at", "moves", "more"))
    moves = [
        _move(each, f"$.moves[{at}]")
        for at, each in enumerate(fields.a_list(fields.need(row, "moves", "$"), "$.moves"))
    ]
    at = fields.a_measure(fields.need(row, "at", "$"), "$.at")
    return LaneReport(at, tuple(moves), fields.a_number(row.get("more", 0), "$.more"))


def _move(value: Any, path: str) -> LiveMove:
    row = fields.an_object(value, path, tuple(LiveMove.__dataclass_fields__))
    rates = {name: float(row[name]) for name in ("rate", "slow", "fast") if isinstance(row.get(name), int | float)}
    return LiveMove(
        fields.a_string(fields.need(row, "key", path), f"{path}.key"),
        fields.a_string(row.get("state", ""), f"{path}.state", empty=True),
        fields.a_number(row.get("copied", 0), f"{path}.copied"),
        fields.a_number(row.get("total", 0), f"{path}.total"),
        reads=_disks(row.get("reads", []), f"{path}.reads"),
        writes=_disks(row.get("writes", []), f"{path}.writes"),
        stalled=fields.a_string(row.get("stalled", ""), f"{path}.stalled", empty=True),
        **rates,
    )


def _disks(value: Any, path: str) -> tuple[Disk, ...]:
    found = []
    for at, pair in enumerate(fields.a_list(value, path)):
        here = f"{path}[{at}]"
        if len(fields.a_list(pair, here)) != 2:
            raise fields.BadField(here, "must be a node and a path")
        found.append(Disk(fields.a_number(pair[0], f"{here}[0]"), fields.a_string(pair[1], f"{here}[1]")))
    return tuple(found)
