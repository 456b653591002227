"""The lanes of a plan as a stored text: one JSON list per lane and line, so that a lane is read without the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from storage_node.model.fields import BadField
from workflows.model.plans.running.calls import MoveSpec
from workflows.model.plans.values import Lane

_NAMES = tuple(MoveSpec.__dataclass_fields__)


def to_text(lanes: Sequence[Lane]) -> str:
    """Return the text of all lanes, by number."""
    return "".join(
        json.dumps([lane.group, [_row(MoveSpec.of(move)) for move in lane.moves]], separators=(",", ":")) + "\n"
        for lane in lanes
    )


def _row(spec: MoveSpec) -> list[Any]:
    return list(asdict(spec).values())


def read(text: str) -> tuple[Lane, ...]:
    """Return the lanes of `to_text`. Raises BadField for a text that is none."""
    try:
        return tuple(_lane(number, json.loads(line)) for number, line in enumerate(text.splitlines()))
    except (ValueError, TypeError) as error:
        raise BadField("$", f"is not a plan's lanes: {error}") from error


def _lane(number: int, row: Any) -> Lane:
    group, moves = row
    return Lane(number, tuple(MoveSpec(**dict(zip(_NAMES, each, strict=True))).move() for each in moves), int(group))
