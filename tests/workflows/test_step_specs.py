"""The table of steps has a row for each activity, and workflows start activities by nothing else."""

from __future__ import annotations

import ast
import importlib
import inspect
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.workflow import ActivityCancellationType

from activities.controller.probing import probe_node
from activities.history.activity import HistoryActivities
from activities.moves.awaiting_moves import AwaitMoves
from activities.moves.reassigning import ReassignActivities
from activities.node.activities import NodeActivities
from workflows.model import calls
from workflows.model.move import moves
from workflows.step_specs import SPECS, Queue

ROOT = Path(__file__).parents[2]
ACTIVITY = "__temporal_activity_definition"


def defined() -> list[str]:
    """The names of all activities of the package, once for each definition."""
    found: dict[int, str] = {}
    for path in sorted((ROOT / "activities").rglob("*.py")):
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        holders = [module, *(each for _, each in inspect.getmembers(module, inspect.isclass))]
        for holder in holders:
            for each in vars(holder).values():
                if (definition := getattr(each, ACTIVITY, None)) is not None:
                    found[id(definition)] = definition.name
    return sorted(found.values())


def test_every_activity_has_exactly_one_row() -> None:
    assert defined() == sorted(SPECS)


def served(*activities: Any) -> set[str]:
    return {getattr(each, ACTIVITY).name for each in activities}


def test_queue_of_each_row_is_the_one_whose_worker_serves_it() -> None:
    node = NodeActivities.__new__(NodeActivities)
    node._reassigning, node._awaiting = ReassignActivities.__new__(ReassignActivities), AwaitMoves.__new__(AwaitMoves)
    by_queue = {
        Queue.NODE: served(*node.short),
        Queue.MOVES: served(*node.moves),
        Queue.CLUSTER: served(probe_node),
        Queue.HISTORY: served(HistoryActivities.export_histories),
    }
    for queue, names in by_queue.items():
        assert {activity for activity, spec in SPECS.items() if spec.queue is queue} == names


def test_steps_of_a_move_await_cancellation_and_copies_have_a_compensation() -> None:
    for activity in moves.STEPS.values():
        assert SPECS[activity].cancellation is ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
    assert {activity: spec.compensation for activity, spec in SPECS.items() if spec.compensation is not None} == {
        calls.CREATE_MOVE: calls.CANCEL_MOVE,
        calls.COPY: calls.CANCEL_MOVE,
    }
    assert all(spec.compensation in SPECS for spec in SPECS.values() if spec.compensation is not None)


def test_long_activities_and_those_that_any_worker_takes_have_a_heartbeat() -> None:
    long = {activity for activity, spec in SPECS.items() if spec.attempt > timedelta(hours=1)}
    anywhere = {activity for activity, spec in SPECS.items() if spec.queue is Queue.PLANS}
    assert long | anywhere == {activity for activity, spec in SPECS.items() if spec.heartbeat is not None}


def test_nodes_queue_without_a_node_is_an_error() -> None:
    assert Queue.MOVES.of("c", 3) == "c/node-3/moves" and Queue.NODE.of("c", 3) == "c/node-3"
    assert Queue.CLUSTER.of("c", None) == "c" and Queue.HISTORY.of("c", None) == "c/history"
    with pytest.raises(ValueError, match="needs a node"):
        Queue.NODE.of("c", None)


def test_workflows_start_activities_by_the_table_alone() -> None:
    starts = ("start_activity", "execute_activity", "start_local_activity", "execute_local_activity")
    found = []
    for path in sorted((ROOT / "workflows").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in starts:
                found.append(path.name)
    assert found == ["step_specs.py"]
