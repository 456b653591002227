"""rehome dirs: the log directories of running nodes, and of a stopped node."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ops.cli import dirs_history, nodes, output, waits
from ops.cli.kafka_admin import KafkaAdmin, LogDirectoryView, NodeAddress
from ops.cli.moves.move import parse_replica
from ops.cli.options import Bootstrap, Data, Json, group
from ops.cli.target import Target, data_folder, resolve
from ops.stack import state
from ops.stack.errors import ExitCode, OpsError, UsageError
from storage_node.config.log_dirs_file import line_of, set_log_dirs
from storage_node.config.node_config import ConfigError, NodeConfig
from storage_node.directories.errors import StartRefused
from storage_node.lifecycle import forgetting
from storage_node.model.ids import TopicPartition

app = group("List log directories and their offline replicas; bring repaired disks back; forget lost ones.")

Node = Annotated[int, typer.Argument(metavar="NODE", min=0, help="The node's id.")]
DirectoryIds = Annotated[
    list[str],
    typer.Argument(metavar="ID", help="The directory id, from meta.properties or from the node's start-up error."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="The node's server.properties (default: that of the stack's node).", dir_okay=False),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

#: Seconds for one response of a broker of Apache Kafka.
BROKER_SECONDS = 5.0

#: A message names so many replicas at most.
_SHOWN = 5


@app.command("list")
def list_dirs(
    node: Annotated[int | None, typer.Option("--node", min=0, help="One node's directories only.")] = None,
    log_dirs: Annotated[str, typer.Option("--log-dirs", metavar="DIR,...", help="These log directories only.")] = "",
    topics: Annotated[str, typer.Option("--topics", metavar="TOPIC,...", help="Replicas of these topics only.")] = "",
    data: Data = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """List the log directories of running nodes, why some are offline, and offline replicas in online directories.

    A sign behind "online" warns before a disk fails: errors (passed when they were repeated), slow (against its own
    past), read-only, smart (its own health report, where smartctl may read it). "missing" is a directory whose id the
    others list, and that is not in log.dirs, or has another id.

    A node that does not respond is listed with the reason. --json prints the document of KIP-113's kafka-log-dirs
    instead: every replica with its size in bytes, its lag in records, and whether it is the copy of a move. With
    several nodes each has one under "brokers", as Kafka's tool prints it.
    """
    target = resolve(data, bootstrap)
    wanted = [str(Path(path)) for path in _names(log_dirs)]
    names = frozenset(_names(topics))
    if json:
        document = _document(target, node, wanted, names)
        output.print_json(document)
        output.need_whole([each["error"] for each in document.get("brokers", ()) if each.get("error")])
        return
    if target.apache_kafka:
        found = _of_brokers(target, node)
    else:
        where = [nodes.address(target, node)] if node is not None else nodes.addresses(target)
        found = [_read(each) for each in where]
    _check_known(wanted, [one["path"] for each in found for one in each["directories"]])
    for each in found if wanted else ():
        each["directories"] = [one for one in each["directories"] if one["path"] in wanted]
    columns = ("node", "directory", "state", "offline replicas", "verdict", "reason")
    output.show(found, json, columns, (line for each in found for line in _lines(each)), "no nodes")
    for each in found:
        good = [one for one in each["directories"] if one["online"]]
        elsewhere = each["offline_replicas"] if not wanted else []
        for one in good:
            for sign in (one.get("signs") or {}).values():
                typer.echo(f"{one['path']} of node {each['node']} may fail soon: {sign}")
        for row in each["missing"] if not wanted else ():
            typer.echo(nodes.missing_line(each["node"], row))
        for row in [row for one in good for row in one["offline_replicas"]] + elsewhere:
            if not names or row["topic"] in names:
                typer.echo(nodes.failure_line({**row, "node": each["node"]}))
    output.need_whole([each["error"] for each in found if each["error"]])


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _check_known(wanted: Sequence[str], known: Sequence[str]) -> None:
    if missing := [path for path in wanted if path not in known]:
        raise OpsError(f"no log directory {missing[0]!r}; the log directories are {', '.join(dict.fromkeys(known))}")


def _document(target: Target, node: int | None, wanted: Sequence[str], topics: frozenset[str]) -> dict[str, Any]:
    """Return KIP-113's document of one node, or of several; a node that does not respond has an "error" too."""
    brokers: list[dict[str, Any]] = []
    known: list[str] = []
    with KafkaAdmin(target.need_kafka(), timeout=BROKER_SECONDS) as admin:
        if target.apache_kafka:
            every = [each.node for each in admin.nodes(fenced=True)]
        else:
            every = [each.node for each in nodes.addresses(target)]
        if node is not None and node not in every:
            raise OpsError(f"node {node} does not exist in this cluster; its nodes are {', '.join(map(str, every))}")
        for each in every if node is None else [node]:
            try:
                views = admin.log_dirs([each])
            except OpsError as error:
                if node is not None:
                    raise
                brokers.append({"broker": each, "log_dirs": [], "error": str(error)})
                continue
            known += [view.path for view in views]
            shown = [view for view in views if not wanted or view.path in wanted]
            brokers.append({"broker": each, "log_dirs": [_log_dir(view, topics) for view in shown]})
    _check_known(wanted, known)
    if node is not None:
        return {"version": 1, "log_dirs": brokers[0]["log_dirs"]}
    return {"version": 1, "brokers": brokers}


