"""rehome move, moves: starts and lists moves."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text
from temporalio.client import Client

from ops.cli import output
from ops.cli.moves import file_move, open_moves, preflight, runs
from ops.cli.moves.log_dirs import RequestedMove
from ops.cli.moves.waiting import wait_with_progress
from ops.cli.options import Bootstrap, Cluster, Data, Json, TemporalAddress, check_sla
from ops.cli.plan import file_plan
from ops.cli.plan.file_plan import AsPlan
from ops.cli.plan.place import Place
from ops.cli.target import Target, resolve
from ops.stack.errors import OpsError, UsageError
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MOVED
from workflows.model.run_results import MoveRunResult

_REPLICA = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})")


def register(app: typer.Typer) -> None:
    """Add the two commands to the root of `rehome`."""
    app.command("move")(move)
    app.command("moves")(list_moves)


def move(
    replica: Annotated[
        str | None, typer.Argument(metavar="[TOPIC-PARTITION]", help="The replica, for example orders-3.")
    ] = None,
    node: Annotated[int | None, typer.Option("--node", min=0, help="The node that hosts the replica.")] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="The target: one of the node's log.dirs.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="JSON of kafka-reassign-partitions with log_dirs (KIP-113)."),
    ] = None,
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            metavar="RATE",
            help="Bytes per second, such as 20MB: of this run, or with --file of each node in the file, until these "
            "moves have ended. Without Temporal --file requires --wait.",
        ),
    ] = None,
    sla: Annotated[
        float | None, typer.Option("--sla", metavar="SECONDS", help="Maximum duration of the move, for the report.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            help="With --file, without a plan: seconds to retry replicas that do not exist yet (default: "
            f"{file_move.PATIENCE:g}).",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show progress until the move ends; fail with its reason.")
    ] = False,
    plan: AsPlan = None,
    workflow_id: Annotated[str | None, typer.Option("--id", help="The run's workflow id (default: generated).")] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Move one replica with a run, or all replicas of FILE through AlterReplicaLogDirs, as Kafka's tool does.

    It changes the directories of replicas alone, never their brokers: rehome reassign does. Where a worker serves plans
    of the cluster, and it has no controller of rehome, FILE is submitted as a plan (see rehome plan --help). A plan
    applies the lists of replicas too, so that a FILE in which they are not the cluster's, or in another order, is
    refused.
    """
    check_sla(sla)
    rate = output.parse_rate(throttle) if throttle else None
    target = resolve(data, bootstrap, temporal_address, cluster)
    if file is not None:
        if replica or node is not None or to is not None or workflow_id or sla is not None:
            raise UsageError(
                "--file cannot be combined with TOPIC-PARTITION, --node, --to, --id or --sla: "
                "FILE names the replicas and their directories"
            )
        place = Place(target, cluster)
        choice = file_plan.choose(place, file, plan)
        if choice.plan:
            if timeout is not None:
                raise UsageError(
                    "--timeout cannot be combined with a plan, which is refused if a replica does not exist; pass "
                    "--no-plan, or leave --timeout out"
                )
            options = {} if rate is None else {"throttle_between_directories": rate}
            file_plan.submit(place, file, options, directories_only=True, wait=wait, as_json=json)
        else:
            patience = file_move.PATIENCE if timeout is None else timeout
            file_move.run(target, file, rate=rate, patience=patience, wait=wait, as_json=json, note=choice.why_not)
        return
    if plan is not None:
        raise UsageError("--plan and --no-plan require --file FILE")
    if replica is None or node is None or to is None:
        raise UsageError(
            "pass the replica and its target: TOPIC-PARTITION --node N --to DIR, or --file FILE; "
            "see: rehome move --help"
        )
    partition = parse_replica(replica)
    target.refuse_apache_kafka(
        "runs move single replicas only on rehome's storage nodes; write the replica to a file and use: "
        "rehome move --file FILE"
    )
    target.need_temporal()
    preflight.check(target, RequestedMove(partition, node, str(to)), output.say)
    parameter: dict[str, Any] = {
        "topic": partition.topic,
        "partition": partition.partition,
        "node": node,
        "directory": str(to),
    }
    if rate is not None:
        parameter["throttle"] = rate
    if sla is not None:
        parameter["sla_seconds"] = sla
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    chosen = workflow_id or f"{target.cluster}/move/{node}/{partition}/cli-{stamp}-{uuid4().hex[:4]}"
    _move_one(target, chosen, parameter, wait=wait, as_json=json)


def as_replica(text: str) -> TopicPartition | None:
    """Return the topic and partition of a text such as orders-3; None for another text."""
    found = _REPLICA.fullmatch(text)
    if not found or found["topic"] in (".", "..") or int(found["partition"]) > 2**31 - 1:
        return None
    return TopicPartition(found["topic"], int(found["partition"]))


def parse_replica(text: str) -> TopicPartition:
    """Return the topic and partition of a text such as orders-3. Raises `UsageError`."""
    found = as_replica(text)
    if found is None:
        raise UsageError(f"{text!r} is not a valid TOPIC-PARTITION; write for example orders-3")
    return found


def _move_one(target: Target, chosen: str, parameter: dict[str, Any], *, wait: bool, as_json: bool) -> None:
    """Start a run with this workflow id; with `wait` wait for its result."""

    async def work(client: Client) -> MoveRunResult | None:
        run_id = await runs.start_move(client, target.cluster, chosen, parameter)
        if not wait:
            return None
        output.say(f"started {chosen}")
        return await wait_with_progress(client, target, chosen, run_id, parameter)

    result = runs.with_temporal(target, work)
    rows = [] if result is None else result.rows
    if as_json:
        found = None if result is None else asdict(result)
        output.print_json({"id": chosen, **parameter, "done": wait, "result": found})
    elif not wait:
        typer.echo(f"started {chosen}; watch it with: rehome moves --watch")
    else:
        for row in rows:
            moved = row.outcome in MOVED
            typer.echo(f"{row.topic}-{row.partition} {'is in' if moved else 'is not in'} {row.directory}")
    failed = [row for row in rows if row.outcome not in MOVED]
    if failed:
        row = failed[0]
        raise OpsError(f"{row.topic}-{row.partition} was not moved: {row.message or row.outcome}")


def list_moves(
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")] = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """List open moves with phase, copied and total bytes, rate, ETA and attempt."""
    target = resolve(data, bootstrap, temporal_address, cluster)
    if not watch:
        shown = open_moves.gather(target)
        if json:
            output.print_json(
                {"moves": [line.as_json() for line in shown.lines], "stopped": shown.stopped, "notes": shown.notes}
            )
        else:
            for note in shown.notes:
                if note not in shown.missed:
                    output.say(note)
            typer.echo("no moves") if not shown.lines else output.console().print(open_moves.table(shown))
        output.need_whole(shown.missed)
        return
    if json:
        raise UsageError("--watch cannot be combined with --json; call `rehome moves --json` repeatedly instead")
    screen = output.console()
    with (
        open_moves.MoveReader(target, again=True) as reader,
        Live(Text("reading from the nodes ..."), console=screen, refresh_per_second=4, transient=False) as live,
    ):
        shown = reader.gather()
        while True:
            live.update(
                Group(
                    open_moves.table(shown) if shown.lines else Text("no moves"),
                    Text("\n".join([*shown.notes, "Ctrl-C ends the display, not the moves"]), style="dim"),
                )
            )
            time.sleep(1.0)
            try:
                shown = reader.gather()
            except OpsError as error:  # for example while a server restarts; the next read may succeed
                shown = replace(shown, notes=[str(error)])
