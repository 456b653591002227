"""Which runs carry out a plan's move: the same cluster, replica and target, and the time of the lane's move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from ops.analytics import schema
from ops.analytics.silver.plan_runs import LATE, carried_out, lanes_of
from tests.ops.analytics.conftest import at
from workflows.model import names

pytestmark = pytest.mark.spark

PLAN = "k/plan/p"
LANE_BEGAN, LANE_ENDED = 100.0, 200.0


@dataclass(frozen=True)
class Case:
    """A run, and the lanes of its replica: the first is open from `LANE_BEGAN` to `LANE_ENDED`."""

    what: str
    expected: str | None
    run: dict[str, Any]
    lanes: tuple[dict[str, Any], ...] = ({},)


INSIDE = {"workflow_type": names.MOVE_REPLICA, "workflow_id": "k/move/1/x-0/1", "node": 1, "directory": "/b"}
BETWEEN = {
    "workflow_type": names.PARTITION_REASSIGNMENT, "workflow_id": "k/reassign/x-0/1.5-0a", "node": 2, "from_node": 1,
}  # fmt: skip
NODES = {"kind": schema.NODE, "node": 2, "from_node": 1, "directory": None}
OPEN: dict[str, Any] = {"outcome": schema.OPEN, "finished": None}
AFTER = LANE_ENDED + 2 * LATE

CASES = (
    Case("the node's run within the lane's time", "lane-0", {**INSIDE}),
    Case("both are open", "lane-0", {**INSIDE, **OPEN}, ({**OPEN},)),
    Case("started right after the lane was terminated", "lane-0", {**INSIDE, "started": LANE_ENDED + LATE / 2}),
    Case("started long after the lane's end", None, {**INSIDE, "started": AFTER, "finished": AFTER + 1}),
    Case("ended before the lane began", None, {**INSIDE, "started": 50.0, "finished": 60.0}),
    Case("was under way, and the lane adopted it", "lane-0", {**INSIDE, "started": 50.0}),
    Case(
        "was under way, but failed, and the lane requested it again", None,
        {**INSIDE, "started": 50.0, "outcome": schema.FAILED},
    ),
    Case("goes to another directory", None, {**INSIDE, "directory": "/c"}),
    Case("is on another node", None, {**INSIDE, "node": 2}),
    Case("is of another cluster", None, {**INSIDE, "workflow_id": "other/move/1/x-0/1"}),
    Case("is of another namespace", None, {**INSIDE, "namespace": "other"}),
    Case("was started by a person", None, {**INSIDE, "workflow_id": "mine"}),
    Case("the lane's replica was in place", None, {**INSIDE}, ({"outcome": schema.IN_PLACE},)),
    Case(
        "of two lanes the one in whose time it started", "lane-1", {**INSIDE, "started": 150.0},
        ({"outcome": schema.TERMINATED, "finished": 110.0}, {"started": 140.0}),
    ),
    Case(
        "of two lanes the one in whose time it started, though the next adopted it", "lane-0",
        {**INSIDE, "started": 105.0}, ({"outcome": schema.TERMINATED, "finished": 110.0}, {"started": 140.0}),
    ),
    Case("the controller's run", "lane-0", {**BETWEEN}, (NODES,)),
    Case("the controller's run to another node", None, {**BETWEEN, "node": 3}, (NODES,)),
    Case("the controller's run of a replica's lane", None, {**BETWEEN, "node": 1}),
    Case(
        "a replica that none replaces", "lane-0", {**BETWEEN, "node": None, "from_node": 3},
        ({**NODES, "node": None, "from_node": 3},),
    ),
    Case(
        "another replica that none replaces", None, {**BETWEEN, "node": None, "from_node": 4},
        ({**NODES, "node": None, "from_node": 3},),
    ),
    Case(
        "directed within its new node", "lane-0",
        {**INSIDE, "workflow_id": "k/reassign/x-0/1.5-0a/01234567/directories/1"},
        ({**NODES, "kind": schema.BOTH, "node": 1, "from_node": 2, "directory": "/b"},),
    ),
)  # fmt: skip


def move(place: int, **given: Any) -> dict[str, Any]:
    """A row of `moves`, of a topic of its own."""
    row = {"namespace": "default", "kind": schema.DISK, "outcome": schema.MOVED, "topic": f"t{place}", "partition": 0}
    row |= {"started": LANE_BEGAN + 1, "finished": LANE_ENDED - 1, "node": 1, "directory": "/b", **given}
    row |= {name: None if row[name] is None else at(row[name]) for name in ("started", "finished")}
    return {"chain": "c", "id": f"{row['workflow_id']}/{place}", **row}


def test_run_carries_out_the_move_of_the_plan_that_requested_it(spark: Any) -> None:
    runs, lanes = [], []
    for place, case in enumerate(CASES):
        runs.append(move(place, **case.run))
        for number, one in enumerate(case.lanes):
            of = {"started": LANE_BEGAN, "finished": LANE_ENDED, "workflow_type": names.PLAN_LANE, **one}
            lanes.append(move(place, workflow_id=names.plan_lane_id(PLAN, number), plan=PLAN, **of))
    every = [tuple(row.get(name) for name in schema.MOVES.names) for row in (*runs, *lanes)]
    moves = spark.createDataFrame(every, schema.MOVES.struct)
    columns = "namespace string, workflow_id string, chain string, workflow_type string, task_queue string"
    queues = [("default", names.plan_lane_id(PLAN, n), "c", names.PLAN_LANE, names.plans_queue("k")) for n in (0, 1)]
    found = carried_out(moves, lanes_of(moves, spark.createDataFrame(queues, columns))).collect()
    assert len(found) == len(every)
    by_id = {row.id: row.carries_out for row in found}
    assert [by_id.pop(row["id"]) for row in runs] == [
        None if case.expected is None else f"{PLAN}/{case.expected}/{place}" for place, case in enumerate(CASES)
    ]
    assert set(by_id.values()) == {None}, "a lane's own row carries out nothing"
