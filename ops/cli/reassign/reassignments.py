"""rehome reassignments: lists reassignments in progress, how far they are, and why they are stalled."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text
from temporalio.client import Client

from ops.cli import node_health, output
from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.moves import open_runs, runs
from ops.cli.moves.open_runs import OpenRun, OpenRuns
from ops.cli.options import Bootstrap, Cluster, Data, Json, TemporalAddress
from ops.cli.reassign.comparing import Line, line, listed, measured
from ops.cli.reassign.polling import Reported, Snapshot, SnapshotReader, by_kafka, reported_of
from ops.cli.target import Target, resolve
from ops.stack.errors import OpsError, UsageError
from storage_node.model.fields import BadField
from storage_node.model.ids import TopicPartition
from workflows.model import names
from workflows.model.reassignment import request
from workflows.model.reassignment.runs import PartitionRun
from workflows.model.run_progress import ReassignmentProgress

COLUMNS = ("partition", "from", "to", "in sync", "copied", "of", "rate", "ETA", "held by")
SECONDS = 1.0
#: Seconds between two queries of a run whose cancel the controller rejects, for the reason.
REFUSAL_SECONDS = 30.0


def register(app: typer.Typer) -> None:
    """Add the command to the root of `rehome`."""
    app.command("reassignments")(list_reassignments)


def list_reassignments(
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")] = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """List reassignments in progress: from, to, copied and total bytes, rate, ETA, and why they are stalled."""
    if watch and json:
        raise UsageError(
            "--watch cannot be combined with --json; call `rehome reassignments --json` repeatedly instead"
        )
    target = resolve(data, bootstrap, temporal_address, cluster)
    with KafkaAdmin(target.need_kafka()) as admin:
        with ReassignmentReader(admin, target, again=watch) as reader:
            if watch:
                _watch(reader)
            shown = reader.gather()
        if json:
            output.print_json({"reassignments": [each.as_json() for each in shown.lines], "notes": shown.notes})
        else:
            output.console().print(table(shown.lines)) if shown.lines else typer.echo("no reassignments")
        output.need_whole(shown.notes)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The reassignments in progress, when they were read, and a sentence for each failed call."""

    lines: list[Line]
    notes: list[str]
    at: float


def lines_of(
    seen: Snapshot,
    found: Mapping[TopicPartition, tuple[OpenRun, PartitionRun]],
    refused: Mapping[TopicPartition, str],
) -> list[Line]:
    """Return the lines of the reassignments in progress, in order, with the run of each, and why the controller rejects
    the cancel of some.
    """
    missed = {
        node: why[1]
        for node in {node for one in seen.under_way.values() for node in one.target}
        if (why := node_health.diagnose(node, seen.reach.get(node), node in seen.fenced)) is not None
    }
    lines = []
    for tp, one in sorted(seen.under_way.items()):
        run, part = found.get(tp, (None, None))
        reported = reported_of(one, seen.live)
        if tp in refused and not (reported and reported.message):
            reported = replace(reported or Reported(), message=refused[tp])
        same = run is not None and part is not None and part.target == one.target
        names_ = (run.workflow_id, part.by) if same and run is not None and part is not None else ("", "")
        lines.append(line(one, seen.held.get(tp), seen.sizes, missed, reported, *names_))
    return lines