def _log_dir(view: LogDirectoryView, topics: frozenset[str]) -> dict[str, Any]:
    return {
        "is_live": not view.error,
        "path": view.path,
        "partitions": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "size": each.size,
                "offset_lag": each.offset_lag,
                "is_temporary": each.future,
            }
            for each in view.replicas
            if not topics or each.partition.topic in topics
        ],
    }


def _read(where: NodeAddress) -> dict[str, Any]:
    """Return a node's directories with their offline replicas; `error` if the node does not respond."""
    try:
        status = nodes.call(where, "status")
    except OpsError as error:
        return {"node": where.node, "error": str(error), "directories": [], "missing": [], "offline_replicas": []}
    directories = [{**each, "offline_replicas": []} for each in status["directories"]]
    by_path = {each["path"]: each for each in directories}
    elsewhere: list[dict[str, Any]] = []
    for row in status["offline_replicas"]:
        held = by_path.get(row["directory"])
        (held["offline_replicas"] if held is not None else elsewhere).append(row)
    return {
        "node": where.node,
        "error": "",
        "directories": directories,
        "missing": status.get("missing", []),
        "offline_replicas": elsewhere,
    }


def _of_brokers(target: Target, node: int | None) -> list[dict[str, Any]]:
    """Return the same of Apache Kafka's brokers, where a replica is offline only with its log directory."""
    found: list[dict[str, Any]] = []
    with KafkaAdmin(target.need_kafka(), timeout=BROKER_SECONDS) as admin:
        known = {each.node: each for each in admin.nodes(fenced=True)}
        if node is not None and node not in known:
            names = ", ".join(map(str, known))
            raise OpsError(f"broker {node} does not exist in this cluster; its brokers are {names}")
        for each in known if node is None else (node,):
            row: dict[str, Any] = {"node": each, "error": "", "directories": [], "missing": [], "offline_replicas": []}
            try:
                row["directories"] = [
                    {"path": view.path, "online": not view.error, "failure": view.error, "offline_replicas": []}
                    for view in admin.log_dirs([each])
                ]
            except OpsError as error:
                row["error"] = str(error)
            found.append(row)
    return found


