"""rehome replicas: replicas that are offline although their log directory is online."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli import nodes, output, waits
from ops.cli.moves.move import parse_replica
from ops.cli.options import Bootstrap, Data, Json, group
from ops.cli.target import resolve
from ops.stack.errors import OpsError

app = group("List replicas that are offline in online log directories, and bring them online after a repair.")

Node = Annotated[int, typer.Argument(metavar="NODE", min=0, help="The node's id.")]
Replicas = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC-PARTITION", help="The replicas, for example orders-3.", show_default=False),
]

#: Seconds for opening one replica, which scans its log.
OPENING = 120.0


@app.command()
def online(node: Node, replicas: Replicas, data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Bring replicas online again after their file or folder was repaired, without a restart of the node.

    The node checks and opens each replica as at a start; the replica then follows the leader and rejoins the ISR, and
    a sole replica leads. A move of the replica ends. Exit code 1 if a replica stays offline. To bring back a replica
    in an offline log directory, repair the disk and run: rehome dirs online NODE DIR
    """
    wanted = [parse_replica(text) for text in dict.fromkeys(replicas)]
    where = nodes.address(resolve(data, bootstrap), node)
    partitions = [[tp.topic, tp.partition] for tp in wanted]
    with waits.lines(f"node {node} is opening {len(wanted)} replica{'s' if len(wanted) != 1 else ''}"):
        found = nodes.call(where, "replicas-online", OPENING * len(wanted), partitions=partitions)["replicas"]
    if json:
        output.print_json({"node": node, "replicas": found})
    else:
        for row in found:
            if row["outcome"] != "offline":
                state = "is already online" if row["outcome"] == "online" else "is online again"
                typer.echo(f"{row['topic']}-{row['partition']} {state} on node {node}")
    bad = [row for row in found if row["outcome"] == "offline"]
    if bad:
        raise OpsError("; ".join(row["message"] for row in bad))


@app.command()
def offline(data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """List replicas that nodes report as offline in online log directories, with the failed file and the reason.

    Replicas in an offline log directory, or on a node that is down, are not listed.
    """
    rows = nodes.offline_replicas(resolve(data, bootstrap))
    if json:
        output.print_json(rows)
        return
    for line in map(nodes.failure_line, rows):
        typer.echo(line)
    if not rows:
        typer.echo("no offline replicas in online log directories")
