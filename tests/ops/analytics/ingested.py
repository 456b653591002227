"""The tables that tests share: three exports in two batches, the second of them killed at several of its commits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

from pyspark.sql import SparkSession

from ops.analytics import schema
from ops.analytics.gold.rules import Rule, Rules
from ops.analytics.gold.slos import read_slos
from ops.analytics.lake.ingest import ingest
from ops.analytics.lake.tables import Lake
from ops.analytics.session import SHUFFLE_PARTITIONS
from storage_node.model.moves import Outcome
from tests.ops.analytics.bronze import Collected, bronze, collect, frame, records
from tests.ops.analytics.conftest import at
from tests.support.runs.histories import CLUSTER, T0, RunBuilder, call, export, moved, rows
from tests.support.runs.recorded import recorded_run
from tests.support.runs.sample_runs import failed, lane, under_way
from tests.support.scale import FULL
from workflows.model import names
from workflows.model.calls import COPY, CREATE_MOVE, SWAP, MoveRow, ReplicaMove

DAY = 86_400.0
#: A rule for reassignments, which come without an SLA, and the package's SLOs.
RULES = Rules((Rule("between nodes", 30.0, kind="node"),), read_slos())


@dataclass(frozen=True)
class Spec:
    """A move that went well, and what plain arithmetic says of it."""

    name: str
    node: int
    start: float
    copying: float
    throttled: float
    size: int
    sla: float | None
    attempts: int = 1

    def run(self) -> RunBuilder:
        """Its history."""
        return moved(
            self.name, topic=self.name, node=self.node, start=self.start, copying=self.copying, queued=1.5,
            throttled=self.throttled, size=self.size, sla=self.sla, attempts=self.attempts,
        )  # fmt: skip

    @property
    def day(self) -> str:
        return f"{T0 + timedelta(seconds=self.start):%Y-%m-%d}"

    @property
    def seconds(self) -> float:
        """From the start until it was in place: the steps of `histories.moved`."""
        waited = 2.0 if self.attempts > 1 else 0.01
        return round(0.02 + 0.04 + 1.5 + self.copying + self.throttled + waited + 0.01 + 0.02, 6)


SPECS = tuple(
    Spec(f"s{n}", n % 3 + 1, n * 0.31 * DAY, 2.0 + n, 1.0 + n % 4, 10**6 * (n + 1), (None, 9.0, 60.0)[n % 3], 1 + n % 2)
    for n in range(9)
)  # fmt: skip


#: The commits after which the second batch is killed, and the tables that are read meanwhile.
KILLED_AT = [table.path for table in schema.TABLES] if FULL else ["bronze/history_events", "silver/moves"]
POLLED = (schema.MOVES, schema.ACTIVITIES, schema.SLA_DAILY)


class Killed(Exception):
    """The process ends here."""


def chain() -> list[RunBuilder]:
    """A move that continued as new, each run of it in another export."""
    parameter = {"topic": "chained", "partition": 0, "node": 1, "directory": "/d2", "sla_seconds": 100}
    first = RunBuilder(f"{CLUSTER}/long", "run-long", parameter=parameter)
    first.continue_as_new(50.0, "run-long-2")
    second = RunBuilder(
        f"{CLUSTER}/long", "run-long-2", parameter={"carried": 1}, start=50.0, first_run_id="run-long",
        continued_from="run-long",
    )  # fmt: skip
    return [first, second.terminate(80.0)]


def carried_out_inside() -> RunBuilder:
    """The node's run for what the recorded lane of a directory requested: t-0 of node 1, from /disk/a to /disk/b."""
    of = recorded_run("plan-lane-directory").workflow_id.partition("/")[0]
    target = "/disk/b"
    asked = [{"topic": "t", "partition": 0, "node": 1, "directory": target, "claim": 1}]
    run = RunBuilder(names.move_id(of, 1, "t", 0, 1, 1), "run-inside", task_queue=of, parameter=asked, start=0.1)
    argument, found = call(run, ReplicaMove("t", 0, target, 1)), MoveRow("t", 0, Outcome.CREATED, "/disk/a", target, 1)
    run.activity(CREATE_MOVE, argument, 0.11, 0.12, rows(found))
    facts = {"bytes_total": 1000, "bytes_copied": 1000, "bytes_written": 1000, "attempts": 1, "seconds_copying": 0.08}
    facts |= {"seconds_queued": 0.02, "seconds_throttled": 0.05, "seconds_locked": 0.003}
    facts["seconds_by_reason"] = {"copying": 0.08, "queued": 0.02, "node_limit": 0.05}
    found = MoveRow("t", 0, Outcome.CAUGHT_UP, "/disk/a", target, 1, **facts)
    run.activity(COPY, argument, 0.12, 0.28, rows(found))
    found = replace(found, outcome=Outcome.SWAPPED)
    run.activity(SWAP, argument, 0.28, 0.29, rows(found))
    return run.complete(0.3, rows(found))


