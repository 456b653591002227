"""rehome reassignments: what is being reassigned, how far it is, and what holds it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from ops.cli import output, runs
from ops.cli.kafka_admin import KafkaAdmin, UnknownTopic, sizes_of
from ops.cli.options import Bootstrap, Cluster, Data, Json, TemporalAddress
from ops.cli.reassign_plan import Line, line, listed, measured
from ops.cli.target import Target, resolve
from ops.stack.errors import OpsError, UsageError
from storage_node.types import TopicPartition
from workflows.model import names

COLUMNS = ("partition", "from", "to", "in sync", "copied", "of", "rate", "ETA", "held by")
SECONDS = 1.0


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
        shown = gather(admin, target)
        if json:
            output.print_json({"reassignments": [each.as_json() for each in shown.lines], "notes": shown.notes})
            return
        if not watch:
            for note in shown.notes:
                output.say(note)
            output.console().print(table(shown.lines)) if shown.lines else typer.echo("no reassignments")
            return
        _watch(admin, target, shown)


@dataclass(frozen=True, slots=True)
class Gathered:
    """What is under way, when it was looked at, and a sentence for each who did not answer."""

    lines: list[Line]
    notes: list[str]
    at: float


def gather(admin: KafkaAdmin, target: Target) -> Gathered:
    """Ask the cluster, and Temporal for the runs, where there is one."""
    under_way = admin.reassignments()
    at, notes = time.monotonic(), []
    if not under_way:
        return Gathered([], [], at)
    known = {node.node for node in admin.nodes(fenced=True)}
    alive = {node.node for node in admin.nodes()}
    described: dict[TopicPartition, dict[str, Any]] = {}
    for topic in sorted({tp.topic for tp in under_way}):
        try:
            rows = admin.describe([topic])[0]["partitions"]
        except UnknownTopic:
            continue
        described |= {TopicPartition(topic, row["partition"]): row for row in rows}
    sizes = sizes_of(admin.log_dirs(sorted(alive)))
    told: dict[TopicPartition, tuple[str, dict[str, Any]]] = {}
    if target.temporal_address:
        try:
            told = _runs(target)
        except OpsError as error:
            notes.append(str(error))
    lines = []
    for tp, one in sorted(under_way.items()):
        run_id, row = told.get(tp, ("", {}))
        same = bool(row) and tuple(row["to"]) == one.target
        lines.append(line(one, described.get(tp), sizes, known - alive, row if same else None, run_id if same else ""))
    return Gathered(lines, notes, at)


def _runs(target: Target) -> dict[TopicPartition, tuple[str, dict[str, Any]]]:
    """What the open runs say of each partition that is not over."""
    found: dict[TopicPartition, tuple[str, dict[str, Any]]] = {}
    open_runs = runs.with_temporal(
        target, lambda client: runs.open_moves(client, target.cluster, names.PARTITION_REASSIGNMENT)
    )
    for run in open_runs:
        for row in (run.progress or {}).get("partitions", []):
            if not row.get("outcome"):
                found[TopicPartition(str(row["topic"]), int(row["partition"]))] = (run.workflow_id, row)
    return found


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


def _watch(admin: KafkaAdmin, target: Target, shown: Gathered) -> None:
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
            before, shown = shown, gather(admin, target)
            lines = measured(shown.lines, before.lines, shown.at - before.at)
