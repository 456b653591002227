"""Readers of what the activities of a plan return: each returns its value, or raises BadField."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows.model.plans.adaptive import decision_of
from workflows.model.plans.recheck import Change
from workflows.model.plans.running import lane_request, packing
from workflows.model.plans.running.calls import (
    CheckResult,
    ChooseResult,
    CordonResult,
    DiskRow,
    DrainResult,
    HoldResult,
    LaneSpec,
    PlanMoveRow,
    ReadThrottlesResult,
    VerifyResult,
    WriteThrottlesResult,
    move_rows,
)
from workflows.model.plans.running.following import MoveOutcome

Reader = Callable[[Any, str], Any]

LONGEST_WAIT = 30 * 86_400.0


def _shown(value: Any, path: str) -> str:
    """A sentence for operators; it may quote anything."""
    return fields.shown(fields.a_note(value, path))


def _sentences(value: Any, path: str) -> list[str]:
    return [_shown(each, f"{path}[{at}]") for at, each in enumerate(fields.a_list(value, path))]


def _strings(value: Any, path: str) -> list[str]:
    return [fields.a_string(each, f"{path}[{at}]") for at, each in enumerate(fields.a_list(value, path))]


def _numbers(value: Any, path: str) -> list[int]:
    return list(fields.numbers(value, path))


def _size(value: Any, path: str) -> int:
    return fields.a_number(value, path, -1)


def _counts(value: Any, path: str) -> dict[str, int]:
    return {name: fields.a_number(count, f"{path}.{name}") for name, count in fields.an_object(value, path).items()}


def _signed(value: Any, path: str) -> int:
    return fields.a_number(value, path, -(1 << 63))


def _measure_or_none(value: Any, path: str) -> float | None:
    return None if value is None else fields.a_measure(value, path)


def _rate_or_none(value: Any, path: str) -> int | None:
    return None if value is None else fields.a_number(value, path, 1)


def _wait_or_none(value: Any, path: str) -> float | None:
    """Seconds of a timer, of which the server has limits; the run checks again after `LONGEST_WAIT` at the latest."""
    return None if value is None else min(fields.a_measure(value, path), LONGEST_WAIT)


_DISK: Mapping[str, Reader] = {
    "broker": fields.a_number,
    "path": fields.a_note,
    "used": _signed,
    "usable": _signed,
    "used_worst": _signed,
    "used_after": _signed,
}


def _disks(value: Any, path: str) -> list[DiskRow]:
    return [
        DiskRow(**_row(each, f"{path}[{at}]", _DISK, tuple(_DISK)))
        for at, each in enumerate(fields.a_list(value, path))
    ]


_CHECK: Mapping[str, Reader] = {
    "cluster_id": fields.a_note,
    "moves": fields.a_number,
    "lanes": lambda value, path: fields.a_number(value, path, 0, packing.LARGEST_LANES),
    "in_place": fields.a_number,
    "bytes_total": fields.a_number,
    "leaders_moved": fields.a_number,
    "lanes_ref": fields.a_note,
    "lanes_packed": fields.a_note,
    "rollback_ref": fields.a_note,
    "rollback_packed": fields.a_note,
    "rollback_path": fields.a_note,
    "plan": fields.a_note,
    "plan_packed": fields.a_note,
    "outcomes": _counts,
    "failures": move_rows,
    "problems": _sentences,
    "problem_count": fields.a_number,
    "disks": _disks,
    "brokers": _numbers,
    "seconds_low": _measure_or_none,
    "seconds_high": _measure_or_none,
    "topics": _strings,
    "searchable": fields.a_flag,
}


def check(value: Any, path: str = "$") -> CheckResult:
    """Read the result of `check_plan`."""
    found = CheckResult(**_row(value, path, _CHECK, ("cluster_id",)))
    if found.problem_count and not found.problems:
        raise BadField(f"{path}.problems", f"is empty, but problem_count is {found.problem_count}")
    return found


_CHOICE: Mapping[str, Reader] = {
    "lanes": lambda value, path: [_lane(each, f"{path}[{at}]") for at, each in enumerate(fields.a_list(value, path))],
    "copied": fields.a_number,
    "total": fields.a_number,
    "reasons": _sentences,
    "done": fields.a_flag,
    "closed": _numbers,
    "between_brokers": _rate_or_none,
    "between_directories": _rate_or_none,
    "opens_in": _wait_or_none,
    "changes_in": _wait_or_none,
    "warning": _shown,
    "shares": fields.a_flag,
    "adaptive": lambda value, path: None if value is None else decision_of(value, path).as_json(),
    "change": lambda value, path: None if value is None else Change.of(value, path).as_json(),
    "large_changes": _sentences,
}


def choice(value: Any) -> ChooseResult:
    """Read the result of `choose_lanes`."""
    return ChooseResult(**_row(value, "$", _CHOICE))


def _lane(value: Any, path: str) -> LaneSpec:
    row = fields.an_object(value, path, ("number", "moves"))
    number = fields.a_number(fields.need(row, "number", path), f"{path}.number", 0, packing.LARGEST_LANES)
    # A lane of which every move is skipped has none.
    specs = lane_request.specs(fields.need(row, "moves", path), f"{path}.moves", least=0)
    return LaneSpec(number, [spec.row() for spec in specs])


def moved(value: Any, keys: Collection[str]) -> list[PlanMoveRow]:
    """Read the result of a lane's step for these moves: a row for each."""
    rows = move_rows(fields.need(fields.an_object(value, "$"), "rows", "$"))
    if missing := sorted(set(keys) - {row.key for row in rows}):
        raise BadField("$.rows", f"has no row for {missing[0]}")
    return [row for row in rows if row.key in keys]


