"""rehome reassign, reassignments: partitions get other nodes (KIP-455), and other directories there (KIP-113)."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from temporalio.client import Client

from activities.describing import describe_run
from ops.cli import log_dirs, output, reassign_throttle, runs
from ops.cli import reassign_plan as plans
from ops.cli.kafka_admin import KafkaAdmin, LogDirectoryView, NoAnswer, Reassignment, UnknownTopic, sizes_of
from ops.cli.options import Bootstrap, Cluster, Data, Json, TemporalAddress
from ops.cli.reassign_look import KAFKA_SECONDS, Looked, ReassignmentLook, Reported, reported_of
from ops.cli.reassign_plan import BAD, NOT_REACHED, Row, partition_of
from ops.cli.target import Target, resolve
from ops.cli.waiting import Bars, Shown
from ops.stack.errors import OpsError, UsageError
from storage_node.types import TopicPartition
from workflows.model import names, throttles
from workflows.model.plan import PlannedPartition
from workflows.model.reassignment_request import LARGEST_GROUP

LOOK_SECONDS = 0.5
#: How long a call that does not wait looks for its runs to begin, seconds.
BEGIN_PATIENCE = 10.0
#: So many looks in a row have to find that a reassignment was cancelled, or is gone.
SURE = 4
#: How long looking on bears that nobody answers, seconds: a node that was just killed may be the one that is asked.
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
            help="Bytes per second and node for what is copied, such as 20MB (KIP-73); taken back at the end, by the "
            "runs. On a cluster without runs it needs --wait.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until it is done; fail with the reason.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel what is under way for the partitions of the file.")
    ] = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Give the partitions of FILE the replicas that it says; what is there already stays as it is.

    FILE holds for example {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2],
    "log_dirs": ["any", "/disks/a"]}]}.

    All of it is checked before anything is changed. A second call with the same file changes nothing, and with --wait
    looks on. A partition that is under way to elsewhere goes to the newer target; a cancel restores the replicas from
    before the first.
    """
    rate = output.parse_rate(throttle) if throttle else None
    if cancel and (rate is not None or wait):
        raise UsageError("--cancel answers at once: leave out --throttle and --wait")
    entries = plans.read(file)
    target = resolve(data, bootstrap, temporal_address, cluster)
    if rate is not None and not wait and not target.temporal_address:
        raise UsageError(
            "--throttle is taken back at the end, and without Temporal nobody does it then: give --wait as well"
        )
    with KafkaAdmin(target.need_kafka()) as admin:
        work = _Reassign(admin, target, entries)
        if cancel:
            rows = work.cancel()
            reassign_throttle.take_back(admin, file)
        else:
            try:
                rows = work.start(file, rate)
                rows = work.wait(rows) if wait else work.begun(rows)
            except KeyboardInterrupt:
                if work.begins:
                    output.say(_left(file, rate is not None, work.hands_over))
                raise
            if wait:
                if rate is not None:
                    work.until_unthrottled()
                reassign_throttle.take_back(admin, file)
    _print(rows, json, waited=wait or cancel, bad=BAD if cancel else NOT_REACHED)


def _left(file: Path, throttled: bool, handed_over: bool) -> str:
    """What somebody should know who has interrupted a call."""
    back = ""
    if throttled:
        back = "; the throttle is taken back at the end" if handed_over else " (each takes the throttle back)"
    return (
        "it goes on; look: rehome reassignments; wait again: rehome reassign --wait "
        f"{file}; cancel: rehome reassign --cancel {file}{back}"
    )


def _print(rows: Sequence[Row], as_json: bool, *, waited: bool, bad: Collection[str]) -> None:
    """Show the rows; raises `OpsError` with the first of those whose outcome is in `bad`."""
    if as_json:
        output.print_json([row.as_json() for row in rows])
    else:
        output.console().print(output.table(plans.COLUMNS, [row.cells() for row in rows]))
        if not waited and any(row.outcome in (plans.STARTED, plans.UNDER_WAY) for row in rows):
            typer.echo("watch it with: rehome reassignments --watch")
    missed = [row for row in rows if row.outcome in bad]
    if missed:
        more = f" (and {len(missed) - 1} more)" if len(missed) > 1 else ""
        raise OpsError(f"{missed[0].partition} is not on {plans.listed(missed[0].target)}: {missed[0].message}{more}")


