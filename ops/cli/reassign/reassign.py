"""rehome reassign: moves partitions to other nodes (KIP-455), and to other directories there (KIP-113)."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from temporalio.client import Client

from activities.temporal import describing
from ops.cli import output, waits
from ops.cli.kafka_admin import KafkaAdmin, LogDirectoryView, NoResponse, Reassignment, sizes_of
from ops.cli.moves import log_dirs, runs
from ops.cli.moves.waiting import Bars, Shown
from ops.cli.options import Bootstrap, Cluster, Data, Json, TemporalAddress, check_sla
from ops.cli.plan import file_plan
from ops.cli.plan.file_plan import AsPlan
from ops.cli.plan.place import Place
from ops.cli.reassign import comparing, throttling
from ops.cli.reassign.comparing import BAD, NOT_REACHED, Row, partition_of
from ops.cli.reassign.polling import KAFKA_SECONDS, Reported, Snapshot, SnapshotReader, described, reported_of
from ops.cli.target import Target, resolve
from ops.stack.errors import OpsError, Refused, UsageError
from storage_node.model.ids import TopicPartition
from storage_node.model.reassignments import ReassignmentPhase
from workflows.model import names, throttles
from workflows.model.plans.document import PlannedPartition
from workflows.model.reassignment.request import LARGEST_GROUP
from workflows.model.run_results import ReassignmentRunResult

POLL_SECONDS = 0.5
#: Seconds that a call without --wait waits until its runs have started their reassignments.
BEGIN_PATIENCE = 10.0
#: So many polls in a row must find a reassignment cancelled or superseded.
SURE = 4
#: Seconds without a response after which --wait fails: the queried node may just have been killed.
PATIENCE = 60.0


def register(app: typer.Typer) -> None:
    """Add the command to the root of `rehome`."""
    app.command("reassign")(reassign)


def reassign(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSON of kafka-reassign-partitions, with log_dirs or without.")
    ],
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            metavar="RATE",
            help="Bytes per second and node for copied replicas, such as 20MB (KIP-73); removed when the reassignment "
            "ends, by its runs. Without Temporal it requires --wait.",
        ),
    ] = None,
    sla: Annotated[
        float | None,
        typer.Option(
            "--sla",
            metavar="SECONDS",
            help="Time within which the replicas should be in place, for the report; requires Temporal. Default: "
            "sla_seconds of FILE.",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show progress until the reassignment ends; fail with its reason.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the reassignments of the partitions in FILE.")
    ] = False,
    plan: AsPlan = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Reassign the partitions of FILE to the replicas that it names; those that already match are not changed.

    FILE holds for example {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2],
    "log_dirs": ["any", "/disks/a"]}]}.

    The whole file is validated before anything is changed. A second call with the same file changes nothing, and with
    --wait waits for the first. A partition that is being reassigned to another target gets the newer one; --cancel
    restores the replicas from before the first reassignment.

    Where a worker serves plans of the cluster, and it has no controller of rehome, FILE is submitted as a plan: see
    rehome plan --help. A call while that plan is open follows it, and --cancel cancels it; a call that cannot reach
    Temporal fails, unless --no-plan leaves plans aside. With --sla, or sla_seconds in FILE, that plan has a deadline.
    """
    check_sla(sla)
    rate = output.parse_rate(throttle) if throttle else None
    if cancel and (rate is not None or sla is not None or wait):
        raise UsageError("--cancel cannot be combined with --throttle, --sla or --wait")
    target = resolve(data, bootstrap, temporal_address, cluster)
    place = Place(target, cluster)
    choice = file_plan.choose(place, file, plan)
    if choice.plan and not cancel:
        options: dict[str, Any] = {} if rate is None else {"throttle_between_brokers": rate}
        if sla is not None:
            options["deadline"] = (datetime.now(UTC) + timedelta(seconds=sla)).isoformat(timespec="seconds")
        file_plan.submit(place, file, options, wait=wait, as_json=json)
        return
    if choice.plan and file_plan.cancel(place, file, as_json=json):
        return
    entries, of_file = comparing.read(file)
    sla = of_file if sla is None else sla
    if rate is not None and not wait and not target.has_runs:
        raise UsageError(
            f"--throttle {target.without_runs} requires --wait: "
            "only this command can remove it when the reassignment ends"
        )
    if sla is not None and not target.has_runs:
        raise UsageError(
            f"an SLA {target.without_runs} has no effect: only a run of Temporal has an SLA; pass --temporal-address "
            "HOST:PORT, or --data DIR of a stack"
        )
    with KafkaAdmin(target.need_kafka()) as admin, runs.Session(target) as session:
        if choice.why_not and not cancel:
            output.say(choice.why_not)
        work = _Reassign(admin, session, target, entries, sla)
        if cancel:
            rows = work.cancel()
            throttling.remove(admin, file)
        else:
            try:
                rows = work.start(file, rate)
                rows = work.wait(rows) if wait else work.begun(rows)
            except KeyboardInterrupt:
                if work.begins:
                    output.say(_left(file, rate is not None, work.has_runs))
                raise
            if wait:
                if rate is not None:
                    work.until_unthrottled()
                throttling.remove(admin, file)
    _print(rows, json, waited=wait or cancel, bad=BAD if cancel else NOT_REACHED)