_VERIFIED: Mapping[str, Reader] = {
    "ok": fields.a_flag,
    "partitions": fields.a_number,
    "differences": _sentences,
    "count": fields.a_number,
    "path": fields.a_note,
}


def verified(value: Any) -> VerifyResult:
    """Read the result of `verify_plan`."""
    return VerifyResult(**_row(value, "$", _VERIFIED, ("ok",)))


_CORDON: Mapping[str, Reader] = {"supported": fields.a_flag, "cordoned": fields.a_flag, "message": _shown}


def cordon(value: Any) -> CordonResult:
    """Read the result of `read_cordon` or `set_cordon`."""
    return CordonResult(**_row(value, "$", _CORDON, ("supported",)))


_DRAIN: Mapping[str, Reader] = {
    "plan": fields.a_note,
    "packed": fields.a_note,
    "bytes": fields.a_number,
    "partitions": fields.a_number,
    "reasons": _sentences,
    "searchable": fields.a_flag,
}


def drain(value: Any) -> DrainResult:
    """Read the result of `plan_drain`."""
    return DrainResult(**_row(value, "$", _DRAIN))


def _configs(read: Reader) -> Reader:
    """Return the reader of an object of objects."""

    def configs(value: Any, path: str) -> dict[str, dict[str, Any]]:
        return {
            fields.a_string(name, path): {
                fields.a_string(key, f"{path}.{name}"): read(each, f"{path}.{name}.{key}")
                for key, each in fields.an_object(row, f"{path}.{name}").items()
            }
            for name, row in fields.an_object(value, path).items()
        }

    return configs


_THROTTLES: Mapping[str, Reader] = {
    "rates": _configs(fields.a_string),
    "lists": _configs(_strings),
    "silent": _strings,
    "closed": _strings,
}


def throttles(value: Any) -> ReadThrottlesResult:
    """Read the result of `read_throttles`."""
    return ReadThrottlesResult(**_row(value, "$", _THROTTLES))


def _change(value: Any, path: str) -> list[Any]:
    row = fields.a_list(value, path)
    if len(row) != 5:
        raise BadField(path, "must be a kind, a name, a config, an operation and a value")
    return [*_strings(row[:4], path), None if row[4] is None else fields.a_note(row[4], f"{path}[4]")]


def _changes(value: Any, path: str) -> list[list[Any]]:
    return [_change(each, f"{path}[{at}]") for at, each in enumerate(fields.a_list(value, path))]


def _whys(value: Any, path: str) -> dict[str, str]:
    return {_shown(name, path): _shown(why, path) for name, why in fields.an_object(value, path).items()}


_WRITTEN: Mapping[str, Reader] = {
    "written": _changes,
    "failed": _whys,
    "gone": _strings,
    "rejected": _strings,
}


def written(value: Any) -> WriteThrottlesResult:
    """Read the result of `write_throttles`."""
    return WriteThrottlesResult(**_row(value, "$", _WRITTEN))


def held(value: Any) -> HoldResult:
    """Read the result of `hold_throttles`."""
    return HoldResult(**_row(value, "$", {"left_out": _strings, "rejected": _whys}))


def _row(value: Any, path: str, readers: Mapping[str, Reader], needed: tuple[str, ...] = ()) -> dict[str, Any]:
    row = fields.an_object(value, path, tuple(readers))
    for name in needed:
        fields.need(row, name, path)
    return {name: read(row[name], f"{path}.{name}") for name, read in readers.items() if name in row}


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """What the run that empties a directory takes from the result of a round's plan."""

    moved: int
    bytes_copied: int
    failures: list[PlanMoveRow]


def round_ended(value: Any) -> RoundEnded:
    """Read the result of a plan, see `PlanResult`; other fields are ignored."""
    row = fields.an_object(value, "$")
    outcomes = fields.an_object(fields.need(row, "outcomes", "$"), "$.outcomes")
    return RoundEnded(
        fields.a_number(outcomes.get(MoveOutcome.MOVED, 0), "$.outcomes.moved"),
        fields.a_number(fields.need(row, "bytes_copied", "$"), "$.bytes_copied"),
        move_rows(fields.need(row, "failures", "$"), "$.failures"),
    )
