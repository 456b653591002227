"""Starts a step of a reassignment on a node, with its queue and limits. Keeps no state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from temporalio import workflow
from temporalio.workflow import ActivityHandle

from workflows.model.calls import ReassignCall
from workflows.model.reassignment.runs import Key, PartitionRun
from workflows.step_specs import SPECS, start

Handle = ActivityHandle[Any]
"""The handle of an activity that returns what `results.reassigned` reads."""


def by_node(nodes: Mapping[Key, Iterable[int]]) -> dict[int, list[Key]]:
    """Return the partitions of each node, given the nodes of each partition."""
    found: dict[int, list[Key]] = {}
    for key, wanted in nodes.items():
        for node in wanted:
            found.setdefault(node, []).append(key)
    return dict(sorted(found.items()))


def start_step(
    activity: str, node: int, parts: Sequence[PartitionRun], pair: tuple[int, int], *, patient: bool, note: bool
) -> Handle:
    """Start an activity on a node for these partitions; unless `patient`, only for PREFER_TIMEOUT. `note`: whether the
    node notes the preferred log directory of a replica that it does not host yet.

    A cancel does not wait for the attempt, which only observes, or notes preferred log directories.
    """
    info = workflow.info()
    call = ReassignCall(
        info.workflow_id,
        info.run_id,
        node,
        [part.assigned_to(node) for part in parts],
        *pair,
        [asdict(part.nodes[node]) for part in parts if node in part.nodes],
        note,
    )
    more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
    spec = SPECS[activity] if patient else SPECS[activity].briefly()
    return start(activity, call, spec=spec, node=node, summary=f"{parts[0].topic}-{parts[0].partition}{more}")
