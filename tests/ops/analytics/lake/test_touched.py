"""Which runs a batch computes again: a plan's deadline is in the rows of its lanes, however its runs arrive."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ops.analytics.lake.ingest import touched_runs
from workflows.model import names

pytestmark = pytest.mark.spark

BETWEEN, INSIDE = ("k/reassign/t-0", names.PARTITION_REASSIGNMENT), ("k/reassign/t-0/d", names.MOVE_REPLICA)
PLAN, LANE, OTHER = ("k/plan/a", names.REASSIGNMENT_PLAN), ("k/plan/a/lane-0", names.PLAN_LANE), ("k/b", "Other")


def runs(spark: Any, *rows: tuple[tuple[str, str], str, int, str]) -> DataFrame:
    """Closed runs: workflow id and type, run id, the number of the export, the parent; their chain is the first run."""
    columns = "workflow_id string, workflow_type string, run_id string, chain string, sequence long, status string"
    values = [
        (*of, run_id, run_id.split("+")[0], sequence, "completed", parent) for of, run_id, sequence, parent in rows
    ]
    made = spark.createDataFrame(values, f"{columns}, parent_workflow_id string")
    return made.withColumn("namespace", F.lit("default"))


@pytest.mark.parametrize(
    ("earlier", "attempted", "again"),
    [
        pytest.param([], [], True, id="the plan came after its lane"),
        pytest.param([], [(PLAN, "p", 2, "")], True, id="an earlier attempt at the batch has written the plan"),
        pytest.param([(PLAN, "p", 1, "")], [], False, id="the plan's run was there before"),
    ],
)
def test_lanes_are_computed_again_with_a_new_run_of_their_plan(
    spark: Any, earlier: list[Any], attempted: list[Any], again: bool
) -> None:
    before = [(LANE, "l", 1, PLAN[0]), (OTHER, "o", 1, ""), *earlier]
    found = touched_runs(runs(spark, (PLAN, "p", 2, "")), runs(spark, *before, *attempted), runs(spark, *before))
    assert {row.run_id for row in found.collect()} == ({"p", "l"} if again else {"p"})


def test_reassignment_and_the_run_that_it_started_are_computed_together(spark: Any) -> None:
    both = {"r", "m"}
    before = runs(spark, (INSIDE, "m", 1, BETWEEN[0]), (OTHER, "o", 1, ""))
    assert found(touched_runs(runs(spark, (BETWEEN, "r", 2, "")), before, before)) == both, "the part came first"
    before = runs(spark, (BETWEEN, "r", 1, ""), (OTHER, "o", 1, ""))
    assert found(touched_runs(runs(spark, (INSIDE, "m", 2, BETWEEN[0])), before, before)) == both, "the part came last"
    is_open = F.when(F.col("run_id") == "m", F.lit("open")).otherwise(F.col("status"))
    before = runs(spark, (BETWEEN, "r", 1, ""), (INSIDE, "m", 1, BETWEEN[0])).withColumn("status", is_open)
    assert found(touched_runs(runs(spark, (OTHER, "o", 2, "")), before, before)) == {*both, "o"}, "the part is open"


def found(touched: DataFrame) -> set[str]:
    return {row.run_id for row in touched.collect()}


def test_lanes_are_computed_again_with_the_next_run_of_a_plan_that_continued(spark: Any) -> None:
    before = runs(spark, (LANE, "l", 1, PLAN[0]), (PLAN, "p", 1, ""))
    found = touched_runs(runs(spark, (PLAN, "p+2", 2, "")), before, before)
    assert {row.run_id for row in found.collect()} == {"p", "p+2", "l"}
