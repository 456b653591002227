"""rehome reassignments: what is being reassigned, how far it is, and what holds it."""

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

from ops.cli import absent, open_runs, output, runs
from ops.cli.kafka_admin import KafkaAdmin, UnknownTopic, sizes_of
from ops.cli.open_runs import OpenRun, OpenRuns
from ops.cli.options import Bootstrap, Cluster, Data, Json, TemporalAddress
from ops.cli.reassign_look import KAFKA_SECONDS, Looked, ReassignmentLook, Reported, reported_of
from ops.cli.reassign_plan import Line, line, listed, measured
from ops.cli.target import Target, resolve
from ops.stack.errors import OpsError, UsageError
from storage_node.types import TopicPartition
from workflows.model import names, reassignment_request
from workflows.model.fields import BadField
from workflows.model.reassignment_runs import Part

COLUMNS = ("partition", "from", "to", "in sync", "copied", "of", "rate", "ETA", "held by")
SECONDS = 1.0
#: Seconds between two queries of a run that is to be cancelled: why the controller refuses that.
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
    """Show every reassignment under way: from, to, bytes of total, rate, time to go, and what holds it."""
    if watch and json:
        raise UsageError("--watch is for people; for programs call `rehome reassignments --json` as often as needed")
    target = resolve(data, bootstrap, temporal_address, cluster)
    with KafkaAdmin(target.need_kafka()) as admin:
        with Looking(admin, target, again=watch) as looking:
            if watch:
                _watch(looking)
            shown = looking.gather()
        if json:
            output.print_json({"reassignments": [each.as_json() for each in shown.lines], "notes": shown.notes})
            return
        for note in shown.notes:
            output.say(note)
        output.console().print(table(shown.lines)) if shown.lines else typer.echo("no reassignments")


@dataclass(frozen=True, slots=True)
class Gathered:
    """What is under way, when it was looked at, and a sentence for each who did not answer."""

    lines: list[Line]
    notes: list[str]
    at: float


class Looking:
    """Reads the reassignments for one command. Use as a context manager; `again` for one that reads repeatedly."""

    def __init__(self, admin: KafkaAdmin, target: Target, *, again: bool = False) -> None:
        self._admin, self._target = admin, target
        self._most = open_runs.STEPS_AT_A_LOOK if again else None
        self._nodes = ReassignmentLook(target)
        self._session = runs.Session(target)
        self._runs: OpenRuns | None = None
        self._refusals: dict[str, tuple[float, dict[TopicPartition, str]]] = {}
        self._last: Looked | None = None
        self._asked_kafka = float("-inf")

    def __enter__(self) -> Looking:
        self._session.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.__exit__()

    def gather(self) -> Gathered:
        """Return what is under way. The first look reads the controller's state, so that it is as new as any of its
        responses before; the others read the nodes' memory.
        """
        seen = self._look()
        at = time.monotonic()
        notes = [str(self._nodes.problem)] if self._nodes.problem is not None else []
        if not seen.under_way:
            return Gathered([], notes, at)
        found: dict[TopicPartition, tuple[OpenRun, Part]] = {}
        refused: dict[TopicPartition, str] = {}
        if self._target.temporal_address:
            try:
                found, refused = self._session.run(self._read)
            except OpsError as error:
                notes.append(str(error))
        missed = {
            node: why[1]
            for node in {node for one in seen.under_way.values() for node in one.target}
            if (why := absent.judge(node, seen.reach.get(node), node in seen.fenced)) is not None
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
        return Gathered(lines, notes, at)

    def _look(self) -> Looked:
        if self._last is not None and (found := self._nodes.look()) is not None:
            self._last = found
        elif self._last is None or time.monotonic() >= self._asked_kafka + KAFKA_SECONDS:
            self._asked_kafka = time.monotonic()
            self._last = self._by_kafka()
        return self._last

    def _by_kafka(self) -> Looked:
        """Read from Kafka's API, and what the nodes report beside it."""
        under_way = self._admin.reassignments()
        reported = (self._nodes.look() if under_way else None) or Looked()
        known = {node.node for node in self._admin.nodes(fenced=True)} if under_way else set()
        alive = {node.node for node in self._admin.nodes()} if under_way else set()
        held: dict[TopicPartition, Mapping[str, Any]] = {}
        for topic in sorted({tp.topic for tp in under_way}):
            try:
                rows = self._admin.describe([topic])[0]["partitions"]
            except UnknownTopic:
                continue
            held |= {TopicPartition(topic, row["partition"]): row for row in rows}
        sizes = sizes_of(self._admin.log_dirs(sorted(alive))) if under_way else {}
        return Looked(held, under_way, sizes, reported.live, reported.reach, frozenset(known - alive), reported.version)

    async def _read(
        self, client: Client
    ) -> tuple[dict[TopicPartition, tuple[OpenRun, Part]], dict[TopicPartition, str]]:
        """The open run of each partition, and why the controller refuses to cancel those that are to be cancelled."""
        if self._runs is None:
            self._runs = OpenRuns(client, self._target.cluster, names.PARTITION_REASSIGNMENT)
        found: dict[TopicPartition, tuple[OpenRun, Part]] = {}
        refused: dict[TopicPartition, str] = {}
        for run in await self._runs.look(lambda _: True, self._most):
            for part in _parts(run):
                found[TopicPartition(part.topic, part.partition)] = run, part
            if run.step is not None and run.step.cancelling:
                refused |= await self._refusal(client, run)
        return found, refused

    async def _refusal(self, client: Client, run: OpenRun) -> dict[TopicPartition, str]:
        """Query a run that is to be cancelled, now and then, why its partitions are still under way: only it knows."""
        queried, reported = self._refusals.get(run.run_id, (float("-inf"), {}))
        if time.monotonic() >= queried + REFUSAL_SECONDS:
            rows = ((await runs.progress_of(client, run.workflow_id, run.run_id)) or {}).get("partitions", [])
            reported = {
                TopicPartition(str(row["topic"]), int(row["partition"])): str(row["message"])
                for row in rows
                if not row.get("outcome") and row.get("message")
            }
            self._refusals[run.run_id] = time.monotonic(), reported
        return reported


def _parts(run: OpenRun) -> tuple[Part, ...]:
    """The partitions that a run was started with; () where they cannot be read."""
    try:
        return reassignment_request.parse(run.parameter).parts if run.parameter is not None else ()
    except BadField:
        return ()


def table(lines: Sequence[Line]) -> Any:
    """The reassignments under way, for people."""
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
        output.duration(each.eta),
        each.reason or "-",
    ]


def _watch(looking: Looking) -> NoReturn:
    shown = looking.gather()
    with Live(Text("asking the nodes ..."), console=output.console(), refresh_per_second=4, transient=False) as live:
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
                now = looking.gather()
            except OpsError as error:  # such as a node that restarts; the next look may find it again
                shown = replace(shown, notes=[str(error)])
                continue
            lines = measured(now.lines, shown.lines, now.at - shown.at)
            shown = now
