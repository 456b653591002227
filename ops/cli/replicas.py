"""rehome replicas: replicas that are offline although their log directory is online."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli import nodes, output
from ops.cli.move import parse_replica
from ops.cli.options import Bootstrap, Data, Json
from ops.cli.target import resolve
from ops.stack.errors import OpsError

app = typer.Typer(
    help="Show replicas that are offline alone, and open them again after a repair.", no_args_is_help=True
)

Node = Annotated[int, typer.Argument(metavar="NODE", min=0, help="The node's id.")]
Replicas = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC-PARTITION", help="The replicas, for example orders-3.", show_default=False),
]

#: Seconds for opening one replica: its log is scanned.
OPENING = 120.0


@app.command()
def online(node: Node, replicas: Replicas, data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Let a node open replicas again whose file or folder was repaired; the node goes on running.

    Each is checked and opened as at a start, follows the leader and joins the ISR again; a sole replica leads. A move
    of it that is under way ends. Exit code 1 when one of them stays offline. A replica in a log directory that is
    offline comes back when the disk is repaired and the node is started again.
    """
    wanted = [parse_replica(text) for text in dict.fromkeys(replicas)]
    where = nodes.address(resolve(data, bootstrap), node)
    partitions = [[tp.topic, tp.partition] for tp in wanted]
    found = nodes.call(where, "replicas-online", OPENING * len(wanted), partitions=partitions)["replicas"]
    if json:
        output.print_json({"node": node, "replicas": found})
    else:
        for row in found:
            if row["outcome"] != "offline":
                word = "is online already" if row["outcome"] == "online" else "is online again"
                typer.echo(f"{row['topic']}-{row['partition']} {word} on node {node}")
    bad = [row for row in found if row["outcome"] == "offline"]
    if bad:
        raise OpsError("; ".join(row["message"] for row in bad))


@app.command()
def offline(data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """List replicas that their nodes report as offline in log directories that are online: which file failed, and why.

    Replicas of a failed log directory, and of a node that is down, are not among them.
    """
    rows = nodes.offline_replicas(resolve(data, bootstrap))
    if json:
        output.print_json(rows)
        return
    for line in map(nodes.failure_line, rows):
        typer.echo(line)
    if not rows:
        typer.echo("no replica is offline alone")
