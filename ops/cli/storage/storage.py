"""rehome storage: formats, inspects, checks and repairs the log directories of a stopped broker or node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ops.cli import output
from ops.cli.options import Json, group
from ops.cli.storage import check, format_options, move, repair
from ops.stack.errors import OpsError, UsageError
from storage_node.config.node_config import ConfigError
from storage_node.config.storage_settings import StorageSettings
from storage_node.directories import storage_info
from storage_node.directories.errors import StartRefused
from storage_node.directories.formatting import FormatResult, format_directories
from storage_node.directories.meta.properties import VERSION, fresh_directory_id

app = group("Format, check and repair the log directories of a stopped broker, Apache Kafka's or a storage node.")
check.register(app)
repair.register(app)
move.register(app)

Config = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="The node's server.properties.", dir_okay=False)
]


@app.command("random-uuid")
def random_uuid(json: Json = False) -> None:
    """Print a new cluster or directory id: 22 characters, not reserved, not beginning with '-'."""
    drawn = fresh_directory_id(())
    if json:
        output.print_json({"uuid": drawn})
    else:
        typer.echo(drawn)


@app.command("format")
def format_(
    config: Config,
    cluster_id: Annotated[
        str | None,
        typer.Option("--cluster-id", "-t", metavar="ID", help="The cluster's id (default: cluster.id of the file)."),
    ] = None,
    ignore_formatted: Annotated[
        bool,
        typer.Option(
            "--ignore-formatted",
            "-g",
            help="Format only directories without meta.properties, and update those of the others.",
        ),
    ] = False,
    meta_version: Annotated[
        int,
        typer.Option(
            "--meta-version",
            min=1,
            max=VERSION,
            help="1: readable by Apache Kafka, to return to it; a storage node writes 2 again when it starts.",
        ),
    ] = VERSION,
    release_version: Annotated[
        str | None,
        typer.Option("--release-version", "-r", metavar="RELEASE", help="Validated and printed; has no other effect."),
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option("--feature", "-f", metavar="NAME=LEVEL", help="Only metadata.version is supported."),
    ] = None,
    add_scram: Annotated[
        list[str] | None,
        typer.Option(
            "--add-scram", "-S", metavar="CREDENTIAL", help="Not supported: nodes do not authenticate clients."
        ),
    ] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", "-s", help="Has no effect: there is no controller quorum.")
    ] = False,
    no_initial_controllers: Annotated[
        bool, typer.Option("--no-initial-controllers", "-N", help="Has no effect: there is no controller quorum.")
    ] = False,
    initial_controllers: Annotated[
        str | None,
        typer.Option("--initial-controllers", "-I", metavar="LIST", help="Has no effect, as --standalone."),
    ] = None,
    json: Json = False,
) -> None:
    """Write meta.properties into the log directories (KIP-858), before the node's first start.

    All directories of log.dirs (and metadata.log.dir) must exist or be creatable; a directory with an id keeps it.

    The node must be stopped. A format that fails changes nothing.
    """
    chosen = format_options.choose(
        release=release_version,
        features=feature or (),
        scram=add_scram or (),
        standalone=standalone,
        no_initial_controllers=no_initial_controllers,
        initial_controllers=initial_controllers,
    )
    settings = _settings(config)
    cluster = _cluster(cluster_id, settings, config)
    if settings.node_id is None:
        raise OpsError(f"{config}: node.id is missing; every node of a cluster needs a unique one")
    if not settings.log_dirs:
        raise OpsError(f"{config}: log.dirs is missing; name at least one directory")
    try:
        done = format_directories(
            settings.log_dirs,
            cluster,
            settings.node_id,
            metadata=settings.metadata_beside,
            version=meta_version,
            fresh=not ignore_formatted,
        )
    except StartRefused as error:
        raise OpsError(str(error)) from error
    for note in chosen.notes:
        output.say(note)
    if json:
        output.print_json(_as_json(done, settings.node_id, meta_version, chosen.metadata_version))
        return
    for line in _lines(done, meta_version, chosen.metadata_version):
        typer.echo(line)


@app.command("info")
def info(config: Config, json: Json = False) -> None:
    """Show the log directories, their cluster and node, and problems; exit code 1 if there are any. Changes nothing."""
    settings = _settings(config)
    if not settings.directories:
        if json:
            output.print_json({"directories": [], "metadata": None, "problems": []})
        else:
            typer.echo("No directories specified.")
        return
    found = storage_info.info([storage_info.see(path) for path in settings.directories], settings.mode)
    if json:
        output.print_json(
            {
                "directories": list(found.directories),
                "metadata": found.metadata or None,
                "problems": list(found.problems),
            }
        )
    else:
        for line in storage_info.lines(found):
            typer.echo(line)
    if found.problems:
        raise typer.Exit(1)


def _settings(config: Path) -> StorageSettings:
    try:
        return StorageSettings.load(config)
    except ConfigError as error:
        raise OpsError(str(error)) from error


def _cluster(given: str | None, settings: StorageSettings, config: Path) -> str:
    if given is not None and settings.cluster_id and given != settings.cluster_id:
        raise OpsError(f"--cluster-id is {given}, but {config} has cluster.id={settings.cluster_id}; correct one")
    cluster = (given if given is not None else settings.cluster_id).strip()
    if not cluster:
        raise UsageError("the cluster id is missing: pass --cluster-id ID (new id: rehome storage random-uuid)")
    return cluster


def _kind(path: str, done: FormatResult) -> str:
    return "metadata" if path == done.metadata else "data"


def _lines(done: FormatResult, meta_version: int, metadata_version: str) -> list[str]:
    lines = [
        f"Formatting {_kind(path, done)} directory {path} with metadata.version {metadata_version}."
        for path in sorted(done.formatted)
    ]
    lines = lines or ["All of the log directories are already formatted."]
    return lines + [
        f"Writing {path}/meta.properties as version {meta_version}, with the ids of all directories."
        for path in sorted(done.rewritten)
    ]


def _as_json(done: FormatResult, node_id: int, meta_version: int, metadata_version: str) -> dict[str, Any]:
    def state(path: str) -> str:
        return "formatted" if path in done.formatted else "rewritten" if path in done.rewritten else "kept"

    rows = [
        {"path": path, "kind": _kind(path, done), "directory_id": id, "state": state(path)}
        for path, id in sorted(done.ids)
    ]
    return {
        "cluster_id": done.cluster_id,
        "node_id": node_id,
        "meta_version": meta_version,
        "metadata_version": metadata_version,
        "directories": rows,
    }
