"""From new exports to tables: one batch of the stream, and the stream.

A batch is a range of manifests. It appends the events of closed runs to bronze and replaces the snapshots of open ones,
computes silver again for the chains that it touches (and for those that are open, whose times continue), joins the
moves of plans with the runs that carry them out, whichever of the two came first, merges all this, and computes gold
again for the days of these. Its last commit, to `ops.ingests`, says that it is complete. A batch that was
interrupted runs again with the same range, and skips the tables that have it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, reduce
from pathlib import Path

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from activities.history.manifest import CLOSED, OPEN, PENDING
from ops.analytics import schema
from ops.analytics.errors import AnalyticsError, NoExport
from ops.analytics.gold.rules import Rules
from ops.analytics.lake import pending as described
from ops.analytics.lake import source
from ops.analytics.lake.decode import FILE, HISTORY, MANIFEST, QUARANTINE, RESTORABLE
from ops.analytics.lake.grade import gold, regraded
from ops.analytics.lake.tables import Lake
from ops.analytics.schema import conform
from ops.analytics.silver import histories, moves, plan_runs
from ops.analytics.silver.build import Silver, silver
from ops.analytics.silver.histories import CHAIN, RUN
from ops.analytics.threads import side_by_side
from workflows.model import names

#: The types of runs whose chains are computed as a whole. Of others, such as the controller's, each run is for itself.
CHAINED = (
    *(names.MOVE_REPLICA, names.PARTITION_REASSIGNMENT, names.DIRECTORY_FAILURE, names.THROTTLE_LEASE),
    *(names.REASSIGNMENT_PLAN, names.PLAN_LANE),
)
#: What is known of a run whose rows are to be computed.
UNIT = (*RUN, "chain", "workflow_type", "sequence", "parent_workflow_id")
#: The layers whose tables can be computed again from bronze.
COMPUTED = ("silver", "gold")
#: The version of the transforms: with another one, silver and gold are computed again. That of the tables' columns is
#: added to it.
VERSION = 2
#: The property of `ops.ingests` that has the version by which the tables were computed.
TRANSFORMS = "rehome.transforms"
#: Files of the quarantine that one ingest tries to read again.
MOST_RESTORED = 1000
#: More sequences than this are not listed in a query.
MOST_SEQUENCES = 500

_ACCOUNT = T.StructType(
    [
        T.StructField(name, kind)
        for name, kind in (
            ("file_kind", T.StringType()), ("bytes", T.LongType()), ("expected", T.LongType()), ("read", T.LongType()),
        )
    ]
)  # fmt: skip
_BAD = T.StructType(
    [
        T.StructField(name, kind)
        for name, kind in (
            ("offset", T.LongType()), ("reason", T.StringType()), ("message", T.StringType()), ("events", T.LongType()),
        )
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far the tables are: the newest sequence number, and `base`, which is added to the numbers of manifests.

    It is not 0 where the exports of the folder began again at 1.
    """

    done: int = 0
    base: int = 0


def ingest_exports(lake: Lake, folder: Path, rules: Rules) -> None:
    """Ingest every export of a folder that the tables do not have, and what could not be read before. Raises
    AnalyticsError.

    Silver and gold of an earlier version of the transforms are computed again from bronze, once all tables have the
    columns that they lack. A version counts once that is done, however often it was interrupted.
    """
    known = lake.exists(schema.INGESTS)
    lake.spark.dataSource.register(source.TemporalHistory)
    at = _progress(lake, folder) if known else _Progress()
    outdated = known and lake.noted(schema.INGESTS, TRANSFORMS) != transforms()
    if outdated:
        for table in schema.TABLES:
            if table.layer in COMPUTED:
                lake.widen(table)
    if newest_export(folder) + at.base > at.done:
        _stream(lake, folder, at, rules)
    if known:
        _read_restored(lake, folder, at, rules)
    if outdated:
        rebuild(lake, rules)
    if (outdated or not known) and lake.exists(schema.INGESTS):
        lake.note(schema.INGESTS, TRANSFORMS, transforms())
    regrade(lake, rules)


def transforms() -> str:
    """Return the version of the transforms and of the tables that they compute."""
    declared = [(table.path, [(one.name, one.kind.simpleString()) for one in table.columns]) for table in schema.TABLES]
    return f"{VERSION}-{hashlib.sha256(json.dumps(declared).encode()).hexdigest()[:16]}"


