"""PartitionReassignment's parameter: the strict reader of operators' input, and the controller's own form. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows.model import names, throttles
from workflows.model.metadata.outcome import Reassigned
from workflows.model.move import parameter as move_parameter
from workflows.model.move.parameter import ANY
from workflows.model.plans import document
from workflows.model.plans.document import PlannedPartition
from workflows.model.reassignment.runs import PartitionRun

#: The maximum number of partitions of one run: a step for fifty costs what a step for one costs.
LARGEST_GROUP = 50


@dataclass(frozen=True, slots=True)
class ReassignmentRequest:
    """A run's parameter. `made`: the controller has applied the change already, at `pair` of its state; `throttles`:
    those that the run leases until its replicas are copied, see `throttles.parse`. `sla_seconds`: the time from the
    run's start within which the replicas should be in place; it gives a verdict in the report and ends nothing.
    """

    parts: tuple[PartitionRun, ...]
    made: bool = False
    pair: tuple[int, int] = (0, 0)
    throttles: Mapping[str, Any] = field(default_factory=dict)
    sla_seconds: float | None = None


def change_row(change: Reassigned) -> list[Any]:
    """Encode an applied change for parameters and signals."""
    return [
        change.topic,
        change.topic_id,
        change.partition,
        list(change.original),
        list(change.target),
        list(change.adding),
        list(change.removing),
        change.by,
    ]


def read_change(row: Any, path: str = "$") -> Reassigned:
    """Read a row of `change_row`. Raises BadField."""
    held = fields.a_list(row, path)
    if len(held) != 8:
        raise BadField(path, f"has {len(held)} entries, but a change of a partition has 8")
    original, target, adding, removing = (fields.numbers(held[at], f"{path}[{at}]") for at in range(3, 7))
    return Reassigned(
        fields.a_string(held[0], f"{path}[0]"),
        fields.a_string(held[1], f"{path}[1]", empty=True),
        fields.a_number(held[2], f"{path}[2]", high=(1 << 31) - 1),
        original,
        target,
        adding,
        removing,
        fields.a_string(held[7], f"{path}[7]", empty=True),
    )


def made_by_controller(changes: Sequence[Reassigned], pair: tuple[int, int]) -> dict[str, Any]:
    """Return the parameter of a run for changes that the controller has applied; `pair` is its state's after them."""
    return {"made": [change_row(change) for change in changes], "generation": pair[0], "version": pair[1]}


def run_id_of(cluster: str, made: Mapping[str, Any]) -> str:
    """Return the workflow id of the run with this parameter of `made_by_controller`: equal ids mean equal parameters.

    They contain the topics' ids, so that the ids differ from those of an earlier cluster of the same name.
    """
    first, count = made["made"][0], len(made["made"])
    digest = blake2b(json.dumps(made, sort_keys=True).encode(), digest_size=4).hexdigest()
    return f"{names.reassign_id(cluster, first[0], first[2], count)}/{made['generation']}.{made['version']}-{digest}"


def parse(parameter: Any) -> ReassignmentRequest:
    """Parse PartitionReassignment's parameter. Raises BadField with the path of the bad field.

    Operators pass one object {"topic", "partition", "replicas", "log_dirs"} or a list of them, or the JSON of
    kafka-reassign-partitions, or a string that holds any of these; `log_dirs` is optional. In the JSON, "throttles" are
    those that the run holds until its replicas are copied, and "sla_seconds" is their SLA. The controller
    passes what `made_by_controller` returns.
    """
    if isinstance(parameter, str):
        parameter = move_parameter.loads(parameter)
    held: Mapping[str, Any] = {}
    sla: float | None = None
    if isinstance(parameter, Mapping) and "partitions" in parameter:
        if "throttles" in parameter:
            held = throttles.parse(parameter["throttles"])
        if "sla_seconds" in parameter:
            sla = move_parameter.seconds(parameter["sla_seconds"], "$.sla_seconds")
        parameter = {key: value for key, value in parameter.items() if key not in ("throttles", "sla_seconds")}
    if isinstance(parameter, Mapping) and "made" in parameter:
        return _made(parameter)
    if isinstance(parameter, Mapping) and "partitions" in parameter:
        planned, where = document.parse_reassignment(parameter), "$.partitions"
    else:
        planned, where = document.parse_partitions(parameter), "$"
    if len(planned) > LARGEST_GROUP:
        raise BadField(
            where, f"has {len(planned)} entries, but one run reassigns at most {LARGEST_GROUP}; start several"
        )
    return ReassignmentRequest(tuple(_requested(each) for each in planned), throttles=held, sla_seconds=sla)


def _requested(each: PlannedPartition) -> PartitionRun:
    return PartitionRun(each.topic, each.partition, each.replicas, each.log_dirs)


def _made(parameter: Mapping[str, Any]) -> ReassignmentRequest:
    row = fields.an_object(parameter, "$", ("made", "generation", "version"))
    pair = (
        fields.a_number(fields.need(row, "generation", "$"), "$.generation"),
        fields.a_number(fields.need(row, "version", "$"), "$.version"),
    )
    parts: list[PartitionRun] = []
    for place, each in enumerate(fields.a_list(row["made"], "$.made")):
        change = read_change(each, f"$.made[{place}]")
        directories = (ANY,) * len(change.target)
        parts.append(PartitionRun(change.topic, change.partition, change.target, directories).begun(change))
    if not parts:
        raise BadField("$.made", "is empty: there is nothing to do")
    return ReassignmentRequest(tuple(parts), made=True, pair=pair)


def groups(changes: Sequence[Reassigned]) -> list[tuple[Reassigned, ...]]:
    """Split the changes of one request into those of each run, in order of topic and partition."""
    ordered = sorted(changes, key=lambda change: (change.topic, change.partition))
    return [tuple(ordered[at : at + LARGEST_GROUP]) for at in range(0, len(ordered), LARGEST_GROUP)]


def summary(changes: Sequence[Reassigned]) -> str:
    """Return the summary of a run of these changes for operators, with the requester."""
    first = changes[0]
    more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
    by = f", requested by {first.by}" if first.by else ""
    nodes = [",".join(map(str, each)) for each in (first.original, first.target)]
    return f"{first.topic}-{first.partition}: {nodes[0]} -> {nodes[1]}{more}{by}"[:190]
