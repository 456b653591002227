"""rehome dirs: log directories, of running nodes and of one that is stopped."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ops.cli import nodes, output
from ops.cli.kafka_admin import NodeAddress
from ops.cli.options import Bootstrap, Data, Json
from ops.cli.target import data_folder, resolve
from ops.stack import state
from ops.stack.errors import OpsError, UsageError
from storage_node import forgetting
from storage_node.config import ConfigError, NodeConfig
from storage_node.directories.errors import StartRefused
from storage_node.types import TopicPartition

app = typer.Typer(help="Show log directories and what is offline in them; forget lost ones.", no_args_is_help=True)

Node = Annotated[int, typer.Argument(metavar="NODE", min=0, help="The node's id.")]
DirectoryIds = Annotated[
    list[str],
    typer.Argument(metavar="ID", help="The directory id, as the node's refusal to start, or meta.properties, has it."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="The node's server.properties (else that of the stack's node).", dir_okay=False),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

_SHOWN = 5  # replicas that are named


@app.command("list")
def list_dirs(
    node: Annotated[int | None, typer.Option("--node", min=0, help="One node's directories only.")] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """List the log directories of running nodes: which are offline, which replicas are offline in good ones, why.

    A node that does not respond is listed with the reason.
    """
    target = resolve(data, bootstrap)
    where = [nodes.address(target, node)] if node is not None else nodes.addresses(target)
    found = [_look(each) for each in where]
    columns = ("node", "directory", "state", "offline replicas", "reason")
    output.show(found, json, columns, (line for each in found for line in _lines(each)), "there are no nodes")
    for each in found if not json else ():
        good = [one for one in each["directories"] if one["online"]]
        for row in [row for one in good for row in one["offline_replicas"]] + each["offline_replicas"]:
            typer.echo(nodes.failure_line({**row, "node": each["node"]}))


def _look(where: NodeAddress) -> dict[str, Any]:
    """A node's directories, each with the replicas that are offline in it; `error` where it does not respond."""
    try:
        status = nodes.call(where, "status")
    except OpsError as error:
        return {"node": where.node, "error": str(error), "directories": [], "offline_replicas": []}
    directories = [{**each, "offline_replicas": []} for each in status["directories"]]
    by_path = {each["path"]: each for each in directories}
    elsewhere: list[dict[str, Any]] = []
    for row in status["offline_replicas"]:
        held = by_path.get(row["directory"])
        (held["offline_replicas"] if held is not None else elsewhere).append(row)
    return {"node": where.node, "error": "", "directories": directories, "offline_replicas": elsewhere}


def _lines(found: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    if found["error"]:
        yield found["node"], "-", "unknown", "-", found["error"]
    for directory in found["directories"]:
        state = "online" if directory["online"] else "offline"
        count = len(directory["offline_replicas"])
        yield found["node"], directory["path"], state, count, directory["failure"] or "-"


@app.command()
def forget(
    node: Node,
    directory_ids: DirectoryIds,
    config: Config = None,
    data: Data = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Say that disks are gone for good: their ids leave directory.ids in every meta.properties of the node.

    The node must be stopped. What only these disks held is lost, and they must never come back; a new disk in the place
    of one is formatted. Replicas of which other nodes are in sync are copied again from there.
    """
    settings = _settings(node, config, data)
    beside = settings.metadata_beside
    try:
        lost = [forgetting.look(settings.log_dirs, node, each, beside) for each in dict.fromkeys(directory_ids)]
        _confirm(node, lost, yes)
        done = forgetting.forget(settings.log_dirs, settings.cluster_id or None, node, directory_ids, beside)
    except StartRefused as error:
        raise OpsError(f"nothing is forgotten: {error}") from error
    if json:
        output.print_json({"node": node, "forgotten": [_row(each) for each in lost], "formatted": list(done.formatted)})
        return
    typer.echo(f"node {node} has forgotten {', '.join(each.directory_id for each in lost)}")
    for path in done.formatted:
        typer.echo(f"{path} is formatted")


def _row(lost: forgetting.Lost) -> dict[str, Any]:
    replicas = [str(tp) for tp in lost.replicas] if lost.known else None
    alone = [str(tp) for tp in lost.alone] if lost.known else None
    return {
        "directory_id": lost.directory_id,
        "path": lost.path or None,
        "lost_replicas": replicas,
        "only_replicas": alone,
    }


def _settings(node: int, config: Path | None, data: Path | None) -> NodeConfig:
    if config is None:
        folder = data_folder(data)
        current = state.load(folder)
        if current is None:
            raise OpsError(f"there is no stack in {folder}; give --data DIR of a stack, or --config of the node")
        if node not in current.spec.node_ids:
            raise OpsError(f"there is no node {node} in the stack of {folder}")
        config = current.spec.node_home(node) / "server.properties"
    try:
        settings = NodeConfig.load(config)
    except ConfigError as error:
        raise OpsError(str(error)) from error
    if settings.node_id != node:
        raise UsageError(f"{config} is that of node {settings.node_id}, not of node {node}")
    return settings


def _confirm(node: int, lost: Sequence[forgetting.Lost], yes: bool) -> None:
    """Say what is lost, and ask; without a terminal only --yes is an answer."""
    for each in lost:
        output.say(_consequence(each))
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"say --yes to let node {node} forget {', '.join(each.directory_id for each in lost)}")
    if not typer.confirm("What is forgotten must never come back. Forget it?", default=False, err=True):
        raise OpsError("nothing was changed")


def _consequence(lost: forgetting.Lost) -> str:
    what = lost.path or lost.directory_id
    if not lost.known:
        return f"what only {what} held is lost; no cluster image tells what that is"
    if not lost.replicas:
        return f"the metadata has no replica in {what}"
    all_of_them = f"the metadata has {len(lost.replicas)} replicas in {what}, which are lost with it: "
    if not lost.alone:
        end = "; all are copied again from other nodes when the node starts"
    elif len(lost.alone) < len(lost.replicas):
        end = f"; of {len(lost.alone)} no other node is in sync, so what they held is gone: {_named(lost.alone)}"
    else:
        end = "; of none another node is in sync, so what they held is gone"
    return all_of_them + _named(lost.replicas) + end


def _named(tps: Sequence[TopicPartition]) -> str:
    return ", ".join(map(str, tps[:_SHOWN])) + (", ..." if len(tps) > _SHOWN else "")
