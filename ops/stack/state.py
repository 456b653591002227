"""stack.json, with the stack's settings and the processes it has started, and the folder's lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ops.kafka.jars import Runtime
from ops.stack.errors import OpsError
from ops.stack.layout import StackKind, StackSpec

STATE = "stack.json"
LOCK = ".lock"


class StackLocked(OpsError):
    """Another `rehome stack up` manages this folder."""


class NoStack(OpsError):
    """The folder contains no stack."""

    def __init__(self, data: Path) -> None:
        up = f"rehome stack up --data {shlex.quote(str(data))}"
        super().__init__(f"there is no stack in {data}; start one with: {up}")


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A started process: its pid identifies it only together with its creation time (seconds since the epoch)."""

    pid: int
    created: float


@dataclass(frozen=True, slots=True)
class StackState:
    """The stack and its processes by name, as in stack.json; `java` runs Apache Kafka's brokers."""

    spec: StackSpec
    temporal_binary: str = ""
    records: dict[str, ProcessRecord] = field(default_factory=dict)
    java: Runtime | None = None

    def with_record(self, name: str, record: ProcessRecord | None) -> StackState:
        """Return this state with a process added, or (None) removed."""
        records = {key: value for key, value in self.records.items() if key != name}
        return replace(self, records=records | ({name: record} if record else {}))


def to_json(state: StackState) -> dict[str, Any]:
    spec = state.spec
    return {
        "version": 1,
        "data": str(spec.data),
        "cluster": spec.cluster,
        "kind": spec.kind,
        "nodes": spec.nodes,
        "dirs": spec.dirs,
        "port": spec.port,
        "temporal_port": spec.temporal_port,
        "temporal_binary": state.temporal_binary,
        "java": {"program": state.java.java, "classpath": state.java.classpath, "logging": state.java.logging}
        if state.java
        else None,
        "processes": {name: {"pid": r.pid, "created": r.created} for name, r in sorted(state.records.items())},
    }


def from_json(raw: dict[str, Any], data: Path) -> StackState:
    """Parse the output of `to_json`. Raises KeyError, TypeError or ValueError for other values."""
    if raw["version"] != 1:
        raise ValueError(f"version {raw['version']}")
    spec = StackSpec(
        data=data,
        nodes=int(raw["nodes"]),
        dirs=int(raw["dirs"]),
        port=int(raw["port"]),
        temporal_port=int(raw["temporal_port"]),
        cluster=str(raw["cluster"]),
        kind=StackKind(raw.get("kind", StackKind.STORAGE_NODES)),
    )
    java = raw.get("java")
    records = {
        str(name): ProcessRecord(int(record["pid"]), float(record["created"]))
        for name, record in dict(raw["processes"]).items()
    }
    runtime = Runtime(str(java["program"]), str(java["classpath"]), str(java["logging"])) if java else None
    return StackState(spec, str(raw["temporal_binary"]), records, runtime)


def load(data: Path) -> StackState | None:
    """Return the stack of a folder, None if there is none. Raises `OpsError`."""
    path = data / STATE
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (NotADirectoryError, PermissionError, IsADirectoryError) as error:
        raise OpsError(f"cannot read the stack's state {path}: {error.strerror}; choose another --data") from error
    try:
        return from_json(json.loads(text), data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OpsError(
            f"the stack's state {path} is not valid ({type(error).__name__}: {error}); "
            "remove the file once no process of the stack is running"
        ) from error


def require(data: Path) -> StackState:
    """Return the stack of a folder. Raises `NoStack` if there is none."""
    state = load(data)
    if state is None:
        raise NoStack(data)
    return state


def save(state: StackState) -> None:
    """Write stack.json atomically. Raises `OpsError`, for a full disk for example; the file stays as it was."""
    path = state.spec.data / STATE
    temporary = path.with_name(f"{STATE}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(to_json(state), indent=2) + "\n")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OpsError(f"cannot write the stack's state {path}: {error.strerror}") from error


@contextlib.contextmanager
def changing(data: Path) -> Iterator[None]:
    """Lock stack.json for a change: concurrent commands on a folder wait for each other."""
    with (data / ".state.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def owning(data: Path) -> Iterator[None]:
    """Hold the folder's lock, as `rehome stack up` does while it manages the stack.

    Raises `StackLocked` at once if another process holds it.
    """
    with (data / LOCK).open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.seek(0)
            owner = handle.read().strip()
            raise StackLocked(
                f"the stack in {data} is managed by another `rehome stack up`"
                f"{' (pid ' + owner + ')' if owner else ''}; stop that one, or choose another folder with --data"
            ) from error
        handle.seek(0)
        handle.truncate()
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        # The file is not removed: otherwise a third process could lock another inode of the same name.
        yield