def _progress(lake: Lake, folder: Path) -> _Progress:
    """Return how far the tables are with this folder. Raises AnalyticsError for the tables of another folder."""
    newest = F.when(F.col("kind") == MANIFEST, F.struct("sequence", "source_file", "export_id"))
    row = lake.read(schema.INGESTS).agg(F.max("sequence"), F.max("source"), F.max(newest)).first()
    if row is None or row[0] is None:
        return _Progress()
    if row[1] != str(folder.absolute()):
        raise AnalyticsError(f"{lake.root} has the tables of the export folder {row[1]}: choose another folder")
    if row[2] is None:
        return _Progress(row[0])
    number = int(Path(row[2]["source_file"]).stem)
    restarted = source.numbered_again(folder, number, row[2]["export_id"])
    return _Progress(row[0], row[0] if restarted else row[2]["sequence"] - number)


def _read_restored(lake: Lake, folder: Path, at: _Progress, rules: Rules) -> None:
    """Ingest what went to quarantine and can be read now: its disk was unmounted, or its file was restored."""
    if not lake.exists(schema.QUARANTINE):
        return
    bad = lake.read(schema.QUARANTINE).where(F.col("reason").isin(*RESTORABLE)).select("sequence", "source_file")
    for row in bad.distinct().orderBy("sequence", "source_file").limit(MOST_RESTORED).collect():
        files = source.restored(folder, row.sequence, row.source_file, at.base)
        if files:
            reader = lake.spark.read.format(source.NAME).option("files", json.dumps(files))
            ingest(lake, reader.load(str(folder.absolute())), str(folder.absolute()), rules, again=row.source_file)


def newest_export(folder: Path) -> int:
    """Return the number of the newest export; 0 without any. Raises NoExport if the folder cannot be read."""
    try:
        return source.newest(folder)
    except OSError as error:
        raise NoExport(f"cannot read the export in {folder} ({error.strerror or error})") from error