def _left(file: Path, throttled: bool, handed_over: bool) -> str:
    """Return a message for an operator who has interrupted a call."""
    back, quoted = "", shlex.quote(str(file))
    if throttled:
        back = "; its runs remove the throttle when it ends" if handed_over else " (both remove the throttle)"
    return (
        "the reassignment continues; watch it with: rehome reassignments --watch; wait for it with: "
        f"rehome reassign --wait {quoted}; cancel it with: rehome reassign --cancel {quoted}{back}"
    )


def _print(rows: Sequence[Row], as_json: bool, *, waited: bool, bad: Collection[str]) -> None:
    """Print the rows. Raises `OpsError` with the first row whose outcome is in `bad`."""
    if as_json:
        output.print_json([row.as_json() for row in rows])
    else:
        output.console().print(output.table(comparing.COLUMNS, [row.cells() for row in rows]))
        if not waited and any(row.outcome in (comparing.STARTED, comparing.UNDER_WAY) for row in rows):
            typer.echo("watch it with: rehome reassignments --watch")
    missed = [row for row in rows if row.outcome in bad]
    if missed:
        more = f" (and {len(missed) - 1} more)" if len(missed) > 1 else ""
        raise OpsError(
            f"{missed[0].partition} is not on {comparing.listed(missed[0].target)}: {missed[0].message}{more}"
        )


