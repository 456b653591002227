"""Carrying out one step of a reassignment on a node: its queue and limits. Keeps no state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from temporalio import workflow
from temporalio.workflow import ActivityCancellationType, ActivityHandle

from workflows import options
from workflows.model import calls, names
from workflows.model.calls import ReassignCall
from workflows.model.reassignment_runs import Key, Part

Handle = ActivityHandle[Any]
"""Of an activity that returns what `results.reassigned` reads."""


def by_node(nodes: Mapping[Key, Iterable[int]]) -> dict[int, list[Key]]:
    """The other way round: the partitions of each node."""
    found: dict[int, list[Key]] = {}
    for key, wanted in nodes.items():
        for node in wanted:
            found.setdefault(node, []).append(key)
    return dict(sorted(found.items()))


def start_step(
    activity: str, node: int, parts: Sequence[Part], pair: tuple[int, int], *, patient: bool, wish: bool
) -> Handle:
    """Start an activity on a node for these partitions; unless `patient`, the node is not waited for. `wish`: whether a
    directory asked for a replica that is not there is noted.

    What takes long waits beside the copies of moves: the node's other queue must always have a slot for its lease and
    for what the metadata tells it. A cancel does not wait for the attempt: it changes nothing, it looks on, or notes
    wishes.
    """
    info = workflow.info()
    short = activity == calls.PLACE_REPLICAS
    call = ReassignCall(
        info.workflow_id,
        info.run_id,
        node,
        [part.asked_at(node) for part in parts],
        *pair,
        [asdict(part.nodes[node]) for part in parts if node in part.nodes],
        wish,
    )
    pick_up = options.DELETION_PATIENCE if activity == calls.AWAIT_DELETION else None
    more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
    return workflow.start_activity(
        activity,
        call,
        task_queue=(names.node_queue if short else names.moves_queue)(info.task_queue, node),
        schedule_to_start_timeout=pick_up if patient else options.PREFER_TIMEOUT,
        schedule_to_close_timeout=None if patient else 2 * options.PREFER_TIMEOUT,
        start_to_close_timeout=options.SHORT_STEP_TIMEOUT if short else options.FOLLOW_TIMEOUT,
        heartbeat_timeout=None if short else options.FOLLOW_HEARTBEAT_TIMEOUT,
        retry_policy=options.MOVE_RETRY,
        cancellation_type=ActivityCancellationType.TRY_CANCEL,
        summary=f"{parts[0].topic}-{parts[0].partition}{more}",
    )