def _stream(lake: Lake, folder: Path, at: _Progress, rules: Rules) -> None:
    reader = lake.spark.readStream.format(source.NAME).option("after", str(at.done)).option("base", str(at.base))
    records = reader.load(str(folder.absolute()))
    origin = str(folder.absolute())
    query = (
        records.writeStream.foreachBatch(partial(_batch, lake.root, origin, rules))
        .option("checkpointLocation", f"{lake.root}/_checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        if query.isActive:
            query.stop()


def _batch(root: str, origin: str, rules: Rules, records: DataFrame, number: int) -> None:
    """Ingest one batch; a function of plain values, so that Spark Connect can send it to its server."""
    ingest(Lake(records.sparkSession, root), records, origin, rules)


def ingest(lake: Lake, records: DataFrame, origin: str, rules: Rules, again: str = "") -> None:
    """Ingest one batch of records of the data source; `again`: the file, or manifest, that was in quarantine."""
    records.persist()
    try:
        _ingest(lake, records, origin, rules, again)
    finally:
        records.unpersist()


def keep(name: str, table: DataFrame) -> DataFrame:
    """Compute an intermediate table of a batch once, and forget how: plans that contain plans take minutes to make."""
    return table.localCheckpoint()


def _ingest(lake: Lake, records: DataFrame, origin: str, rules: Rules, again: str) -> None:
    found = records.agg(
        F.max("sequence").alias("sequence"),
        F.min("sequence").alias("first"),
        # (A collected time stamp would be in the zone of this process, in which an hour may come twice.)
        F.max(F.unix_micros("taken_at")).alias("taken_at"),
        *[F.count(F.when(F.col("kind") == kind, 1)).alias(kind) for kind in (CLOSED, OPEN, PENDING, QUARANTINE)],
    ).first()
    if found is None or found["sequence"] is None:
        return
    # What is read again has a number, and so commits, of its own: the numbers of its export have passed.
    batch = lake.batch(1, f"{found['sequence']}/{again}") if again else lake.batch(found["sequence"])
    with batch:
        if found[QUARANTINE] and not again:
            lake.append(schema.QUARANTINE, quarantine(records))
        # Without news the moves under way have lasted longer.
        if found[CLOSED] or found[OPEN] or found[PENDING] or lake.exists(schema.RUNS):
            known = lake.read(schema.RUNS)
            found_here = histories_of(records)
            events = _events(records)
            # Rows of an earlier attempt at this batch do not count: else it would find nothing new.
            had = known.where(~F.col("sequence").between(found["first"], found["sequence"]))
            closed = keep("closed", _news(found_here.where(F.col("file_kind") == CLOSED), _in_bronze(lake, had)))
            if found[CLOSED]:
                lake.append(schema.HISTORY_EVENTS, _chosen(events.where(F.col("kind") == CLOSED), closed))
            opened = found_here.where(F.col("file_kind") == OPEN)
            new_open = _replace_open(lake, records, opened, closed, _in_bronze(lake, known), found)
            at = newest_time(lake, found["taken_at"])
            news = [
                closed,
                *([new_open] if new_open else []),
                *([_described(records, known)] if found[PENDING] else []),
            ]
            units = reduce(DataFrame.unionByName, [one.select(*UNIT) for one in news])
            touched = keep("touched", touched_runs(units, known, had))
            refresh(lake, touched, at, rules, found["sequence"])
        accounts = ingests(records, origin)
        if again:
            lake.merge(schema.INGESTS, accounts, keep("accounts", accounts.select("sequence", "source_file")))
            mended = lake.spark.createDataFrame([(found["sequence"], again)], "sequence long, source_file string")
            lake.merge(schema.QUARANTINE, quarantine(records), mended)
        else:
            lake.append(schema.INGESTS, accounts)


def _in_bronze(lake: Lake, known: DataFrame) -> DataFrame:
    """Return the runs that have ended with their events in `history_events`.

    An exporter may have found a run open, and its end when it fetched it: its events are in `open_snapshots` then.
    """
    ended = known.where(F.col("status") != schema.OPEN)
    if not lake.exists(schema.OPEN_SNAPSHOTS):
        return ended
    opened = lake.read(schema.OPEN_SNAPSHOTS).select(*RUN).distinct()
    return ended.join(F.broadcast(opened), [*RUN], "left_anti")


def _events(records: DataFrame) -> DataFrame:
    day = F.to_date("taken_at")
    return records.where(F.col("kind").isin(CLOSED, OPEN)).withColumn("ingest_date", day)


def quarantine(records: DataFrame) -> DataFrame:
    """Return what the batch could not read."""
    bad = records.where(F.col("kind") == QUARANTINE).withColumn("bad", F.from_json("attributes", _BAD))
    return bad.select("sequence", "source_file", "bad.*", F.to_date("taken_at").alias("ingest_date"))


def ingests(records: DataFrame, origin: str) -> DataFrame:
    """Return the account of each file of the batch."""
    files = records.where(F.col("kind") == FILE).withColumn("account", F.from_json("attributes", _ACCOUNT))
    return conform(
        files.select("*", "account.*").withColumns(
            {
                "source": F.lit(origin),
                "kind": F.col("file_kind"),
                "quarantined": F.col("expected") - F.col("read"),
                "ingest_date": F.to_date("taken_at"),
            }
        ),
        schema.INGESTS,
    )


def newest_time(lake: Lake, taken_at: int | None = None) -> datetime:
    """Return the time of the newest export in the tables and the batch (in microseconds): that of open runs' rows."""
    from datetime import UTC, timedelta

    epoch = datetime.fromtimestamp(0, UTC)
    micros = F.greatest(F.max(F.unix_micros("taken_at")), F.lit(taken_at).cast("bigint"))
    row = lake.read(schema.INGESTS).agg(micros).first()
    return epoch if row is None or row[0] is None else epoch + timedelta(microseconds=row[0])


# --- bronze

_AGE = ("last_time", "length")
_PLACE = (*_AGE, "sequence", "snapshot")


def histories_of(records: DataFrame) -> DataFrame:
    """Return one row per history of the batch: its run, how far it goes, its chain, its parent, and its type."""
    return records.where(F.col("kind") == HISTORY).select(
        *RUN,
        F.col("event_time").alias("last_time"),
        F.col("event_id").alias("length"),
        "sequence",
        "snapshot",
        F.get_json_object("attributes", "$.chain").alias("chain"),
        F.get_json_object("attributes", "$.parent").alias("parent_workflow_id"),
        F.col("event_type").alias("workflow_type"),
        F.get_json_object("attributes", "$.file_kind").alias("file_kind"),
    )


def _newest(snapshots: DataFrame) -> DataFrame:
    """Return the newest history of each run."""
    best = F.max(F.struct(*_PLACE, *[name for name in snapshots.columns if name not in (*RUN, *_PLACE)])).alias("best")
    return snapshots.groupBy(*RUN).agg(best).select(*RUN, "best.*")


def _news(closed: DataFrame, ended: DataFrame) -> DataFrame:
    """Return the histories of closed runs that no earlier batch has: they are delivered at least once."""
    had = ended.select(*RUN, "last_time", F.col("events").alias("length"))
    return _newest(closed).join(had, [*RUN, *_AGE], "left_anti")


def _chosen(events: DataFrame, snapshots: DataFrame) -> DataFrame:
    chosen = F.broadcast(snapshots.select("sequence", "snapshot"))
    return events.join(chosen, ["sequence", "snapshot"], "left_semi")


def _replace_open(
    lake: Lake, records: DataFrame, opened: DataFrame, closed: DataFrame, ended: DataFrame, found: Row
) -> DataFrame | None:
    """Replace the snapshots of open runs, and return the histories of the batch that are now there, if any."""
    if found[PENDING]:
        # The last description stays when the run is terminated: it has the bytes of the step that was under way.
        pending = keep("pending", described.pending_activities(records))
        of = pending.select(*RUN).distinct()
        earlier = lake.read(schema.PENDING_ACTIVITIES).join(F.broadcast(of), [*RUN], "left_semi")
        lake.merge(
            schema.PENDING_ACTIVITIES, keep("newest", histories.latest_pending(pending.unionByName(earlier))), of
        )
    before = lake.read(schema.OPEN_SNAPSHOTS)
    if not found[OPEN] and (not lake.exists(schema.OPEN_SNAPSHOTS) or before.isEmpty()):
        return None
    kept = before.groupBy(*RUN, "sequence", "snapshot").agg(
        F.max("event_time").alias("last_time"), F.max("event_id").alias("length")
    )
    all_open = _newest(kept.unionByName(opened.select(kept.columns)))
    over = ended.select(*RUN, "last_time")
    ends = over.unionByName(closed.select(*RUN, "last_time")).groupBy(*RUN).agg(F.max("last_time").alias("ended"))
    still = all_open.join(ends, [*RUN], "left").where(F.col("ended").isNull() | (F.col("ended") < F.col("last_time")))
    still = keep("open", still)
    events = _events(records).where(F.col("kind") == OPEN)
    rows = conform(before, schema.OPEN_SNAPSHOTS).unionByName(conform(events, schema.OPEN_SNAPSHOTS))
    lake.overwrite(schema.OPEN_SNAPSHOTS, _chosen(rows, still).dropDuplicates([*RUN, "event_id"]))
    return opened.join(still.select("sequence", "snapshot"), ["sequence", "snapshot"], "left_semi")


def _described(records: DataFrame, known: DataFrame) -> DataFrame:
    """Return the runs in the tables that have ended and of which the batch has a description from before: it came late,
    and has what the step that was under way had copied.
    """
    of = records.where(F.col("kind") == PENDING).select(*RUN).distinct()
    ended = known.where(F.col("status") != schema.OPEN).join(F.broadcast(of), [*RUN], "left_semi")
    return ended.select(*UNIT)


# --- silver and gold


def touched_runs(news: DataFrame, known: DataFrame, had: DataFrame) -> DataFrame:
    """Return the runs whose rows are to be computed: the batch's, the other runs of their chains, and open moves. With
    a reassignment come the moves that it started, and with each of these the reassignment.

    `known` are all runs in the tables, `had` those of earlier batches.
    """
    new = news.select(*RUN, "chain", "workflow_type", "sequence")
    chained = known.where(F.col("workflow_type").isin(*CHAINED))
    # What a plan requested carries its deadline, so the runs that came before their plan are computed again with it;
    # and with each further run of the plan, whose deadline may be another one.
    plans = new.where(F.col("workflow_type").isin(*schema.PLAN_TYPES)).join(had, [*RUN], "left_anti")
    children = chained.join(F.broadcast(_as_parent(plans)), ["namespace", "parent_workflow_id"], "left_semi")
    between = F.col("workflow_type") == names.PARTITION_REASSIGNMENT
    started = chained.where(F.col("workflow_type") == names.MOVE_REPLICA)
    parts = started.join(F.broadcast(_as_parent(new.where(between))), ["namespace", "parent_workflow_id"], "left_semi")
    units = (new, chained.where(F.col("status") == schema.OPEN), children, parts)
    of = reduce(DataFrame.unionByName, [unit.select(*CHAIN) for unit in units]).distinct()
    inside = news.select(*CHAIN, "workflow_type", "parent_workflow_id").unionByName(
        started.join(F.broadcast(of), [*CHAIN], "left_semi").select(*CHAIN, "workflow_type", "parent_workflow_id")
    )
    wholes = chained.where(between).join(
        F.broadcast(inside.select("namespace", F.col("parent_workflow_id").alias("workflow_id")).distinct()),
        ["namespace", "workflow_id"],
        "left_semi",
    )
    of = of.unionByName(wholes.select(*CHAIN)).distinct()
    others = chained.join(F.broadcast(of), [*CHAIN], "left_semi")
    return new.unionByName(others.select(*new.columns)).distinct()


def _as_parent(runs: DataFrame) -> DataFrame:
    return runs.select("namespace", F.col("workflow_id").alias("parent_workflow_id")).distinct()


def refresh(
    lake: Lake, touched: DataFrame | None, as_of: datetime, rules: Rules, sequence: int | None = None
) -> Silver:
    """Compute silver for the touched runs (None: all), merge it, and compute gold for its days.

    `sequence` is the batch's number: its days are kept, since the rows that it replaces are gone when it runs again.
    """
    events = lake.read(schema.HISTORY_EVENTS)
    opened = lake.read(schema.OPEN_SNAPSHOTS)
    pending = lake.read(schema.PENDING_ACTIVITIES)
    plans = moves.plans(lake.read(schema.RUNS))
    types, lanes = None, None
    if touched is not None:
        of_sequences = F.slice(F.collect_set("sequence"), 1, MOST_SEQUENCES + 1)
        summary = touched.agg(of_sequences, F.collect_set("workflow_type")).first()
        sequences, types = (summary[0], frozenset(summary[1])) if summary else ([], frozenset())
        if len(sequences) <= MOST_SEQUENCES:
            events = events.where(F.col("sequence").isin(*sequences) if sequences else F.lit(False))
        lanes = known_lanes(lake, types)
        of = F.broadcast(touched.select(*RUN).distinct())
        events, opened, pending = (one.join(of, [*RUN], "left_semi") for one in (events, opened, pending))
    made = silver(events.unionByName(opened), pending, as_of, keep, plans, lanes, types)
    units = made.runs.select(*RUN, "chain") if touched is None else touched.select(*RUN, "chain")
    chains, runs = (keep("units", units.select(*by).distinct()) for by in (CHAIN, RUN))
    of_moves, of_plans = chains, lanes is not None or (types is not None and names.PLAN_LANE in types)
    others = moves_again(lake, made, chains, lanes) if types is not None and names.PLAN_LANE in types else None
    if others is not None:
        made = replace(made, moves=keep("moves", made.moves.unionByName(others)))
        of_moves = keep("units", chains.unionByName(others.select(*CHAIN)).distinct())
    listed = touched_days(lake, made, of_moves, runs, of_plans)
    if sequence is not None:
        day = F.explode(F.array(*map(F.lit, listed)).cast("array<date>")).alias("day")
        lake.append(schema.TOUCHED_DAYS, lake.spark.range(1).select(day, F.lit(sequence).alias("sequence")))
        days = lake.read(schema.TOUCHED_DAYS).where(F.col("sequence") == sequence)
        listed = sorted(row[0] for row in days.select(F.date_format("day", "yyyy-MM-dd")).collect())

    def merge(table: schema.Table, rows: DataFrame) -> None:
        by_chain = of_moves if table is schema.MOVES else chains
        lake.merge(table, rows, by_chain if "chain" in table.key or "id" in table.key else runs)

    side_by_side(lake.spark, *[partial(merge, table, rows) for table, rows in made.tables()])
    gold(lake, listed, rules, as_of)
    return made


def known_lanes(lake: Lake, types: Collection[str]) -> DataFrame | None:
    """Return the lanes in the tables whose moves the runs of a batch may carry out; None without any."""
    if plan_runs.TYPES.isdisjoint(types) and names.PLAN_LANE not in types:
        return None
    known = lake.read(schema.MOVES)
    if plan_runs.of_lanes(known).isEmpty():
        return None
    return keep("known_lanes", plan_runs.lanes_of(known, lake.read(schema.RUNS)))


def moves_again(lake: Lake, made: Silver, chains: DataFrame, lanes: DataFrame | None) -> DataFrame | None:
    """Return the moves of the chains that are not in the batch and of which one carries out another move than it did.

    A run may come before its lane, or with an earlier row of it. None without any such chain.
    """
    if not lake.exists(schema.MOVES):
        return None
    known = lake.read(schema.MOVES)
    of_batch = F.broadcast(chains)
    before = plan_runs.of_lanes(known).join(of_batch, [*CHAIN], "left_semi")
    now = plan_runs.of_lanes(made.moves)
    replicas = F.broadcast(now.unionByName(before).select(*plan_runs.REPLICA).distinct())
    others = known.where(F.col("workflow_type").isin(*plan_runs.TYPES)).join(of_batch, [*CHAIN], "left_anti")
    near = keep("near", others.join(replicas, [*plan_runs.REPLICA], "left_semi"))
    if near.isEmpty():
        return None
    every = keep("lanes", plan_runs.all_lanes(made.moves, made.runs, chains, lanes))
    found = plan_runs.carried_out(plan_runs.directed(near, others), every).select(
        "id", F.col("carries_out").alias("found")
    )
    differs = ~F.col("carries_out").eqNullSafe(F.col("found"))
    changed = keep("changed", near.join(found, ["id"]).where(differs).select(*CHAIN).distinct())
    if changed.isEmpty():
        return None
    whole = others.join(F.broadcast(changed), [*CHAIN], "left_semi")
    return keep("moves_again", plan_runs.carried_out(plan_runs.directed(whole, others), every))


def touched_days(lake: Lake, made: Silver, chains: DataFrame, runs: DataFrame, of_plans: bool = False) -> list[str]:
    """Return the days (yyyy-mm-dd) of the rows that are computed and of those that they replace.

    `of_plans` says whether runs of the batch may carry out moves of plans: then the days of these moves are among them.
    """
    tables: list[DataFrame] = []
    for table, rows, of in (
        (schema.MOVES, made.moves, chains),
        (schema.MOVE_STEPS, made.move_steps, chains),
        (schema.ACTIVITIES, made.activities, runs),
    ):
        tables.append(rows.select("day").distinct())
        if lake.exists(table):
            tables.append(lake.read(table).join(F.broadcast(of), of.columns, "left_semi").select("day").distinct())
    copied = [made.move_phases]
    if lake.exists(schema.MOVE_PHASES):
        copied.append(lake.read(schema.MOVE_PHASES).join(F.broadcast(chains), chains.columns, "left_semi"))
    if of_plans and lake.exists(schema.MOVES):
        # With a run that carries out a plan's move, that move's measures and the copies that count are others.
        before = lake.read(schema.MOVES).join(F.broadcast(chains), chains.columns, "left_semi")
        carried = made.moves.unionByName(before).where(F.col("carries_out").isNotNull())
        ids = carried.select(F.col("carries_out").alias("id")).distinct()
        carried = F.broadcast(keep("carried", ids))
        tables.append(lake.read(schema.MOVES).join(carried, ["id"], "left_semi").select("day"))
        if lake.exists(schema.MOVE_PHASES):
            copied.append(lake.read(schema.MOVE_PHASES).join(carried, ["id"], "left_semi"))
    requested = made.moves.where(F.col("plan").isNotNull()).select("namespace", F.col("plan").alias("workflow_id"))
    tables.append(made.plans.select("day"))
    if lake.exists(schema.PLANS):
        tables.append(
            lake.read(schema.PLANS).join(requested.distinct(), ["namespace", "workflow_id"], "left_semi").select("day")
        )
    for rows in copied:
        busy = rows.where(F.col("phase").isin(*schema.BUSY))
        tables.append(busy.select(F.explode(F.sequence(F.to_date("began"), F.to_date("ended"))).alias("day")))
    days = reduce(DataFrame.unionByName, tables).where(F.col("day").isNotNull()).distinct()
    return sorted(row[0] for row in days.select(F.date_format("day", "yyyy-MM-dd")).collect())


def regrade(lake: Lake, rules: Rules) -> None:
    """Compute the attainment and the budgets of all days again, if other rules or SLOs applied when it was computed."""
    if not lake.exists(schema.SLA_DAILY):
        return
    other = not lake.read(schema.SLA_DAILY).where(F.col("rules") != rules.digest).isEmpty()
    if rules.slos and not other:
        burned = lake.read(schema.BURN_RATE)
        other = burned.isEmpty() or not burned.where(F.col("definitions") != rules.definitions).isEmpty()
    if other:
        regraded(lake, rules, newest_time(lake))


def rebuild(lake: Lake, rules: Rules) -> None:
    """Compute silver and gold again from all of bronze, as after a change of the transforms."""
    refresh(lake, None, newest_time(lake), rules)
