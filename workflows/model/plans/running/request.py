"""The parameter of a plan's run: the plan, or the name of its stored text, and what an earlier run carries over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows.model.plans import document
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.options import read as read_options
from workflows.model.plans.running import packing
from workflows.model.plans.running.calls import CheckResult

VERSION = 1
_FIELDS = ("version", "text", "plan", "cluster_id", "options", "submitted_by", "undoes", "undoes_text", "carried")
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A plan: `packed` is its text, or `plan` names a text that the workers have stored; one of them may be "".

    `submitted_by` is who submitted it, for the second person's approval. `undoes` names the stored plan that this one
    takes back, "" for none, and `undoes_packed` is its text. `carried` is the state of the run before.
    """

    packed: str = ""
    plan: str = ""
    cluster_id: str = ""
    options: PlanOptions = field(default_factory=PlanOptions)
    submitted_by: str = ""
    carried: Mapping[str, Any] | None = None
    undoes: str = ""
    undoes_packed: str = ""

    def narrowed(self, check: CheckResult) -> PlanRequest:
        """Return, after its check, what is left to do of a plan that takes another one back."""
        if not check.plan:
            return self
        return replace(self, plan=check.plan, packed=check.plan_packed, undoes="", undoes_packed="")

    def back(self, check: CheckResult) -> PlanRequest:
        """Return the plan that takes this one back."""
        back, packed = check.rollback_ref, check.rollback_packed
        return replace(self, plan=back, packed=packed, undoes=self.plan, undoes_packed=self.packed)


def parse(parameter: Any, began: float) -> PlanRequest:
    """Read the parameter of a run that began then (epoch seconds). Raises BadField.

    Either the JSON of kafka-reassign-partitions as it is, with "options" and "sla_seconds" beside "partitions" if
    wanted; or {"version",
    "text": packed, "plan": sha256, "cluster_id", "options", "submitted_by", "undoes": sha256}.
    """
    if isinstance(parameter, str):
        try:
            parameter = json.loads(parameter)
        except ValueError as error:
            raise BadField("$", f"is not JSON: {error}") from error
    row = fields.an_object(parameter, "$")
    if "partitions" in row:
        planned = document.read(row)
        text = document.to_text(planned)
        return PlanRequest(packing.pack(text), document.sha256(text), options=planned.due(began))
    row = fields.an_object(row, "$", _FIELDS)
    fields.a_number(fields.need(row, "version", "$"), "$.version", VERSION, VERSION)
    packed = fields.a_string(row.get("text") or "", "$.text", empty=True)
    name = fields.a_string(row.get("plan") or "", "$.plan", empty=True)
    if not packed and not name:
        raise BadField("$.plan", "is missing: name a stored plan, or hand in its text")
    chosen = read_options(row.get("options") or {})
    if packed:
        planned = document.parse(packing.unpack(packed))
        name = document.sha256(packing.unpack(packed))
        if row.get("options") is None:
            chosen = planned.options
    carried = row.get("carried")
    submitted_by = fields.a_string(row.get("submitted_by") or "", "$.submitted_by", empty=True)
    if len(submitted_by) > _LONGEST_NAME:
        raise BadField("$.submitted_by", f"has {len(submitted_by)} characters, but must have at most {_LONGEST_NAME}")
    return PlanRequest(
        packed,
        name,
        fields.a_string(row.get("cluster_id") or "", "$.cluster_id", empty=True),
        chosen,
        submitted_by,
        None if carried is None else fields.an_object(carried, "$.carried"),
        fields.a_string(row.get("undoes") or "", "$.undoes", empty=True),
        fields.a_string(row.get("undoes_text") or "", "$.undoes_text", empty=True),
    )


def continued(request: PlanRequest, options: PlanOptions, carried: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameter of the run that continues this one."""
    undoes = {"undoes": request.undoes, "undoes_text": _carried(request.undoes_packed)} if request.undoes else {}
    return {
        "version": VERSION,
        "text": _carried(request.packed),
        "plan": request.plan,
        "cluster_id": request.cluster_id,
        "options": options.as_json(),
        "submitted_by": request.submitted_by,
        "carried": dict(carried),
        **undoes,
    }


def _carried(packed: str) -> str:
    return packed if len(packed) <= packing.LARGEST_PACKED else ""
