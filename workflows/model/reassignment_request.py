"""What a run of reassignments is started with: what people type, read strictly, and what the controller gives. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from workflows.model import fields, names, plan, throttles
from workflows.model.fields import BadField
from workflows.model.outcome import Reassigned
from workflows.model.plan import ANY, PlannedPartition
from workflows.model.reassignment_runs import Part

#: One run sees at most so many partitions through: a step for fifty costs what a step for one costs.
LARGEST_GROUP = 50


@dataclass(frozen=True, slots=True)
class Request:
    """A run's parameter. `made`: the controller has made the change already, at the pair of its state then;
    `throttles`: what the run leases until its replicas are copied, see `throttles.parse`.
    """

    parts: tuple[Part, ...]
    made: bool = False
    pair: tuple[int, int] = (0, 0)
    throttles: Mapping[str, Any] = field(default_factory=dict)


def change_row(change: Reassigned) -> list[Any]:
    """A change of the controller's as parameters and signals carry it."""
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
    """The change of such a row. Raises BadField for anything else."""
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
    """The parameter of a run for changes that the controller has made, `pair` that of its state after them."""
    return {"made": [change_row(change) for change in changes], "generation": pair[0], "version": pair[1]}


def run_id_of(cluster: str, made: Mapping[str, Any]) -> str:
    """The workflow id of the run for what `made_by_controller` has made: the same for the same, and for nothing else.

    The topics' ids are among what it is made of, so that it differs from those of a cluster of the same name before.
    """
    first, count = made["made"][0], len(made["made"])
    digest = blake2b(json.dumps(made, sort_keys=True).encode(), digest_size=4).hexdigest()
    return f"{names.reassign_id(cluster, first[0], first[2], count)}/{made['generation']}.{made['version']}-{digest}"


def parse(parameter: Any) -> Request:
    """Parse PartitionReassignment's parameter. Raises BadField with the path of the bad field.

    People give one object {"topic", "partition", "replicas", "log_dirs"} or a list of them, or the JSON of
    kafka-reassign-partitions, or a string that holds any of these; `log_dirs` may be missing. Beside the JSON's
    partitions, "throttles" are those that the run holds until its replicas are copied. The controller gives what
    `made_by_controller` makes.
    """
    if isinstance(parameter, str):
        parameter = plan.loads(parameter)
    held: Mapping[str, Any] = {}
    if isinstance(parameter, Mapping) and "partitions" in parameter and "throttles" in parameter:
        held = throttles.parse(parameter["throttles"])
        parameter = {key: value for key, value in parameter.items() if key != "throttles"}
    if isinstance(parameter, Mapping) and "made" in parameter:
        return _made(parameter)
    if isinstance(parameter, Mapping) and "partitions" in parameter:
        planned, where = plan.parse_reassignment(parameter), "$.partitions"
    else:
        planned, where = plan.parse_partitions(parameter), "$"
    if len(planned) > LARGEST_GROUP:
        raise BadField(
            where, f"has {len(planned)} entries, but one run reassigns at most {LARGEST_GROUP}; start several"
        )
    return Request(tuple(_asked(each) for each in planned), throttles=held)


def _asked(each: PlannedPartition) -> Part:
    return Part(each.topic, each.partition, each.replicas, each.log_dirs)


def _made(parameter: Mapping[str, Any]) -> Request:
    row = fields.an_object(parameter, "$", ("made", "generation", "version"))
    pair = (
        fields.a_number(fields.need(row, "generation", "$"), "$.generation"),
        fields.a_number(fields.need(row, "version", "$"), "$.version"),
    )
    parts: list[Part] = []
    for place, each in enumerate(fields.a_list(row["made"], "$.made")):
        change = read_change(each, f"$.made[{place}]")
        directories = (ANY,) * len(change.target)
        parts.append(Part(change.topic, change.partition, change.target, directories).begun(change))
    if not parts:
        raise BadField("$.made", "is empty: there is nothing to do")
    return Request(tuple(parts), made=True, pair=pair)


def groups(changes: Sequence[Reassigned]) -> list[tuple[Reassigned, ...]]:
    """The changes of one request, split into runs, in order of topic and partition."""
    ordered = sorted(changes, key=lambda change: (change.topic, change.partition))
    return [tuple(ordered[at : at + LARGEST_GROUP]) for at in range(0, len(ordered), LARGEST_GROUP)]


def summary(changes: Sequence[Reassigned]) -> str:
    """A line for people: what a run of these is about, and who asked for it."""
    first = changes[0]
    more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
    by = f", asked for by {first.by}" if first.by else ""
    nodes = [",".join(map(str, each)) for each in (first.original, first.target)]
    return f"{first.topic}-{first.partition}: {nodes[0]} -> {nodes[1]}{more}{by}"[:190]
