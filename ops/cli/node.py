"""rehome node: reads the state of one node and sends commands to it, with or without Temporal."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ops.cli import nodes, output
from ops.cli.kafka_admin import NodeAddress
from ops.cli.options import Bootstrap, Data, Json
from ops.cli.target import resolve
from ops.stack import clients
from ops.stack.errors import OpsError

app = typer.Typer(help="Show the state of one node, or send a command to it, without Temporal.", no_args_is_help=True)

Node = Annotated[int, typer.Argument(metavar="NODE", min=0, help="The node's id.")]


@app.command("status")
def status(node: Node, data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Show one node: its metadata's version, directories, replicas, moves, and its connection to Temporal."""
    where = nodes.address(resolve(data, bootstrap), node)
    found = nodes.call(where, "status")
    client = _client(where)
    if json:
        output.print_json({**found, "temporal_client": client})
        return
    typer.echo(f"node {node} at {where}, metadata {found['generation']}.{found['version']}")
    typer.echo(f"temporal client: {clients.short(client)}")
    for line in clients.lines(f"node {node}", client):
        typer.echo(line)
    for row in found["directories"]:
        typer.echo(f"{row['path']}: {'online' if row['online'] else 'offline: ' + row['failure']}")
    typer.echo(
        f"{found['replicas']} replicas, {found['led']} led, {len(found['offline'])} offline; "
        f"{found['moves']} moves{', stopped' if found['moves_stopped'] else ''}"
    )


def _client(where: NodeAddress) -> clients.State:
    """How the node reaches Temporal; unknown if it does not report it, such as a node of an older version."""
    try:
        return clients.of_answer(nodes.call(where, "controller-client"))
    except OpsError as error:
        return clients.unknown(str(error))


@app.command("stop-moves")
def stop_moves(node: Node, data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Stop all copying between the node's disks at once; it remembers this over a restart."""
    nodes.call(nodes.address(resolve(data, bootstrap), node), "stop-moves")
    if json:
        output.print_json({"node": node, "moves": "stopped"})
    else:
        typer.echo(f"node {node} has stopped its moves; let it go on with: rehome node resume-moves {node}")


@app.command("resume-moves")
def resume_moves(node: Node, data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Let the node copy again."""
    nodes.call(nodes.address(resolve(data, bootstrap), node), "resume-moves")
    if json:
        output.print_json({"node": node, "moves": "running"})
    else:
        typer.echo(f"node {node} goes on with its moves")


@app.command("connections")
def connections(node: Node, data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Who is connected to the node: how long, how idle, what is under way, and what the limits are."""
    found = nodes.call(nodes.address(resolve(data, bootstrap), node), "connections")
    if json:
        output.print_json({"node": node, **found})
        return
    output.show(found, False, COLUMNS, (_row(row) for row in found["connections"]), "no connections")
    typer.echo(_summary(found))


COLUMNS = ("peer", "client id", "software", "age", "idle", "requests", "in", "out", "under way")


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    under_way = f"{row['under_way']} for {output.duration(row['under_way_seconds'])}" if row["under_way"] else "-"
    if row["queued"]:
        under_way += f", {row['queued']} more"
    if row["waits_for_room"]:
        under_way += ", waits for room"
    names = (row["client_id"] or "-", row["software"] or "-")
    times = (output.duration(row["age"]), output.duration(row["idle"]))
    return (
        row["peer"],
        *names,
        *times,
        row["requests"],
        *map(output.size, (row["bytes_in"], row["bytes_out"])),
        under_way,
    )


def _summary(found: dict[str, Any]) -> str:
    """One line about all of them."""
    limits = found["limits"]
    idle, most = limits["connections.max.idle.ms"], limits["queued.max.request.bytes"]
    room = f"of {output.size(most)}" if most >= 0 else "without a limit"
    held, highest, unsent = (
        output.size(found[name]) for name in ("request_bytes", "request_bytes_highest", "unsent_bytes")
    )
    after = output.duration(idle / 1000) if idle >= 0 else "being"
    return (
        f"{found['open']} of {limits['max.connections']} connections, {found['refused']} refused, "
        f"{found['closed_idle']} closed after {after} idle; requests hold {held} {room} (at most {highest} so far), "
        f"{found['waiting_for_room']} connections wait for room; answers that were not taken hold {unsent}"
    )
