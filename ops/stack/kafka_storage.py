"""The files of a stack's Apache Kafka brokers: server.properties, formatted log directories, client.properties."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import javaproperties

from ops.kafka import brokers, tools
from ops.kafka.brokers import Broker
from ops.kafka.jars import Runtime
from ops.stack import layout
from ops.stack.errors import OpsError
from ops.stack.layout import StackSpec
from ops.stack.programs import Say
from storage_node.directories.meta.properties import fresh_directory_id


def make(spec: StackSpec, java: Runtime, say: Say) -> None:
    """Create the files of all brokers, and format those log directories that are not formatted yet.

    Properties that the operator has added are kept. Raises `OpsError`.
    """
    todo: list[Broker] = []
    known: dict[Path, str] = {}
    for broker in spec.brokers():
        for path in broker.log_dirs:
            path.mkdir(parents=True, exist_ok=True)
        write_properties(broker.config, layout.broker_properties(spec, broker.node))
        ids = {path: cluster_id(path) for path in broker.log_dirs}
        known |= {path: id_ for path, id_ in ids.items() if id_}
        if not all(ids.values()):
            todo.append(broker)
    if len(set(known.values())) > 1:
        raise OpsError(
            "the log directories belong to different clusters "
            f"({', '.join(f'{path}: {id_}' for path, id_ in known.items())}); choose another --data"
        )
    write_properties(spec.client_properties, {"bootstrap.servers": spec.bootstrap}, mode=0o600)
    if not todo:
        return
    say(f"formatting the log directories of {', '.join(layout.broker_name(broker.node) for broker in todo)}")
    id_ = next(iter(known.values()), None) or fresh_directory_id(())
    run_tool = functools.partial(tools.run, java=java)
    with ThreadPoolExecutor(len(todo)) as pool:
        list(pool.map(lambda broker: brokers.format_storage(broker, id_, run_tool), todo))


def cluster_id(directory: Path) -> str:
    """Return the cluster id in a log directory's meta.properties; "" if the directory is not formatted."""
    try:
        return str(javaproperties.loads((directory / "meta.properties").read_text()).get("cluster.id", ""))
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise OpsError(f"cannot read {directory / 'meta.properties'}: {error}") from error


def write_properties(path: Path, values: Mapping[str, str], mode: int = 0o644) -> None:
    """Write a stack's properties to a file with these permissions; keep those that the operator has added."""
    kept: dict[str, str] = {}
    if path.exists():
        kept = {k: v for k, v in javaproperties.loads(path.read_text(encoding="latin-1")).items() if k not in values}
    text = javaproperties.dumps({**values, **kept}, timestamp=False)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # of a killed process: its permissions would remain
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    temporary.replace(path)
