"""Strict readers of the runs' signals: each returns the fields of a payload, or raises BadField. Pure.

They ignore unknown fields: a newer node or run may send more. The values that they return are valid: ids that the
server accepts, finite numbers, complete rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any, TypeVar

from storage_node.model import fields
from storage_node.model.fields import BadField
from storage_node.model.moves import ABSENCES, StallReason
from workflows.model import names
from workflows.model.calls import LeaseCall
from workflows.model.controller.run_requests import ControllerRequest
from workflows.model.reassignment.request import change_row, read_change
from workflows.model.reports import MoveReport, ReplicaReport

_INT = (1 << 31) - 1


def _need(row: Mapping[str, Any], name: str, path: str = "$") -> Any:
    return fields.need(row, name, path)


def _node(row: Mapping[str, Any], path: str = "$") -> int:
    return fields.a_number(_need(row, "node", path), f"{path}.node", high=_INT)


def _text(row: Mapping[str, Any], name: str) -> str:
    return fields.a_note(row.get(name) or "", f"$.{name}")


def _run(row: Mapping[str, Any], *, any_run: bool = True) -> dict[str, Any]:
    """Read {"workflow_id", "run_id"}: the run to signal or cancel, in a form that the server accepts.

    `run_id` may be "" or missing, for the open run of that id, unless `any_run` is false.
    """
    workflow_id = fields.a_string(_need(row, "workflow_id", "$"), "$.workflow_id")
    if not names.is_workflow_id(workflow_id):
        raise BadField("$.workflow_id", f"is longer than {names.LONGEST_ID} bytes")
    run_id = fields.a_string(row.get("run_id") or "", "$.run_id", empty=any_run)
    if run_id and not names.is_run_id(run_id):
        raise BadField("$.run_id", f"is '{run_id}', which is not a run's id")
    return {"workflow_id": workflow_id, "run_id": run_id}


# --- to the controller


def lease_ended(payload: Any) -> dict[str, Any]:
    """Read {"node", "incarnation"} whose lease ended."""
    row = fields.an_object(payload, "$")
    return {"node": _node(row), "incarnation": fields.a_string(_need(row, "incarnation", "$"), "$.incarnation")}


def locate(payload: Any) -> dict[str, Any]:
    """Read {"node", "workflow_id", "run_id"}: the node, and the run to respond to."""
    row = fields.an_object(payload, "$")
    return {"node": _node(row), **_run(row)}


def cancel_run(payload: Any) -> dict[str, Any]:
    """Read {"workflow_id", "run_id"}: the run that requests its cancel."""
    return _run(fields.an_object(payload, "$"), any_run=False)


def directory_failed(payload: Any) -> dict[str, Any]:
    """Read {"notice", "workflow_id", "run_id"}: the failure, and the run that reports it."""
    row = fields.an_object(payload, "$")
    return {"notice": fields.an_object(_need(row, "notice", "$"), "$.notice"), **_run(row)}


def reassign(payload: Any) -> ControllerRequest:
    """Read what `ControllerRequest.of` reads, of one run: the controller responds to it, and remembers its response by
    the run's id.
    """
    _run(fields.an_object(payload, "$"), any_run=False)
    return ControllerRequest.of(payload)


# --- to a move


def located(payload: Any) -> dict[str, Any]:
    """Read {"node", "known", "fenced"?, "probe"?}: whether the node is known, and what `Probes.state_of` returns."""
    row = fields.an_object(payload, "$")
    found: dict[str, Any] = {"known": fields.a_flag(_need(row, "known", "$"), "$.known")}
    if row.get("fenced") is not None:
        found["fenced"] = fields.a_flag(row["fenced"], "$.fenced")
    return {**found, "probe": _text(row, "probe")}


def _by_reason(value: Any, path: str) -> dict[str, float]:
    spent = fields.an_object(value or {}, path)
    return {
        fields.a_string(reason, path): fields.a_measure(seconds, f"{path}.{reason}")
        for reason, seconds in spent.items()
    }


def _index(value: Any, path: str) -> int:
    return fields.a_number(value, path, high=_INT)


_REPORT: Mapping[str, Callable[[Any, str], Any]] = {
    "topic": fields.a_string,
    **dict.fromkeys(("partition", "node"), _index),
    **dict.fromkeys(("state", "directory", "message", "stall", "stall_message"), fields.a_note),
    **dict.fromkeys(("bytes_total", "bytes_copied", "bytes_resumed", "bytes_written"), fields.a_number),
    **dict.fromkeys(("attempt", "attempts"), fields.a_number),
    **dict.fromkeys(("rate", "append_rate", "next_in"), fields.a_measure),
    **dict.fromkeys(
        ("seconds_copying", "seconds_placing", "seconds_catching_up", "seconds_deleting", "seconds_throttled"),
        fields.a_measure,
    ),
    "seconds_by_reason": _by_reason,
}
Report = TypeVar("Report", MoveReport, ReplicaReport)


def move_reports(payload: Any) -> list[MoveReport]:
    """Read how far a node's copies are; only `topic` and `partition` are required."""
    return [_report(MoveReport, each, f"$[{place}]") for place, each in enumerate(fields.a_list(payload, "$"))]


def replica_reports(payload: Any) -> list[ReplicaReport]:
    """Read how far a node's replicas are; only `topic` and `partition` are required."""
    return [_report(ReplicaReport, each, f"$[{place}]") for place, each in enumerate(fields.a_list(payload, "$"))]


