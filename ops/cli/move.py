"""rehome move, moves, cancel: start moves, watch them, cancel them."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text
from temporalio.client import Client

from ops.cli import file_move, moves, output, preflight, runs
from ops.cli.log_dirs import Wish
from ops.cli.options import Bootstrap, Cluster, Data, Json, TemporalAddress
from ops.cli.target import Target, resolve
from ops.cli.waiting import wait_with_progress
from ops.stack.errors import OpsError, UsageError
from storage_node.types import TopicPartition

#: A run refuses an SLA from here on.
MAX_SECONDS = 10**9

_REPLICA = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})")


def register(app: typer.Typer) -> None:
    """Add the three commands to the root of `rehome`."""
    app.command("move")(move)
    app.command("moves")(list_moves)
    app.command("cancel")(cancel)


def move(
    replica: Annotated[
        str | None, typer.Argument(metavar="[TOPIC-PARTITION]", help="The replica, for example orders-3.")
    ] = None,
    node: Annotated[int | None, typer.Option("--node", min=0, help="The node that holds it.")] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="One of the node's log.dirs.")] = None,
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
            "moves have ended. --file requires --wait where Temporal is not used.",
        ),
    ] = None,
    sla: Annotated[
        float | None, typer.Option("--sla", metavar="SECONDS", help="The time the move may take, for the report.")
    ] = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", help="With --file: seconds to go on asking for replicas that are not there yet."),
    ] = 10.0,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until it is done; fail with the reason.")] = False,
    workflow_id: Annotated[str | None, typer.Option("--id", help="The run's workflow id (default: made up).")] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Move one replica by a run of its own, or all of a FILE as Kafka's tool does it (AlterReplicaLogDirs)."""
    if sla is not None and not 0 < sla < MAX_SECONDS:
        raise UsageError(f"--sla {sla:g} is no time that a move may take; write seconds above 0, for example 600")
    rate = output.parse_rate(throttle) if throttle else None
    target = resolve(data, bootstrap, temporal_address, cluster)
    if file is not None:
        if replica or node is not None or to is not None or workflow_id or sla is not None:
            raise UsageError(
                "--file says which replicas go where: leave out TOPIC-PARTITION, --node, --to, --id and --sla"
            )
        file_move.run(target, file, rate=rate, patience=timeout, wait=wait, as_json=json)
        return
    if replica is None or node is None or to is None:
        raise UsageError("say what to move: TOPIC-PARTITION --node N --to DIR, or --file FILE; see: rehome move --help")
    partition = parse_replica(replica)
    target.need_temporal()
    preflight.check(target, Wish(partition, node, str(to)), output.say)
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


def parse_replica(text: str) -> TopicPartition:
    """orders-3 as topic and partition. Raises `UsageError`."""
    found = _REPLICA.fullmatch(text)
    if not found or found["topic"] in (".", "..") or int(found["partition"]) > 2**31 - 1:
        raise UsageError(f"{text!r} is no TOPIC-PARTITION; write for example orders-3")
    return TopicPartition(found["topic"], int(found["partition"]))


def _move_one(target: Target, chosen: str, parameter: dict[str, Any], *, wait: bool, as_json: bool) -> None:
    """Start a run with the id chosen, and with `wait` wait for its result."""

    async def work(client: Client) -> Any:
        run_id = await runs.start_move(client, target.cluster, chosen, parameter)
        if not wait:
            return None
        output.say(f"started {chosen}")
        return await wait_with_progress(client, target, chosen, run_id, parameter)

    result = runs.with_temporal(target, work)
    rows = result.get("rows", []) if isinstance(result, dict) else []
    if as_json:
        output.print_json({"id": chosen, **parameter, "done": wait, "result": result})
    elif not wait:
        typer.echo(f"started {chosen}; watch it with: rehome moves --watch")
    else:
        for row in rows:
            there = row["outcome"] in ("swapped", "deleted", "in_place")
            typer.echo(f"{row['topic']}-{row['partition']} {'is in' if there else 'is not in'} {row['directory']}")
    failed = [row for row in rows if row.get("outcome") in ("failed", "superseded", "dropped")]
    if failed:
        row = failed[0]
        raise OpsError(f"{row['topic']}-{row['partition']} was not moved: {row.get('message') or row['outcome']}")


def list_moves(
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")] = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Show every open move: phase, bytes of total, rate, time to go, attempt."""
    target = resolve(data, bootstrap, temporal_address, cluster)
    if not watch:
        shown = moves.gather(target)
        if json:
            output.print_json(
                {"moves": [line.as_json() for line in shown.lines], "stopped": shown.stopped, "notes": shown.notes}
            )
            return
        for note in shown.notes:
            output.say(note)
        typer.echo("no moves") if not shown.lines else output.console().print(moves.table(shown))
        return
    if json:
        raise UsageError("--watch is for people; for programs call `rehome moves --json` as often as needed")
    screen = output.console()
    with (
        moves.Looking(target, again=True) as looking,
        Live(Text("reading from the nodes ..."), console=screen, refresh_per_second=4, transient=False) as live,
    ):
        shown = looking.gather()
        while True:
            live.update(
                Group(
                    moves.table(shown) if shown.lines else Text("no moves"),
                    Text("\n".join([*shown.notes, "Ctrl-C ends the display, not the moves"]), style="dim"),
                )
            )
            time.sleep(1.0)
            try:
                shown = looking.gather()
            except OpsError as error:  # such as a server that restarts; the next look may find it again
                shown = replace(shown, notes=[str(error)])


def cancel(
    workflow_id: Annotated[
        str, typer.Argument(metavar="ID", help="The run's workflow id, as `rehome moves` shows it.")
    ],
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return as soon as the request was taken.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait until the run has ended.")] = 60.0,
    data: Data = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Cancel a run; the copy is removed and the source goes on serving. Waits until that is done."""
    target = resolve(data, temporal_address=temporal_address, cluster=cluster)

    async def work(client: Client) -> str:
        return await runs.cancel(client, workflow_id, wait_seconds=None if no_wait else timeout)

    status = runs.with_temporal(target, work)
    if json:
        output.print_json({"id": workflow_id, "status": status})
    elif status == "completed":
        typer.echo(f"{workflow_id} had finished before the request came: the replica has moved")
    else:
        typer.echo(f"{workflow_id}: {status}")
