"""rehome stack: Temporal, and storage nodes with a controller or Apache Kafka's brokers, on this machine."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from ops.cli import output
from ops.cli.options import Data, Json, group
from ops.cli.target import data_folder
from ops.kafka.jars import VERSION
from ops.stack import clients, foreground, state
from ops.stack.interrupts import interruptible, uninterrupted
from ops.stack.layout import StackKind
from ops.stack.stack import Stack

app = group("Run a cluster on this machine: Temporal, and storage nodes with a controller or Apache Kafka.")

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="temporal, controller, node-1, node-2, ...; with Apache Kafka broker-1, ..., orchestrator.",
    ),
]


@app.command()
def up(
    data: Data = None,
    kafka: Annotated[
        bool,
        typer.Option(
            "--kafka", help=f"Run Apache Kafka {VERSION} instead of storage nodes; its jars are downloaded with Maven."
        ),
    ] = False,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Number of nodes or brokers (default 3).")] = None,
    dirs: Annotated[
        int | None, typer.Option("--dirs", help="Log directories per node (default 3, with --kafka 2).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            help="Port of node 1; node i listens on port + i - 1 (default 9092). The controllers of Apache Kafka's "
            "brokers listen on the ports after these.",
        ),
    ] = None,
    temporal_port: Annotated[
        int | None,
        typer.Option("--temporal-port", help="Temporal's port; its UI listens on port + 1000 (default 7233)."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when all processes are ready, and leave them running.")
    ] = False,
    json: Json = False,
) -> None:
    """Start all processes that do not run yet and wait until they are ready; Ctrl-C stops the stack in order."""
    stack = Stack(data_folder(data), output.say)
    stack.make_folder()
    with interruptible(), state.owning(stack.data):
        try:
            kind = StackKind.APACHE_KAFKA if kafka else None
            settings = {"kind": kind, "nodes": nodes, "dirs": dirs, "port": port, "temporal_port": temporal_port}
            stack.prepare(settings)
            started = stack.up()
            _announce(stack, started, json, detach)
            if not detach:
                foreground.watch(stack, output.say)
        except KeyboardInterrupt:
            if not detach:
                with uninterrupted():
                    stack.down()
            raise


@app.command()
def down(data: Data = None, json: Json = False) -> None:
    """Stop the nodes or brokers, the controller and Temporal. All data on disk is kept; stopping twice is harmless."""
    stack = Stack(data_folder(data), output.say)
    with uninterrupted():
        stopped = stack.down()
    if json:
        output.print_json({"data": str(stack.data), "stopped": stopped})
    elif not stopped:
        typer.echo(f"no process is running in {stack.data}")
    else:
        typer.echo(f"stopped: {', '.join(stopped)}")


@app.command()
def status(data: Data = None, json: Json = False) -> None:
    """Show each process with its pid, addresses, directories and connection to Temporal; with --json also the command
    line that restarts it.
    """
    rows = Stack(data_folder(data)).status()
    output.show(
        rows,
        json,
        ("name", "state", "pid", "temporal client", "address", "directories"),
        (
            [
                row["name"],
                _state(row),
                row["pid"] or "-",
                clients.short(row["temporal_client"]),
                _address(row),
                _directories(row),
            ]
            for row in rows
        ),
        "no processes",
    )
    if not json:
        for row in rows:
            for line in clients.lines(row["name"], row["temporal_client"]):
                typer.echo(line)


@app.command()
def start(name: Name, data: Data = None, json: Json = False) -> None:
    """Start one process and wait until it is ready."""
    _one(Stack(data_folder(data), output.say), name, "start", json)


@app.command()
def stop(name: Name, data: Data = None, json: Json = False) -> None:
    """Stop one process in order."""
    _one(Stack(data_folder(data), output.say), name, "stop", json)


@app.command()
def kill(name: Name, data: Data = None, json: Json = False) -> None:
    """Kill one process with SIGKILL, like a crash."""
    _one(Stack(data_folder(data), output.say), name, "kill", json)


def _one(stack: Stack, name: str, action: str, as_json: bool) -> None:
    done: bool = getattr(stack, action)(name)
    if as_json:
        output.print_json({"name": name, "action": action, "changed": done})
        return
    past = {"start": "started", "stop": "stopped", "kill": "killed"}[action]
    unchanged = "is already running" if action == "start" else "is not running"
    typer.echo(f"{name} {past if done else unchanged}")


def _announce(stack: Stack, started: list[str], as_json: bool, detached: bool) -> None:
    spec = stack.spec()
    if as_json:
        value: dict[str, Any] = {
            "data": str(stack.data),
            "started": started,
            "bootstrap": spec.bootstrap,
            "temporal": spec.temporal_address,
            "ui": spec.ui_url,
            "cluster": spec.cluster,
            "kind": spec.kind,
            "processes": stack.status(),
        }
        output.print_json(value)
        return
    typer.echo(f"the stack in {stack.data} is up{'' if started else ' (all processes were already running)'}")
    typer.echo(f"  Kafka        {spec.bootstrap}{f' (Apache Kafka {VERSION})' if spec.apache_kafka else ''}")
    typer.echo(f"  Temporal     {spec.temporal_address}")
    typer.echo(f"  Temporal UI  {spec.ui_url}")
    if detached:
        typer.echo(f"stop it with: rehome stack down --data {shlex.quote(str(stack.data))}")
    else:
        typer.echo("Ctrl-C stops it")


def _state(row: dict[str, Any]) -> str:
    return "ready" if row["ready"] else ("starting" if row["running"] else "stopped")


def _address(row: dict[str, Any]) -> str:
    return ", ".join(row["addresses"].values()) or "-"


def _directories(row: dict[str, Any]) -> str:
    return ", ".join(row["directories"]) or "-"