class _Reassign:
    """One call of the command."""

    def __init__(
        self,
        admin: KafkaAdmin,
        session: runs.Session,
        target: Target,
        entries: Sequence[PlannedPartition],
        sla: float | None = None,
    ) -> None:
        self._admin, self._session, self._target, self._entries = admin, session, target, entries
        self._sla = sla
        self._nodes = SnapshotReader(target, {entry.topic for entry in entries})
        self._due = waits.Due()
        self._kafka_read_at = 0.0
        self._seen: Snapshot | None = None
        self._by_run: dict[str, list[TopicPartition]] = {}
        self._directing: list[str] = []
        """Runs that also move replicas to requested directories."""
        self.begins = False
        """The cluster may have been changed."""

    # --- reading

    def _read_cluster(self) -> tuple[Mapping[TopicPartition, Mapping[str, Any]], dict[TopicPartition, Reassignment]]:
        """Return the partitions of the file's topics, and the reassignments in progress."""
        under_way = self._admin.reassignments()  # first: one that ends meanwhile is described as ended
        return described(self._admin, {entry.topic for entry in self._entries}), under_way

    def _read_nodes(self) -> Snapshot:
        """Return the same from the nodes' memory, which may be older than the controller's metadata; if no node
        responds to this host, from Kafka's API, every few seconds.
        """
        found = self._nodes.read()
        if found is None:
            if self._seen is not None and time.monotonic() < self._kafka_read_at + self._nodes.kafka_seconds:
                return self._seen
            held, under_way = self._read_cluster()
            found = Snapshot(held, under_way, sizes_of(self._admin.log_dirs()))
            self._kafka_read_at = time.monotonic()
        self._seen = found
        return found

    def _views(self) -> list[LogDirectoryView]:
        """Return the directories of the nodes that respond; [] if the file requests none."""
        if not any(comparing.requested_moves(entry) for entry in self._entries):
            return []
        return self._admin.log_dirs()

    # --- changing

    def start(self, file: Path, rate: int | None) -> list[Row]:
        """Check the whole file, then request its changes."""
        (held, under_way), views = self._read_cluster(), self._views()
        nodes = [node.node for node in self._admin.nodes(fenced=True)]
        replicas = {tp: row["replicas"] for tp, row in held.items()}
        problems = comparing.problems(self._entries, replicas, nodes, views)
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise Refused(f"nothing was changed: {problems[0]}{more}")
        placed = comparing.placed(views)
        rows = [
            comparing.compare(entry, replicas[partition_of(entry)], under_way.get(partition_of(entry)), placed)
            for entry in self._entries
        ]
        open_rows = [row for row in rows if row.outcome in (comparing.TO_CHANGE, comparing.UNDER_WAY)]
        self.begins = bool(open_rows)
        if not open_rows:
            throttling.remove(self._admin, file)
        if rate is None or not open_rows:
            return self._begin(rows, None)
        if self.has_runs:
            throttling.remove(self._admin, file)  # of a call without Temporal
            mine, sentences = throttling.to_lease(self._admin, open_rows, rate, *self._held())
        else:
            mine, sentences = throttling.throttle(self._admin, file, open_rows, rate)
        for sentence in sentences:
            output.say(sentence)
        return self._begin(rows, mine)

    @property
    def has_runs(self) -> bool:
        """Whether runs hold the throttles, so that this command may exit."""
        return self._target.has_runs

    def _held(self) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        """Return the throttles of open runs: of those with only partitions of this file, and of the others."""
        found = self._session.run(lambda client: runs.reassignments(client, self._target.cluster))
        mine = set(map(partition_of, self._entries))
        sets: tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]] = ([], [])
        for progress in found:
            seen = {TopicPartition(row.topic, row.partition) for row in progress.partitions}
            if progress.throttles:
                sets[0 if seen <= mine else 1].append(progress.throttles)
        return sets

    def _begin(self, rows: Sequence[Row], mine: throttling.Throttles | None) -> list[Row]:
        """Request the changes: with Temporal, those with directories, throttles or an SLA by runs, each with its part
        of `mine`; all others through Kafka's API.
        """
        entries = {partition_of(entry): entry for entry in self._entries}
        changing = [row for row in rows if row.outcome == comparing.TO_CHANGE]
        by_run = mine is not None or self._sla is not None
        directed = [row for row in changing if by_run or comparing.requested_moves(entries[row.partition])]
        seen = [row for row in rows if mine is not None and row.outcome == comparing.UNDER_WAY]
        if (directed or seen) and self._target.has_runs:
            requested = [entries[row.partition] for row in (*directed, *seen)]
            # In separate runs: --wait waits for a directory until its run ends, possibly long after the others.
            self._start_runs([entry for entry in requested if comparing.requested_moves(entry)], mine)
            self._start_runs([entry for entry in requested if not comparing.requested_moves(entry)], mine)
            done = {row.partition: comparing.replaced(row, comparing.STARTED) for row in directed}
        else:
            done = {}
            moves = [move for row in changing for move in comparing.requested_moves(entries[row.partition])]
            if moves:  # a node records the directory of a replica that it does not have yet
                log_dirs.request_moves(self._admin, moves, patience=0.0)
        others = {row.partition: row.target for row in changing if row.partition not in done}
        errors = self._admin.reassign(others) if others else {}
        return [
            done.get(row.partition) or (_started(row, errors[row.partition]) if row.partition in errors else row)
            for row in rows
        ]

    def _start_runs(self, entries: Sequence[PlannedPartition], mine: throttling.Throttles | None) -> None:
        stamp = f"{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-{uuid4().hex[:4]}"
        groups = [entries[at : at + LARGEST_GROUP] for at in range(0, len(entries), LARGEST_GROUP)]

        async def start(client: Client, group: Sequence[PlannedPartition]) -> None:
            first = group[0]
            base = names.reassign_id(self._target.cluster, first.topic, first.partition, len(group))
            parameter: dict[str, Any] = {"version": 1, "partitions": [_planned(each) for each in group]}
            if mine:
                share = throttles.of_group(asdict(mine), [(each.topic, each.partition) for each in group])
                parameter["throttles"] = share
            if self._sla is not None:
                parameter["sla_seconds"] = self._sla
            workflow_id = f"{base}/cli-{stamp}"
            await runs.start_move(client, self._target.cluster, workflow_id, parameter, names.PARTITION_REASSIGNMENT)
            self._by_run[workflow_id] = [partition_of(each) for each in group]
            if comparing.requested_moves(first):
                self._directing.append(workflow_id)

        if groups:
            with waits.lines(lambda: f"starting {len(groups)} runs, {len(self._by_run)} are started", self._due):
                self._session.run(lambda client: runs.at_once(lambda group: start(client, group), groups))

    def cancel(self) -> list[Row]:
        """Cancel the reassignments of the file's partitions, whatever their targets are."""
        held, under_way = self._read_cluster()
        moving = {tp: under_way[tp] for tp in map(partition_of, self._entries) if tp in under_way}
        errors = self._admin.reassign(dict.fromkeys(moving)) if moving else {}
        rows = []
        for entry in self._entries:
            tp = partition_of(entry)
            now = tuple(held[tp]["replicas"]) if tp in held else ()
            if tp not in moving or errors[tp] == "NO_REASSIGNMENT_IN_PROGRESS":
                rows.append(Row(tp, now, entry.replicas, comparing.NOTHING))
            elif errors[tp]:
                rows.append(Row(tp, moving[tp].source, entry.replicas, comparing.REFUSED, _sentence(errors[tp])))
            else:
                rows.append(Row(tp, moving[tp].source, moving[tp].target, comparing.CANCELLED))
        return rows

    # --- waiting

    def begun(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows when the runs have started their reassignments, so that the next command lists them.

        Waits at most `BEGIN_PATIENCE` seconds.
        """
        of_runs = self._of_runs()
        waiting = {row.partition: row for row in rows if row.partition in of_runs}
        failed: dict[TopicPartition, Row] = {}
        until = time.monotonic() + BEGIN_PATIENCE
        while waiting and time.monotonic() < until:
            seen = self._read_nodes()
            for tp, row in list(waiting.items()):
                if tp in seen.under_way or (tp in seen.held and tuple(seen.held[tp]["replicas"]) == row.target):
                    del waiting[tp]
            if waiting:
                failed |= self._failed_runs(waiting)
                waiting = {tp: row for tp, row in waiting.items() if tp not in failed}
                time.sleep(POLL_SECONDS / 5)
        return [failed.get(row.partition, row) for row in rows]

    def wait(self, rows: Sequence[Row]) -> list[Row]:
        """Wait until all started reassignments have ended and the replicas are in the requested directories."""
        going = {row.partition: row for row in rows if row.outcome in (comparing.STARTED, comparing.UNDER_WAY)}
        final: dict[TopicPartition, Row] = {}
        doubts: dict[TopicPartition, int] = {}
        unreachable_since: float | None = None
        with Bars(due=self._due) as bars:
            for tp in going:
                bars.show(str(tp), Shown(ReassignmentPhase.CATCHING_UP))
            # A run requests its changes from the controller first: what it has not begun has not ended.
            begun = going.keys() - self._of_runs()
            while len(final) < len(going):
                try:
                    seen = self._read_nodes()
                    held, under_way = seen.held, seen.under_way
                    if SURE in doubts.values():  # only the controller's state proves it
                        held, under_way = self._read_cluster()
                except NoResponse as error:
                    unreachable_since = unreachable_since or time.monotonic()
                    if time.monotonic() - unreachable_since > PATIENCE:
                        raise OpsError(
                            f"{error}; the reassignment continues; wait for it with the same command"
                        ) from error
                    bars.polled()
                    time.sleep(POLL_SECONDS)
                    continue
                unreachable_since = None
                for tp, row in going.items():
                    if tp in final:
                        continue
                    now = held[tp]["replicas"] if tp in held else None
                    if tp in under_way or (now is not None and tuple(now) == row.target):
                        begun.add(tp)
                    over = comparing.ended(row, now, under_way.get(tp)) if tp in begun else None
                    # The node that describes a partition may have older metadata than the one that lists
                    # reassignments: a failure must be seen repeatedly.
                    doubts[tp] = doubts.get(tp, 0) + 1 if over is not None and over.outcome in NOT_REACHED else 0
                    if over is not None and (doubts[tp] == 0 or doubts[tp] > SURE):
                        final[tp] = over
                    bars.show(str(tp), _shown(tp, under_way.get(tp), seen, over))
                bars.polled()
                final |= self._failed_runs({tp: going[tp] for tp in going.keys() - begun - final.keys()})
                time.sleep(POLL_SECONDS if len(final) < len(going) else 0)
        final |= self._reach(final)
        return [final.get(row.partition, row) for row in rows]

    def _of_runs(self) -> set[TopicPartition]:
        """Return the partitions that the runs of this call reassign."""
        return {tp for mine in self._by_run.values() for tp in mine}

    def _failed_runs(self, left: Mapping[TopicPartition, Row]) -> dict[TopicPartition, Row]:
        """Return the rows of runs that ended before they started a reassignment; `left` are those without one."""
        by_run = {
            each: rows for each, mine in self._by_run.items() if (rows := [left[tp] for tp in mine if tp in left])
        }
        found: dict[TopicPartition, Row] = {}

        async def look(client: Client) -> None:
            queue = names.cluster_queue(self._target.cluster)
            open_ = {run.workflow_id async for run in describing.open_runs(client, queue, names.PARTITION_REASSIGNMENT)}
            # The server lists a run a moment after its start.
            await runs.at_once(lambda each: described_run(client, each), by_run.keys() - open_)

        async def described_run(client: Client, workflow_id: str) -> None:
            run = await describing.describe_run(client, workflow_id)
            if run is None or run.ended is None:
                return
            why, cancelled = f"its run ended: {workflow_id}", False
            try:
                await runs.result_of(client, workflow_id, ReassignmentRunResult)
            except runs.RunCancelled:
                cancelled = True
            except OpsError as error:
                why = str(error)
            for row in by_run[workflow_id]:
                found[row.partition] = (
                    comparing.cancelled(row, row.source)
                    if cancelled
                    else comparing.replaced(row, comparing.FAILED, why)
                )

        if by_run:
            self._session.run(look)
        return found

    def _reach(self, final: Mapping[TopicPartition, Row]) -> dict[TopicPartition, Row]:
        """Return the rows that the requested directories change: runs move the replicas, else this command does."""
        if self._by_run:
            return self._results(final) if self._directing else {}
        left = [
            move
            for entry in self._entries
            if (row := final.get(partition_of(entry))) is not None and row.outcome == comparing.DONE
            for move in comparing.requested_moves(entry)
        ]
        with Bars(due=self._due) as bars:
            while left:
                views = self._admin.log_dirs(partitions={move.partition for move in left})
                placed = comparing.placed(views)
                there = {move for move in left if placed.get((move.node, move.partition)) == move.directory}
                for each in log_dirs.progress_of(left, views):
                    now = Shown(each.state, each.bytes_total, each.bytes_copied, done=each.move in there)
                    bars.show(f"{each.move.partition} on node {each.move.node}", now)
                bars.polled()
                left = [move for move in left if move not in there]
                for result in log_dirs.request_moves(self._admin, left, patience=10.0):
                    if result.outcome == log_dirs.REFUSED:
                        tp = result.move.partition
                        return {tp: comparing.replaced(final[tp], comparing.FAILED, result.message)}
                time.sleep(POLL_SECONDS if left else 0)
        return {}

    def until_unthrottled(self) -> None:
        """Wait until the runs have released their throttles, for a limited time: they release them in any case."""
        until, pause = time.monotonic() + PATIENCE, POLL_SECONDS
        with waits.lines("waiting until the runs have removed the throttle", self._due):
            while self.has_runs and self._held()[0] and time.monotonic() < until:
                time.sleep(pause)
                pause = min(2 * pause, KAFKA_SECONDS)  # each read queries the runs: a query costs a worker a replay

    def _results(self, final: Mapping[TopicPartition, Row]) -> dict[TopicPartition, Row]:
        found: dict[TopicPartition, Row] = {}
        ended: list[str] = []

        async def one(client: Client, workflow_id: str) -> None:
            # The metadata has already shown the reassignments that failed.
            mine = [tp for tp in self._by_run[workflow_id] if final[tp].outcome not in NOT_REACHED]
            try:
                result = await runs.result_of(client, workflow_id, ReassignmentRunResult)
            except OpsError as error:
                found.update({tp: comparing.replaced(final[tp], comparing.FAILED, str(error)) for tp in mine})
            else:
                for row in result.rows:
                    tp = TopicPartition(row.topic, row.partition)
                    if tp in mine:
                        found[tp] = comparing.replaced(final[tp], row.outcome, row.message)
            ended.append(workflow_id)

        of = len(self._directing)
        with waits.lines(
            lambda: f"waiting for the requested directories: {len(ended)} of {of} runs have ended", self._due
        ):
            self._session.run(lambda client: runs.at_once(lambda each: one(client, each), self._directing))
        return found


def _shown(tp: TopicPartition, one: Reassignment | None, seen: Snapshot, over: Row | None) -> Shown:
    """Return a partition as a bar."""
    phase = over.outcome if over is not None else ReassignmentPhase.CATCHING_UP
    if one is None:
        return Shown(phase, done=over is not None)
    line, reported = comparing.line(one, seen.held.get(tp), seen.sizes, {}), reported_of(one, seen.live) or Reported()
    return Shown(phase, line.bytes_total, line.bytes_copied, reported.rate, reported.eta, done=over is not None)


def _planned(entry: PlannedPartition) -> dict[str, Any]:
    return {
        "topic": entry.topic,
        "partition": entry.partition,
        "replicas": list(entry.replicas),
        "log_dirs": list(entry.log_dirs),
    }


def _started(row: Row, error: str) -> Row:
    return replace(row, outcome=comparing.REFUSED if error else comparing.STARTED, message=_sentence(error))


def _sentence(error: str) -> str:
    return f"the cluster rejected the request with {error}" if error else ""
