"""rehome storage: directory ids, meta.properties, and what is wrong with them, as Apache Kafka's kafka-storage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ops.cli import format_options, output
from ops.cli.options import Json
from ops.stack.errors import OpsError, UsageError
from storage_node.config import ConfigError
from storage_node.directories import storage_info
from storage_node.directories.errors import StartRefused
from storage_node.directories.formatting import FormatResult, format_directories
from storage_node.directories.meta_properties import VERSION, fresh_directory_id
from storage_node.storage_settings import StorageSettings

app = typer.Typer(
    help="The log directories of a node that is stopped, as kafka-storage: format them, look at them.",
    no_args_is_help=True,
)

Config = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="The node's server.properties.", dir_okay=False)
]


@app.command("random-uuid")
def random_uuid(json: Json = False) -> None:
    """Print a new id, for a cluster or a directory: 22 characters, never one that is reserved or begins with '-'."""
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
        typer.Option("--cluster-id", "-t", metavar="ID", help="The cluster's id (else cluster.id in the file)."),
    ] = None,
    ignore_formatted: Annotated[
        bool,
        typer.Option(
            "--ignore-formatted",
            "-g",
            help="Format only what has no meta.properties, and bring those of the others in step.",
        ),
    ] = False,
    meta_version: Annotated[
        int,
        typer.Option(
            "--meta-version",
            min=1,
            max=VERSION,
            help="1: what Apache Kafka can read, the way back to it; a storage node that starts makes 2 of it again.",
        ),
    ] = VERSION,
    release_version: Annotated[
        str | None,
        typer.Option("--release-version", "-r", metavar="RELEASE", help="Checked and shown; changes nothing here."),
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option("--feature", "-f", metavar="NAME=LEVEL", help="Only metadata.version is known here."),
    ] = None,
    add_scram: Annotated[
        list[str] | None, typer.Option("--add-scram", "-S", metavar="CREDENTIAL", help="Refused: nobody logs in.")
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
    """Give the log directories their meta.properties (KIP-858), before the node's first start.

    All directories of log.dirs (and metadata.log.dir) must be there or creatable; what has an id keeps it.

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
        raise OpsError(f"{config}: node.id is missing; every node of a cluster needs one of its own")
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
    """Say which log directories there are, whose they are, and what is wrong; 1 when something is. Changes nothing."""
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
        raise OpsError(f"--cluster-id says {given}, but {config} says cluster.id={settings.cluster_id}; correct one")
    cluster = (given if given is not None else settings.cluster_id).strip()
    if not cluster:
        raise UsageError("say which cluster this is: --cluster-id ID (a new one: rehome storage random-uuid)")
    return cluster


def _kind(path: str, done: FormatResult) -> str:
    return "metadata" if path == done.metadata else "data"


def _lines(done: FormatResult, meta_version: int, metadata_version: str) -> list[str]:
    told = [
        f"Formatting {_kind(path, done)} directory {path} with metadata.version {metadata_version}."
        for path in sorted(done.formatted)
    ]
    told = told or ["All of the log directories are already formatted."]
    return told + [
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