class ReassignmentReader:
    """Reads the reassignments for one command. Use as a context manager; `again` for one that reads repeatedly."""

    def __init__(self, admin: KafkaAdmin, target: Target, *, again: bool = False) -> None:
        self._admin, self._target = admin, target
        self._most = open_runs.STEPS_PER_POLL if again else None
        self._nodes = SnapshotReader(target)
        self._session = runs.Session(target)
        self._runs: OpenRuns | None = None
        self._refusals: dict[str, tuple[float, dict[TopicPartition, str]]] = {}
        self._last: Snapshot | None = None
        self._kafka_read_at = float("-inf")

    def __enter__(self) -> ReassignmentReader:
        self._session.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.__exit__()

    def gather(self) -> Gathered:
        """Return the reassignments in progress. The first call reads the controller's state, so that it is not older
        than an earlier response of the controller; later calls read the nodes' memory.
        """
        seen = self._read_snapshot()
        at = time.monotonic()
        notes = [str(self._nodes.problem)] if self._nodes.problem is not None else []
        if not seen.under_way:
            return Gathered([], notes, at)
        found: dict[TopicPartition, tuple[OpenRun, PartitionRun]] = {}
        refused: dict[TopicPartition, str] = {}
        if self._target.has_runs:
            try:
                found, refused = self._session.run(self._read_runs)
            except OpsError as error:
                notes.append(str(error))
        lines = lines_of(seen, found, refused)
        return Gathered(lines, notes, at)

    def _read_snapshot(self) -> Snapshot:
        if self._last is not None and (found := self._nodes.read()) is not None:
            self._last = found
        elif self._last is None or time.monotonic() >= self._kafka_read_at + self._nodes.kafka_seconds:
            self._kafka_read_at = time.monotonic()
            self._last = by_kafka(self._admin, self._nodes.read)
        return self._last

    async def _read_runs(
        self, client: Client
    ) -> tuple[dict[TopicPartition, tuple[OpenRun, PartitionRun]], dict[TopicPartition, str]]:
        """Return the open run of each partition, and why the controller rejects the cancel of those being cancelled."""
        if self._runs is None:
            self._runs = OpenRuns(client, self._target.cluster, names.PARTITION_REASSIGNMENT)
        found: dict[TopicPartition, tuple[OpenRun, PartitionRun]] = {}
        refused: dict[TopicPartition, str] = {}
        open_ = await self._runs.read(lambda _: True, self._most)
        for run in open_:
            for part in parts_of(run):
                found[TopicPartition(part.topic, part.partition)] = run, part
        cancelling = [run for run in open_ if run.step is not None and run.step.cancelling]
        for each in await runs.at_once(lambda run: self._refusal(client, run), cancelling):
            refused |= each
        return found, refused

    async def _refusal(self, client: Client, run: OpenRun) -> dict[TopicPartition, str]:
        """Query a run whose cancel was requested, at intervals, for why its partitions are still in progress."""
        queried, reported = self._refusals.get(run.run_id, (float("-inf"), {}))
        if time.monotonic() >= queried + REFUSAL_SECONDS:
            found = await runs.progress_of(client, run.workflow_id, run.run_id, ReassignmentProgress)
            reported = {
                TopicPartition(row.topic, row.partition): row.message
                for row in (found.partitions if found is not None else ())
                if not row.outcome and row.message
            }
            self._refusals[run.run_id] = time.monotonic(), reported
        return reported


def parts_of(run: OpenRun) -> tuple[PartitionRun, ...]:
    """Return the partitions in a run's parameter; () if it is not valid."""
    try:
        return request.parse(run.parameter).parts if run.parameter is not None else ()
    except BadField:
        return ()


def table(lines: Sequence[Line]) -> Any:
    """Return the table of reassignments in progress."""
    return output.table(COLUMNS, [_cells(each) for each in lines])


def _cells(each: Line) -> list[str]:
    share = f" {100 * each.bytes_copied // each.bytes_total}%" if each.bytes_total else ""
    return [
        f"{each.topic}-{each.partition}",
        listed(each.source),
        listed(each.target),
        listed(each.in_sync),
        output.size(each.bytes_copied) + share,
        output.size(each.bytes_total),
        output.rate(each.rate) if each.rate else "-",
        output.to_go(each.eta, each.bytes_copied, each.bytes_total),
        each.reason or "-",
    ]


def _watch(reader: ReassignmentReader) -> NoReturn:
    shown = reader.gather()
    with Live(
        Text("reading from the nodes ..."), console=output.console(), refresh_per_second=4, transient=False
    ) as live:
        lines = shown.lines
        while True:
            live.update(
                Group(
                    table(lines) if lines else Text("no reassignments"),
                    Text("\n".join([*shown.notes, "Ctrl-C ends the display, not the reassignments"]), style="dim"),
                )
            )
            time.sleep(SECONDS)
            try:
                now = reader.gather()
            except OpsError as error:  # for example while a node restarts; the next read may succeed
                shown = replace(shown, notes=[str(error)])
                continue
            lines = measured(now.lines, shown.lines, now.at - shown.at)
            shown = now