def _report(kind: type[Report], payload: Any, path: str) -> Report:
    row = fields.an_object(payload, path)
    names = [each.name for each in fields_of(kind)]
    found = {
        name: _REPORT[name](_need(row, name, path), f"{path}.{name}")
        for name in names
        if name in row or name in ("topic", "partition")
    }
    return kind(**found)


# --- to the run of a reassignment


def answered(payload: Any) -> dict[str, Any]:
    """Read the controller's response: {"request", "results", "made", "rows", "absent", "left_out", "generation",
    "version"}, or {"request", "error"} after which the run repeats its request.

    `results` have an entry per requested change, `absent` why each fenced node of `rows` is absent; `left_out` are the
    nodes of a lease that are not registered.
    """
    row = fields.an_object(payload, "$")
    results = fields.a_list(row.get("results") or [], "$.results")
    made = fields.a_list(row.get("made") or [], "$.made")
    absent = fields.a_list(row.get("absent") or [], "$.absent")
    return {
        "request": fields.a_number(_need(row, "request", "$"), "$.request"),
        "error": fields.a_note(row.get("error") or "", "$.error"),
        "results": [_result(each, f"$.results[{place}]") for place, each in enumerate(results)],
        "made": [change_row(read_change(each, f"$.made[{place}]")) for place, each in enumerate(made)],
        "absent": dict(_absent(each, f"$.absent[{place}]") for place, each in enumerate(absent)),
        "left_out": list(fields.numbers(row.get("left_out") or [], "$.left_out")),
        **retargeted(row),
    }


def retargeted(payload: Any) -> dict[str, Any]:
    """Read {"rows", "generation", "version"}: partitions as the controller has them (`PartitionView.row`), or [topic,
    partition] of a deleted one, and the pair of its state.
    """
    row = fields.an_object(payload, "$")
    rows = fields.a_list(row.get("rows") or [], "$.rows")
    return {
        "rows": [_view(each, f"$.rows[{place}]") for place, each in enumerate(rows)],
        "generation": fields.a_number(row.get("generation", 0), "$.generation"),
        "version": fields.a_number(row.get("version", 0), "$.version"),
    }


def _result(payload: Any, path: str) -> dict[str, Any]:
    row = fields.an_object(payload, path)
    code = fields.a_number(row.get("error") or 0, f"{path}.error")
    return {"error": code, "message": fields.a_note(row.get("message") or "", f"{path}.message")}


def _absent(payload: Any, path: str) -> tuple[int, StallReason]:
    row = fields.a_list(payload, path)
    if len(row) != 2:
        raise BadField(path, f"has {len(row)} entries, but must be [node, absence]")
    reason = fields.a_string(row[1], f"{path}[1]")
    return fields.a_number(row[0], f"{path}[0]", high=_INT), StallReason(
        reason
    ) if reason in ABSENCES else StallReason.UNAVAILABLE


def _view(payload: Any, path: str) -> list[Any]:
    row = fields.a_list(payload, path)
    if len(row) not in (2, 9):
        raise BadField(path, f"has {len(row)} entries, but a partition has 9, or 2 when it is gone")
    key = [fields.a_string(row[0], f"{path}[0]"), fields.a_number(row[1], f"{path}[1]", high=_INT)]
    if len(row) == 2:
        return key
    topic_id = fields.a_string(row[2], f"{path}[2]", empty=True)
    sets = [list(fields.numbers(row[at], f"{path}[{at}]")) for at in range(3, 8)]
    return [*key, topic_id, *sets, fields.a_number(row[8], f"{path}[8]", low=-1, high=_INT)]


# --- to the run of a failed directory


@dataclass(frozen=True, slots=True)
class Recorded:
    """The outcome of a failure in the metadata: `offline` are the replicas, as [topic, [partitions]]. After an `error`
    the run reports the failure again.
    """

    error: str = ""
    outcome: str = ""
    version: int = 0
    broker_epoch: int = 0
    offline: tuple[tuple[str, tuple[int, ...]], ...] | None = None


def recorded(payload: Any) -> Recorded:
    """Read {"outcome", "version", "value", "offline"}, or {"error", "message"}."""
    row = fields.an_object(payload, "$")
    if fields.a_number(row.get("error") or 0, "$.error"):
        return Recorded(_text(row, "message") or "the controller rejected it")
    offline: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    if "offline" in row:
        offline = tuple(
            _offline(each, f"$.offline[{place}]")
            for place, each in enumerate(fields.a_list(row["offline"], "$.offline"))
        )
    return Recorded(
        "",
        _text(row, "outcome"),
        fields.a_number(row.get("version", 0), "$.version"),
        fields.a_number(row.get("value", 0), "$.value"),
        offline,
    )


def _offline(payload: Any, path: str) -> tuple[str, tuple[int, ...]]:
    row = fields.a_list(payload, path)
    if len(row) != 2:
        raise BadField(path, "must have a topic and a list of partitions")
    return fields.a_string(row[0], f"{path}[0]"), fields.numbers(row[1], f"{path}[1]")


# --- parameters


def lease(parameter: Any) -> LeaseCall:
    """Read NodeLease's parameter: {"cluster", "node", "incarnation"}."""
    row = fields.an_object(parameter, "$", ("cluster", "node", "incarnation"))
    return LeaseCall(
        fields.a_string(_need(row, "cluster", "$"), "$.cluster"),
        _node(row),
        fields.a_string(_need(row, "incarnation", "$"), "$.incarnation"),
    )
