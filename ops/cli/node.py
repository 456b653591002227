"""rehome node: what one node is told directly, with or without Temporal."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli import nodes, output
from ops.cli.options import Bootstrap, Data, Json
from ops.cli.target import resolve

app = typer.Typer(help="Tell one node something, without Temporal.", no_args_is_help=True)

Node = Annotated[int, typer.Argument(metavar="NODE", min=0, help="The node's id.")]


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
