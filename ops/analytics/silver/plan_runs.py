"""Silver: which runs carry out the moves of plans, and the parts of reassignments between disks.

A lane knows the cluster by its admin API alone. On storage nodes each of its requests starts a run that knows no plan:
the node's MoveReplica, or the controller's PartitionReassignment, which may start a MoveReplica in turn. Both the lane
and the run have a row, and they are joined by what both know: the cluster, the replica, where it goes, and the time.

A reassignment to a directory starts a MoveReplica for a new replica that is in another one. Its row is joined with that
of the reassignment, its parent, so that the replica is counted once.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ops.analytics import schema
from ops.analytics.schema import conform
from ops.analytics.silver.histories import CHAIN
from workflows.model import names

#: The types of the runs that a lane's requests start.
TYPES = frozenset((names.MOVE_REPLICA, names.PARTITION_REASSIGNMENT))
#: A replica, whatever its cluster and its node.
REPLICA = ("namespace", "topic", "partition")
#: Seconds after a lane's end in which its run may start: a node starts it after its response, again and again until
#: the server accepts it, and the clock of the lane's worker, which the end is from, may be behind the server's.
LATE = 5.0


def of_lanes(moves: DataFrame) -> DataFrame:
    """Return the rows of lanes among those of `moves`."""
    return moves.where(F.col("workflow_type") == names.PLAN_LANE)


def lanes_of(moves: DataFrame, runs: DataFrame) -> DataFrame:
    """Return the moves that lanes requested, with the name of their cluster, which their runs' queues have.

    A move that was in place needed no request.
    """
    cluster = F.regexp_replace("task_queue", f"{names.plans_queue('')}$", "")
    queues = runs.where(F.col("workflow_type") == names.PLAN_LANE).groupBy(*CHAIN).agg(F.max(cluster).alias("cluster"))
    return (
        of_lanes(moves)
        .where(F.col("outcome") != schema.IN_PLACE)
        .join(queues, [*CHAIN])
        .select(
            *REPLICA,
            *("workflow_id", "chain", "cluster"),
            *[
                F.col(name).alias(f"lane_{name}")
                for name in ("id", "kind", "node", "from_node", "directory", "outcome", "started", "finished")
            ],
        )
    )


def all_lanes(moves: DataFrame, runs: DataFrame, chains: DataFrame, known: DataFrame | None) -> DataFrame:
    """Return the lanes of these moves, and those that are known of other chains than these."""
    mine = lanes_of(moves, runs)
    if known is None:
        return mine
    return mine.unionByName(known.join(F.broadcast(chains.select(*CHAIN)), [*CHAIN], "left_anti"))


def directed(moves: DataFrame, among: DataFrame | None = None) -> DataFrame:
    """Return the moves with the reassignment's move of which each is the part between disks, if any.

    `among` are the moves that have the reassignments', by default the same ones. A replica that was on its node before
    has no row of the reassignment: its move between disks counts. An id may be used again: of several reassignments the
    last one that had started is the parent.
    """
    same = ("namespace", "parent", "topic", "partition", "node")
    wholes = (
        (moves if among is None else among)
        .where(F.col("workflow_type") == names.PARTITION_REASSIGNMENT)
        .withColumn("parent", F.col("workflow_id"))
        .select(*same, F.col("id").alias("whole"), F.col("started").alias("whole_started"))
    )
    parts = moves.where(F.col("workflow_type") == names.MOVE_REPLICA).select(*same, "id", "started")
    best = (
        parts.join(wholes, [*same])
        .where(F.col("whole_started") <= F.col("started"))
        .groupBy("id")
        .agg(F.max_by("whole", F.struct("whole_started", "whole")).alias("found"))
    )
    return conform(moves.join(best, ["id"], "left").withColumn("carries_out", F.col("found")), schema.MOVES)


def carried_out(moves: DataFrame, lanes: DataFrame) -> DataFrame:
    """Return the moves with the lane's move that each carries out, if any; else what they have.

    The run starts while the lane waits for it, or was under way before and ends as the lane's move does: a lane adopts
    what is under way. Runs that people start have other ids. Of several lanes the one in whose time the run started,
    and of these the latest, counts.
    """
    wanted = F.coalesce(F.col("started") >= F.col("lane_started"), F.lit(False)) & (
        F.col("lane_finished").isNull() | (F.unix_micros("started") <= F.unix_micros("lane_finished") + int(LATE * 1e6))
    )
    adopted = (
        (F.col("started") < F.col("lane_started"))
        & (F.col("finished").isNull() | (F.col("finished") >= F.col("lane_started")))
        & (F.col("outcome") == F.col("lane_outcome"))
    )
    pairs = (
        moves.where(F.col("workflow_type").isin(*sorted(TYPES)))
        .drop("chain")
        .withColumnRenamed("workflow_id", "run")
        .join(lanes, [*REPLICA])
        .where(_started_by_request() & _same_target() & (wanted | adopted))
    )
    best = pairs.groupBy("id").agg(F.max_by("lane_id", F.struct(wanted, "lane_started", "lane_id")).alias("found"))
    found = moves.join(best, ["id"], "left").withColumn("carries_out", F.coalesce("found", "carries_out"))
    return conform(found, schema.MOVES)


def _started_by_request() -> Column:
    """Return whether the run has an id that a node or the controller of the lane's cluster gives."""
    run = F.col("run")
    return run.startswith(F.concat("cluster", F.lit(names.OF_NODE))) | run.startswith(
        F.concat("cluster", F.lit(names.OF_CONTROLLER))
    )


def _same_target() -> Column:
    """Return whether the run brings the replica where the lane wants it: a replica that none replaces is removed."""
    inside = (F.col("node") == F.col("lane_node")) & (F.col("directory") == F.col("lane_directory"))
    removed = F.col("node").isNull() & F.col("lane_node").isNull() & (F.col("from_node") == F.col("lane_from_node"))
    between = (F.col("lane_kind") != schema.DISK) & ((F.col("node") == F.col("lane_node")) | removed)
    return F.when(F.col("workflow_type") == names.MOVE_REPLICA, inside).otherwise(between)