def carried_out_between() -> RunBuilder:
    """The controller's run for what the recorded lane of brokers requested: t-1, from node 1 to node 2."""
    of = recorded_run("plan-lane-brokers").workflow_id.partition("/")[0]
    change = ["t", "AAAAAAAAAAAAAAAAAAAAAQ", 1, [1], [2], [2], [1], "rehome at 127.0.0.1"]
    run = RunBuilder(
        f"{names.reassign_id(of, 't', 1, 1)}/1.5-0a", "run-between", names.PARTITION_REASSIGNMENT, task_queue=of,
        parameter={"generation": 1, "version": 5, "made": [change]}, start=0.12,
    )  # fmt: skip
    facts = {"node": 2, "outcome": "joined", "directory": "/disk/a", "bytes_total": 1000, "bytes_copied": 1000}
    node = facts | {"attempts": 1, "seconds_catching_up": 0.2, "seconds_throttled": 0.1}
    done = {"topic": "t", "partition": 1, "outcome": "done", "original": [1], "target": [2], "nodes": [node]}
    return run.complete(0.4, {"format_version": 1, "rows": [done | {"by": change[-1], "directories": []}]})


def plan_of(lane: RunBuilder) -> RunBuilder:
    """The plan of a recorded lane."""
    return recorded_run("plan-done", lane.workflow_id.rpartition("/")[0])


def directed(topic: str) -> tuple[RunBuilder, RunBuilder]:
    """A reassignment to a directory of another node, and the run that it starts there, since the replica is elsewhere.

    The first export has one of the two, the second one the other.
    """
    of = RunBuilder(
        f"{CLUSTER}/reassign/{topic}", f"run-{topic}", names.PARTITION_REASSIGNMENT, start=10.0,
        parameter=[{"topic": topic, "partition": 0, "replicas": [2], "log_dirs": ["/n2/b"]}],
    )  # fmt: skip
    facts = {"node": 2, "outcome": "joined", "directory": "/n2/a", "bytes_total": 1000, "bytes_copied": 1000}
    node = facts | {"attempts": 1, "seconds_placing": 0.25, "seconds_catching_up": 4.0, "seconds_throttled": 1.0}
    done = {"topic": topic, "partition": 0, "outcome": "done", "original": [1], "target": [2], "nodes": [node]}
    of.complete(30.0, {"format_version": 1, "rows": [done | {"directories": [[2, "/n2/b", True]]}]})
    asked = [{"topic": topic, "partition": 0, "node": 2, "directory": "/n2/b"}]
    inside = RunBuilder(
        f"{of.workflow_id}/{of.run_id[:8]}/directories/2", f"{of.run_id}-inside", parameter=asked, start=20.0,
        parent=of.workflow_id,
    )  # fmt: skip
    argument = call(inside, ReplicaMove(topic, 0, "/n2/b", 1), node=2)
    row = MoveRow(topic, 0, Outcome.CAUGHT_UP, "/n2/a", "/n2/b", 1, bytes_total=1000, bytes_copied=1000, attempts=1)
    spent = {"copying": 2.0, "queued": 0.5}
    row = replace(row, bytes_written=1000, seconds_copying=2.0, seconds_queued=0.5, seconds_by_reason=spent)
    queue = f"{CLUSTER}/node-2/moves"
    inside.activity(COPY, argument, 20.1, 22.7, rows(row), queue=queue)
    row = replace(row, outcome=Outcome.SWAPPED, seconds_locked=0.004)
    inside.activity(SWAP, argument, 22.7, 22.8, rows(row), queue=queue)
    return of, inside.complete(22.9, rows(row))


