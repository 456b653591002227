"""rehome node: shows the state of one node and sends commands to it, without Temporal."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ops.cli import nodes, output
from ops.cli.kafka_admin import NodeAddress
from ops.cli.options import Bootstrap, Data, Json, group
from ops.cli.target import resolve
from ops.stack import clients
from ops.stack.errors import OpsError

app = group("Show the state of one node, or send a command to it, without Temporal.")

Node = Annotated[int, typer.Argument(metavar="NODE", min=0, help="The node's id.")]


@app.command("status")
def status(node: Node, data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Show a node's metadata version, directories, replicas, moves, and connection to Temporal."""
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
    for row in found.get("missing", ()):
        typer.echo(nodes.missing_line(node, row))
    typer.echo(
        f"{found['replicas']} replicas, {found['led']} led, {len(found['offline'])} offline; "
        f"{found['moves']} moves{', stopped' if found['moves_stopped'] else ''}"
    )


def _client(where: NodeAddress) -> clients.State:
    """Return the state of the node's connection to Temporal; unknown if the node does not report it."""
    try:
        return clients.from_response(nodes.call(where, "controller-client"))
    except OpsError as error:
        return clients.unknown(str(error))


@app.command("stop-moves")
def stop_moves(node: Node, data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Stop all copying between the node's disks; the stop persists across restarts."""
    nodes.call(nodes.address(resolve(data, bootstrap), node), "stop-moves")
    if json:
        output.print_json({"node": node, "moves": "stopped"})
    else:
        typer.echo(f"node {node} has stopped its moves; resume them with: rehome node resume-moves {node}")


@app.command("resume-moves")
def resume_moves(node: Node, data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Resume copying between the node's disks."""
    nodes.call(nodes.address(resolve(data, bootstrap), node), "resume-moves")
    if json:
        output.print_json({"node": node, "moves": "running"})
    else:
        typer.echo(f"node {node} has resumed its moves")


@app.command("connections")
def connections(node: Node, data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """List the connections to the node with their age, idle time and requests in progress, and the limits."""
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
        under_way += ", waits for memory"
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
    """Return one line about all connections."""
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
        f"{found['waiting_for_room']} connections wait for memory; unsent responses hold {unsent}"
    )
