"""The parameter of the run that empties a log directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage_node.model import fields
from workflows.model.move.parameter import absolute
from workflows.model.plans import options
from workflows.model.plans.options import PlanOptions

_FIELDS = ("version", "broker", "directory", "options")


@dataclass(frozen=True, slots=True)
class EvacuationRequest:
    """A log directory of a broker, and the options of the plans that empty it."""

    broker: int
    directory: str
    options: PlanOptions = field(default_factory=PlanOptions)


def parse(parameter: Any) -> EvacuationRequest:
    """Read {"version": 1, "broker", "directory", "options"}. Raises BadField."""
    row: Mapping[str, Any] = fields.an_object(parameter, "$", _FIELDS)
    fields.a_number(row.get("version", 1), "$.version", 1, 1)
    return EvacuationRequest(
        fields.a_number(fields.need(row, "broker", "$"), "$.broker", 0, (1 << 31) - 1),
        absolute(fields.need(row, "directory", "$"), "$.directory", any_allowed=False),
        options.read(row.get("options") or {}),
    )