@dataclass(frozen=True)
class Made:
    """The tables of several batches, those of one computation over all exports, and what happened on the way: the
    commits after which the second batch was killed, and how many rows of each table a reader has seen meanwhile.
    """

    lake: Lake
    folder: Path
    whole: Collected
    kills: tuple[str, ...]
    seen: dict[str, list[int]]


def make(spark: SparkSession, folder: Path, root: Path) -> Made:
    """Export into a folder, and ingest that into tables below another."""
    first_run, second_run = chain()
    # A lane of a plan comes before the plan and before the run that carries it out, another one after both.
    lanes = [recorded_run(f"plan-lane-{name}") for name in ("directory", "brokers")]
    (first, then), (last, before) = directed("whole"), directed("part")
    whole_first = [first, before]
    export(
        folder, moved("a", sla=30.0), first_run, under_way("now"), lanes[0], carried_out_between(), *whole_first, at=100
    )
    closed = under_way("now")
    closed.terminate(150.0)
    early = [*whole_first, moved("a", sla=30.0), first_run, closed, lane(), failed(), recorded_run("reassign-happy")]
    early.append(plan_of(lanes[0]))
    export(folder, *early, recorded_run("directory-failure"), at=200)
    late = [then, last, second_run, lanes[1], carried_out_inside(), under_way("later", start=250.0)]
    late += [spec.run() for spec in SPECS]
    export(folder, *early, *late, at=4 * DAY)

    kills: list[str] = []
    batch(Lake(spark, root), folder, 0, 1)
    with polled(Lake(spark, root)) as seen:
        for path in KILLED_AT:
            with suppress(Killed):
                batch(Lake(spark, root, killer(path, kills)), folder, 1, 3)
        batch(Lake(spark, root), folder, 1, 3)
    # Into how many partitions the rows are divided changes nothing either.
    before = spark.conf.get(SHUFFLE_PARTITIONS)
    spark.conf.set(SHUFFLE_PARTITIONS, "3")
    whole = collect(*bronze(spark, folder), at(4 * DAY))
    spark.conf.set(SHUFFLE_PARTITIONS, before or "1")
    return Made(Lake(spark, root), folder, whole, tuple(kills), seen)


@contextmanager
def polled(lake: Lake) -> Iterator[dict[str, list[int]]]:
    """Read the rows of some tables again and again during the block; yields their numbers, by table, without
    repetitions.
    """
    over, seen = Event(), {table.path: list[int]() for table in POLLED}

    def look() -> None:
        for table in POLLED:
            count = lake.read(table).count()
            if seen[table.path][-1:] != [count]:
                seen[table.path].append(count)

    def poll() -> None:
        while not over.wait(1.0):
            look()

    look()
    with ThreadPoolExecutor(1) as thread:
        polling = thread.submit(poll)
        try:
            yield seen
        finally:
            over.set()
        polling.result()
    look()


def killer(path: str, kills: list[str]) -> Any:
    """Return a hook that ends the batch after the commit of a table."""

    def committed(done: str) -> None:
        if done == path:
            kills.append(done)
            raise Killed(done)

    return committed


def batch(lake: Lake, folder: Path, after: int, through: int) -> None:
    """Ingest a range of exports, as the stream does."""
    found = frame(lake.spark, records(folder, after, through))
    ingest(lake, found, str(folder), RULES)