class _Reassign:
    """One call of the command."""

    def __init__(self, admin: KafkaAdmin, target: Target, entries: Sequence[PlannedPartition]) -> None:
        self._admin, self._target, self._entries = admin, target, entries
        self._nodes = ReassignmentLook(target, {entry.topic for entry in entries})
        self._asked_kafka = 0.0
        self._seen: Looked | None = None
        self._by_run: dict[str, list[TopicPartition]] = {}
        self._directing: list[str] = []
        """Runs that have directories to reach."""
        self.begins = False
        """Something may have been changed."""

    # --- looking

    def _look(self) -> tuple[dict[TopicPartition, dict[str, Any]], dict[TopicPartition, Reassignment]]:
        """The partitions of the file that there are, and what is under way."""
        under_way = self._admin.reassignments()  # first: what ends meanwhile is described as it has ended
        held: dict[TopicPartition, dict[str, Any]] = {}
        for topic in sorted({entry.topic for entry in self._entries}):
            try:
                described = self._admin.describe([topic])[0]
            except UnknownTopic:
                continue
            held |= {TopicPartition(topic, row["partition"]): row for row in described["partitions"]}
        return held, under_way

    def _look_again(self) -> Looked:
        """Return the same from the nodes' memory, which may be older than the controller's metadata; if none of them
        responds to this host, from Kafka's API, every few seconds.
        """
        found = self._nodes.look()
        if found is None:
            if self._seen is not None and time.monotonic() < self._asked_kafka + KAFKA_SECONDS:
                return self._seen
            held, under_way = self._look()
            found = Looked(held, under_way, sizes_of(self._admin.log_dirs()))
            self._asked_kafka = time.monotonic()
        self._seen = found
        return found

    def _views(self) -> list[LogDirectoryView]:
        """The directories of the nodes that answer, where the file asks for any."""
        if not any(plans.wishes(entry) for entry in self._entries):
            return []
        return self._admin.log_dirs()

    # --- doing

    def start(self, file: Path, rate: int | None) -> list[Row]:
        """Check everything, then begin what is to be changed."""
        (held, under_way), views = self._look(), self._views()
        nodes = [node.node for node in self._admin.nodes(fenced=True)]
        replicas = {tp: row["replicas"] for tp, row in held.items()}
        problems = plans.problems(self._entries, replicas, nodes, views)
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise OpsError(f"nothing was changed: {problems[0]}{more}")
        rows = [
            plans.standing(entry, replicas[partition_of(entry)], under_way.get(partition_of(entry)), views)
            for entry in self._entries
        ]
        open_rows = [row for row in rows if row.outcome in (plans.TO_CHANGE, plans.UNDER_WAY)]
        self.begins = bool(open_rows)
        if not open_rows:
            reassign_throttle.take_back(self._admin, file)
        if rate is None or not open_rows:
            return self._begin(rows, None)
        if self.hands_over:
            reassign_throttle.take_back(self._admin, file)  # of a call without runs
            mine, sentences = reassign_throttle.to_lease(self._admin, open_rows, rate, *self._held())
        else:
            mine, sentences = reassign_throttle.throttle(self._admin, file, open_rows, rate)
        for sentence in sentences:
            output.say(sentence)
        return self._begin(rows, mine)

    @property
    def hands_over(self) -> bool:
        """Whether there are runs that hold throttles."""
        return bool(self._target.temporal_address)

    def _held(self) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        """The throttles that open runs hold: those that see partitions of this file alone, and others."""
        found = runs.with_temporal(
            self._target, lambda client: runs.queried(client, self._target.cluster, names.PARTITION_REASSIGNMENT)
        )
        mine = set(map(partition_of, self._entries))
        sets: tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]] = ([], [])
        for progress in found:
            seen = {TopicPartition(str(row["topic"]), int(row["partition"])) for row in progress.get("partitions", [])}
            if progress.get("throttles"):
                sets[0 if seen <= mine else 1].append(progress["throttles"])
        return sets

    def _begin(self, rows: Sequence[Row], mine: reassign_throttle.Throttles | None) -> list[Row]:
        """Request the changes: directories and throttles from a run (it holds its part of `mine`) where Temporal is
        used, all else through Kafka's API.
        """
        entries = {partition_of(entry): entry for entry in self._entries}
        changing = [row for row in rows if row.outcome == plans.TO_CHANGE]
        directed = [row for row in changing if mine is not None or plans.wishes(entries[row.partition])]
        seen = [row for row in rows if mine is not None and row.outcome == plans.UNDER_WAY]
        if (directed or seen) and self._target.temporal_address:
            asked = [entries[row.partition] for row in (*directed, *seen)]
            # Apart: whoever waits for a directory waits for the end of its run, which may be long after.
            self._start_runs([entry for entry in asked if plans.wishes(entry)], mine)
            self._start_runs([entry for entry in asked if not plans.wishes(entry)], mine)
            done = {row.partition: plans.replaced(row, plans.STARTED) for row in directed}
        else:
            done = {}
            wishes = [wish for row in changing for wish in plans.wishes(entries[row.partition])]
            if wishes:  # a node remembers the directory of a replica that it does not have yet
                log_dirs.ask(self._admin, wishes, patience=0.0)
        others = {row.partition: row.target for row in changing if row.partition not in done}
        errors = self._admin.reassign(others) if others else {}
        return [
            done.get(row.partition) or (_started(row, errors[row.partition]) if row.partition in errors else row)
            for row in rows
        ]

    def _start_runs(self, entries: Sequence[PlannedPartition], mine: reassign_throttle.Throttles | None) -> None:
        stamp = f"{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-{uuid4().hex[:4]}"
        groups = [entries[at : at + LARGEST_GROUP] for at in range(0, len(entries), LARGEST_GROUP)]

        async def work(client: Client) -> None:
            for group in groups:
                first = group[0]
                base = names.reassign_id(self._target.cluster, first.topic, first.partition, len(group))
                parameter: dict[str, Any] = {"version": 1, "partitions": [_planned(each) for each in group]}
                if mine:
                    share = throttles.of_group(asdict(mine), [(each.topic, each.partition) for each in group])
                    parameter["throttles"] = share
                workflow_id = f"{base}/cli-{stamp}"
                await runs.start_move(
                    client, self._target.cluster, workflow_id, parameter, names.PARTITION_REASSIGNMENT
                )
                self._by_run[workflow_id] = [partition_of(each) for each in group]
                if plans.wishes(first):
                    self._directing.append(workflow_id)

        runs.with_temporal(self._target, work)

    def cancel(self) -> list[Row]:
        """Cancel what is under way for the partitions of the file, whatever its target is."""
        held, under_way = self._look()
        moving = {tp: under_way[tp] for tp in map(partition_of, self._entries) if tp in under_way}
        errors = self._admin.reassign(dict.fromkeys(moving)) if moving else {}
        rows = []
        for entry in self._entries:
            tp = partition_of(entry)
            now = tuple(held[tp]["replicas"]) if tp in held else ()
            if tp not in moving or errors[tp] == "NO_REASSIGNMENT_IN_PROGRESS":
                rows.append(Row(tp, now, entry.replicas, plans.NOTHING))
            elif errors[tp]:
                rows.append(Row(tp, moving[tp].source, entry.replicas, plans.REFUSED, _sentence(errors[tp])))
            else:
                rows.append(Row(tp, moving[tp].source, moving[tp].target, plans.CANCELLED))
        return rows

    # --- waiting

    def begun(self, rows: Sequence[Row]) -> list[Row]:
        """The rows once the runs have had their changes made, so that whoever looks next sees them; not for long."""
        waiting = {row.partition: row for row in rows if any(row.partition in mine for mine in self._by_run.values())}
        failed: dict[TopicPartition, Row] = {}
        until = time.monotonic() + BEGIN_PATIENCE
        while waiting and time.monotonic() < until:
            seen = self._look_again()
            for tp, row in list(waiting.items()):
                if tp in seen.under_way or (tp in seen.held and tuple(seen.held[tp]["replicas"]) == row.target):
                    del waiting[tp]
            if waiting:
                failed |= self._failed_runs(waiting, set())
                waiting = {tp: row for tp, row in waiting.items() if tp not in failed}
                time.sleep(LOOK_SECONDS / 5)
        return [failed.get(row.partition, row) for row in rows]

    def wait(self, rows: Sequence[Row]) -> list[Row]:
        """Until everything that was started has ended; directories asked for are reached, or the row says why not."""
        going = {row.partition: row for row in rows if row.outcome in (plans.STARTED, plans.UNDER_WAY)}
        final: dict[TopicPartition, Row] = {}
        doubts: dict[TopicPartition, int] = {}
        silent_since: float | None = None
        with Bars() as bars:
            for tp in going:
                bars.show(str(tp), Shown("catching up"))
            # A run has to ask the controller first: what it has not begun is not over.
            begun = {tp for tp in going if not any(tp in mine for mine in self._by_run.values())}
            while len(final) < len(going):
                try:
                    seen = self._look_again()
                    held, under_way = seen.held, seen.under_way
                    if SURE in doubts.values():  # only the controller's state proves it
                        held, under_way = self._look()
                except NoAnswer as error:
                    silent_since = silent_since or time.monotonic()
                    if time.monotonic() - silent_since > PATIENCE:
                        raise OpsError(f"{error}; the reassignment goes on without being looked at") from error
                    time.sleep(LOOK_SECONDS)
                    continue
                silent_since = None
                for tp, row in going.items():
                    if tp in final:
                        continue
                    now = held[tp]["replicas"] if tp in held else None
                    if tp in under_way or (now is not None and tuple(now) == row.target):
                        begun.add(tp)
                    over = plans.ended(row, now, under_way.get(tp)) if tp in begun else None
                    # Who describes a partition may know less than who says what is under way: bad news has to last.
                    doubts[tp] = doubts.get(tp, 0) + 1 if over is not None and over.outcome in NOT_REACHED else 0
                    if over is not None and (doubts[tp] == 0 or doubts[tp] > SURE):
                        final[tp] = over
                    bars.show(str(tp), _shown(tp, under_way.get(tp), seen, over))
                bars.looked()
                if self._by_run and not begun.issuperset(going):
                    final |= self._failed_runs(going, begun)
                time.sleep(LOOK_SECONDS if len(final) < len(going) else 0)
        final |= self._reach(final)
        return [final.get(row.partition, row) for row in rows]

    def _failed_runs(
        self, going: Mapping[TopicPartition, Row], begun: set[TopicPartition]
    ) -> dict[TopicPartition, Row]:
        """The rows of runs that ended before they began anything."""
        found: dict[TopicPartition, Row] = {}

        async def work(client: Client) -> None:
            for workflow_id, mine in self._by_run.items():
                found_run = await describe_run(client, workflow_id)
                if found_run is None or found_run.ended is None:
                    continue
                why, cancelled = f"its run ended: {workflow_id}", False
                try:
                    await runs.result_of(client, workflow_id)
                except runs.RunCancelled:
                    cancelled = True
                except OpsError as error:
                    why = str(error)
                for row in (going[tp] for tp in mine if tp in going and tp not in begun):
                    ended = plans.cancelled(row, row.source) if cancelled else plans.replaced(row, plans.FAILED, why)
                    found[row.partition] = ended

        runs.with_temporal(self._target, work)
        return found

    def _reach(self, final: Mapping[TopicPartition, Row]) -> dict[TopicPartition, Row]:
        """What the directories add: a run sees to them itself, else they are asked for here."""
        if self._by_run:
            return self._results(final) if self._directing else {}
        entries = {partition_of(entry): entry for entry in self._entries}
        done = [tp for tp, row in final.items() if row.outcome == plans.DONE]
        while away := [wish for tp in done for wish in plans.misplaced(entries[tp], self._admin.log_dirs())]:
            for answer in log_dirs.ask(self._admin, away, patience=10.0):
                if answer.outcome == log_dirs.REFUSED:
                    tp = answer.wish.partition
                    return {tp: plans.replaced(final[tp], plans.FAILED, answer.message)}
            time.sleep(LOOK_SECONDS)
        return {}

    def until_unthrottled(self) -> None:
        """Wait until the runs have released their throttles; not for long, since they do it in any case."""
        until, pause = time.monotonic() + PATIENCE, LOOK_SECONDS
        while self.hands_over and self._held()[0] and time.monotonic() < until:
            time.sleep(pause)
            pause = min(2 * pause, KAFKA_SECONDS)  # each look queries the runs, and a query costs their worker a replay

    def _results(self, final: Mapping[TopicPartition, Row]) -> dict[TopicPartition, Row]:
        found: dict[TopicPartition, Row] = {}

        async def work(client: Client) -> None:
            for workflow_id in self._directing:
                # Of what did not get there the metadata has said so already.
                mine = [tp for tp in self._by_run[workflow_id] if final[tp].outcome not in NOT_REACHED]
                try:
                    result = await runs.result_of(client, workflow_id)
                except OpsError as error:
                    found.update({tp: plans.replaced(final[tp], plans.FAILED, str(error)) for tp in mine})
                    continue
                for row in result.get("rows", []):
                    tp = TopicPartition(row["topic"], row["partition"])
                    if tp in mine:
                        found[tp] = plans.replaced(final[tp], row["outcome"], row["message"])

        runs.with_temporal(self._target, work)
        return found


def _shown(tp: TopicPartition, one: Reassignment | None, seen: Looked, over: Row | None) -> Shown:
    """A partition as a bar."""
    phase = over.outcome if over is not None else "catching up"
    if one is None:
        return Shown(phase, done=over is not None)
    line, reported = plans.line(one, seen.held.get(tp), seen.sizes, {}), reported_of(one, seen.live) or Reported()
    return Shown(phase, line.bytes_total, line.bytes_copied, reported.rate, reported.eta, done=over is not None)


def _planned(entry: PlannedPartition) -> dict[str, Any]:
    return {
        "topic": entry.topic,
        "partition": entry.partition,
        "replicas": list(entry.replicas),
        "log_dirs": list(entry.log_dirs),
    }


def _started(row: Row, error: str) -> Row:
    return replace(row, outcome=plans.REFUSED if error else plans.STARTED, message=_sentence(error))


def _sentence(error: str) -> str:
    return f"the cluster refused with {error}" if error else ""