def _lines(found: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    if found["error"]:
        yield found["node"], "-", "unknown", "-", "-", found["error"]
    for directory in found["directories"]:
        state = ", ".join(["online", *directory.get("signs", ())]) if directory["online"] else "offline"
        count = len(directory["offline_replicas"])
        verdict = (directory.get("evidence") or {}).get("verdict", "-")
        yield found["node"], directory["path"], state, count, verdict, directory["failure"] or "-"
    for row in found["missing"]:
        yield found["node"], row["path"] or "-", "missing", "-", "-", f"no log directory has its id {row['id']}"


dirs_history.register(app)


@app.command()
def forget(
    node: Node,
    directory_ids: DirectoryIds,
    config: Config = None,
    data: Data = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Forget permanently lost disks: remove their ids from directory.ids in every meta.properties of the node.

    The node must be stopped. Records that only these disks held are lost, and the disks must never come back; a new
    disk in the place of a lost one is formatted. Replicas with another in-sync replica are copied again from there.
    """
    settings = _settings(node, config, data)
    beside = settings.metadata_beside
    try:
        lost = [forgetting.look(settings.log_dirs, node, each, beside) for each in dict.fromkeys(directory_ids)]
        _confirm(node, lost, yes)
        done = forgetting.forget(settings.log_dirs, settings.cluster_id or None, node, directory_ids, beside)
    except StartRefused as error:
        raise OpsError(f"no directory was forgotten: {error}") from error
    if json:
        output.print_json({"node": node, "forgotten": [_row(each) for each in lost], "formatted": list(done.formatted)})
        return
    typer.echo(f"node {node} has forgotten {', '.join(each.directory_id for each in lost)}")
    for path in done.formatted:
        typer.echo(f"formatted {path}")


Path_ = Annotated[str, typer.Argument(metavar="DIR", help="The path of the log directory, as in log.dirs.")]

#: Seconds for opening a log directory, whose logs are scanned.
OPENING = 600.0


@app.command()
def online(node: Node, directory: Path_, data: Data = None, bootstrap: Bootstrap = None, json: Json = False) -> None:
    """Take a log directory back after its disk was repaired, without a restart of the node.

    The node checks, locks and opens it as at a start; its replicas follow their leaders and rejoin the ISR, and sole
    replicas lead. Does nothing where the directory is online. Exit code 6, with the reason, while the disk is bad.
    """
    where = nodes.address(resolve(data, bootstrap), node)
    _changed(node, _change(where, "online", directory), json)


@app.command()
def replace(
    node: Node,
    directory: Path_,
    config: Config = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Use a new or wiped disk at the path of an offline log directory, without a restart of the node.

    The node formats it, and forgets the former disk, which must never come back. Records that only that disk held are
    lost; replicas with another in-sync replica are copied again from there. It lists them and asks for confirmation.
    On a stopped node the command itself does this, with the server.properties of the stack's node, or --config.
    """
    target = resolve(data, bootstrap)
    try:
        where = nodes.address(target, node)
        found = nodes.call(where, "directory-losses", path=directory)
    except OpsError as error:
        stopped = isinstance(error, nodes.Unreachable) and error.reach is nodes.Reach.REFUSED
        if config is not None and error.exit_code is not ExitCode.REFUSED:
            return _replace_stopped(node, directory, config, data, yes, json)
        if stopped and target.storage_nodes:
            return _replace_stopped(node, directory, _stack_file(node, data), data, yes, json)
        if stopped:
            raise OpsError(
                f"node {node} does not respond; if it is stopped, run on its machine: rehome dirs replace {node} "
                f"{shlex.quote(directory)} --config FILE"
            ) from error
        raise
    held, alone = (tuple(map(parse_replica, found[name])) for name in ("replicas", "alone"))
    if not found["online"]:
        _confirm(node, [forgetting.Lost(found["id"], found["path"], held, known=True, alone=alone)], yes, "replace")
    _changed(node, _change(where, "replace", directory), json)


def _replace_stopped(node: int, directory: str, config: Path, data: Path | None, yes: bool, json: bool) -> None:
    """Replace a disk of a stopped node, as `forget` does; the lock of a directory refuses a running one."""
    settings = _settings(node, config, data)
    beside = settings.metadata_beside
    try:
        lost = forgetting.look_at(settings.log_dirs, node, directory, beside)
        _confirm(node, [lost], yes, "replace")
        done = forgetting.forget(settings.log_dirs, settings.cluster_id or None, node, [lost.directory_id], beside)
    except StartRefused as error:
        raise OpsError(f"{directory} of node {node} was not replaced: {error}") from error
    found = {
        "path": lost.path,
        "id": dict(done.ids)[lost.path],
        "outcome": "replaced",
        "replicas": 0,
        "left": {},
        "log_dirs": list(settings.log_dirs),
    }
    _changed(node, found, json)


@app.command()
def add(
    node: Node,
    directory: Path_,
    config: Config = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Use another log directory, without a restart of the node; it is created or formatted if it needs to be.

    Then log.dirs in the node's server.properties is rewritten: of the stack's node, or --config; else it is printed.
    """
    where = nodes.address(resolve(data, bootstrap), node)
    _changed(node, _change(where, "add", directory), json, _properties(node, config, data))


@app.command()
def remove(
    node: Node,
    directory: Path_,
    config: Config = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Stop using an empty log directory, without a restart of the node; its files are left.

    Move its replicas elsewhere first; cordoned.log.dirs keeps new ones out. Then log.dirs in the node's
    server.properties is rewritten: of the stack's node, or --config; else it is printed.
    """
    where = nodes.address(resolve(data, bootstrap), node)
    file = _properties(node, config, data)
    _changed(node, _change(where, "remove", directory), json, file)


def _change(where: NodeAddress, op: str, directory: str) -> dict[str, Any]:
    """Request a change of a directory; the node responds when it has opened it."""
    with waits.lines(f"waiting for node {where.node}: rehome dirs {op} {where.node} {shlex.quote(directory)}"):
        return nodes.call(where, f"directory-{op}", OPENING, path=directory)


def _properties(node: int, config: Path | None, data: Path | None) -> Path | None:
    """Return the server.properties of a node, None where it is not known."""
    if config is None and data is None and state.load(data_folder(None)) is None:
        return None
    _settings(node, config, data)
    return config or _stack_file(node, data)


_OUTCOMES = {
    "online": "is already online",
    "reopened": "is online again",
    "replaced": "has a new disk",
    "added": "is a log directory now",
    "removed": "is no log directory any more",
}


def _changed(node: int, found: dict[str, Any], json: bool, file: Path | None = None) -> None:
    """Print what became of a directory, with the folders that are left to the next start.

    After a change of log.dirs (`added`, `removed`, or `online` when it was added before) the file gets it.
    """
    log_dirs = ",".join(found["log_dirs"])
    written = file is not None and found["outcome"] not in ("reopened", "replaced")
    if written and file is not None:
        set_log_dirs(file, log_dirs)
    if json:
        output.print_json({"node": node, **found, "config": str(file) if written else None})
        return
    typer.echo(f"{found['path']} {_OUTCOMES[found['outcome']]} on node {node}, with {found['replicas']} replicas")
    for name, why in found["left"].items():
        typer.echo(f"{name} in it is left to the next start: {why}")
    if written:
        typer.echo(f"{file} has {line_of(log_dirs)}")
    elif found["outcome"] in ("added", "removed"):
        typer.echo(f"write {line_of(log_dirs)} into the node's server.properties: the next start reads it from there")


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
            raise OpsError(f"there is no stack in {folder}; pass --data DIR of a stack, or --config FILE of the node")
        if current.spec.apache_kafka:
            raise OpsError(
                "this cluster is Apache Kafka: it does not record the ids of a broker's other log directories, so that "
                "there is nothing to forget; format a new disk with: kafka-storage format --ignore-formatted"
            )
        if node not in current.spec.node_ids:
            raise OpsError(f"node {node} does not exist in the stack of {folder}")
        config = _stack_file(node, data)
    try:
        settings = NodeConfig.load(config)
    except ConfigError as error:
        raise OpsError(str(error)) from error
    if settings.node_id != node:
        raise UsageError(f"{config} belongs to node {settings.node_id}, not to node {node}")
    return settings


def _stack_file(node: int, data: Path | None) -> Path:
    current = state.load(data_folder(data))
    assert current is not None
    return current.spec.node_home(node) / "server.properties"


def _confirm(node: int, lost: Sequence[forgetting.Lost], yes: bool, what: str = "forget") -> None:
    """Show what will be lost and ask for confirmation; without a terminal --yes is required."""
    for each in lost:
        output.say(_consequence(each))
    if yes:
        return
    if not sys.stdin.isatty():
        ids = ", ".join(each.directory_id for each in lost)
        raise UsageError(f"--yes is required without a terminal to let node {node} {what} {ids}")
    if not typer.confirm(f"A lost disk must never come back. {what.capitalize()} it?", default=False, err=True):
        raise OpsError("nothing was changed")


def _consequence(lost: forgetting.Lost) -> str:
    what = lost.path or lost.directory_id
    if not lost.known:
        return f"records that only {what} held will be lost; no cluster image lists its replicas"
    if not lost.replicas:
        return f"the metadata has no replica in {what}"
    all_of_them = f"the metadata has {len(lost.replicas)} replicas in {what}, which will be lost with it: "
    if not lost.alone:
        end = "; the node copies all of them again from other nodes when it starts"
    elif len(lost.alone) < len(lost.replicas):
        end = f"; {len(lost.alone)} have no other in-sync replica, so their records are lost: {_named(lost.alone)}"
    else:
        end = "; none has another in-sync replica, so their records are lost"
    return all_of_them + _named(lost.replicas) + end


def _named(tps: Sequence[TopicPartition]) -> str:
    return ", ".join(map(str, tps[:_SHOWN])) + (", ..." if len(tps) > _SHOWN else "")
