"""The dev stack: starts what is missing, in order, and stops it in the reverse order. A shell on `layout`'s values."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import javaproperties

from ops.stack import clients, health, layout, ports, processes, state, temporal_server
from ops.stack.errors import OpsError, UsageError
from ops.stack.interrupts import uninterrupted
from ops.stack.layout import CONTROLLER, TEMPORAL, ProcessSpec, StackSpec
from ops.stack.state import ProcessRecord, StackState
from storage_node.directories.errors import StartRefused
from storage_node.directories.formatting import format_directories

#: Seconds a process gets to end by itself.
STOP_SECONDS = 20.0

Say = Callable[[str], None]


def quiet(line: str) -> None:
    """Say nothing."""


class Stack:
    """One stack in one data folder. Every method reads stack.json anew: several commands may work on it in turn."""

    def __init__(
        self, data: Path, say: Say = quiet, environment: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        """`environment` adds settings to the processes named."""
        self.data = data
        self._say = say
        self._extra = environment or {}

    # What there is

    def spec(self) -> StackSpec:
        """Raises `NoStack` where there is none."""
        return state.require(self.data).spec

    def processes(self) -> tuple[ProcessSpec, ...]:
        return self._layout(state.require(self.data))

    def running(self) -> dict[str, ProcessRecord]:
        """The processes of the stack that run now, by name, however they were started."""
        return self._running(state.require(self.data))

    def status(self) -> list[dict[str, Any]]:
        """One row per process, as `rehome stack status --json` prints it."""
        current = state.require(self.data)
        running = self._running(current)
        rows: list[dict[str, Any]] = []
        found = clients.states(current.spec, self._layout(current), running)
        for process in self._layout(current):
            record = running.get(process.name)
            up = record is not None
            rows.append(
                {
                    "name": process.name,
                    "running": up,
                    "ready": up and health.ready(current.spec, process),
                    "pid": record.pid if record else None,
                    "addresses": process.addresses,
                    "directories": [str(path) for path in process.directories],
                    "command": process.command_line,
                    "log": str(process.log),
                    "temporal_client": found[process.name],
                }
            )
        return rows

    # Changing it

    def make_folder(self) -> None:
        """Make the data folder, which everything else needs."""
        try:
            (self.data / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OpsError(
                f"cannot use the folder {self.data}: {error.strerror}; choose another with --data"
            ) from error

    def prepare(self, changes: Mapping[str, Any]) -> StackSpec:
        """Make or adapt the folder; nothing is started. `changes` are the fields of `StackSpec` that were asked for."""
        current = state.load(self.data)
        before = current.spec if current else StackSpec(self.data)
        spec = dataclasses.replace(before, **{key: value for key, value in changes.items() if value is not None})
        why = layout.problem(spec)
        if why:
            raise UsageError(f"cannot start the stack in {self.data}: {why}")
        if current and spec != before:
            self._check_change(current, spec)
        binary = temporal_server.ensure(self._say)
        self._format(spec)
        with state.changing(self.data):
            latest = state.load(self.data)
            state.save(StackState(spec, binary, latest.records if latest else {}))
        return spec

    def up(self) -> list[str]:
        """Start what does not run, in order, and wait until it works; the names of what was started."""
        with state.changing(self.data):
            current = state.require(self.data)
            running = self._running(current)
            current = dataclasses.replace(current, records=running)
            state.save(current)
        todo = [p for p in self._layout(current) if p.name not in running]
        missing = {port: what for port, what in current.spec.ports().items() if _serves(what, todo)}
        ports.require_free(missing, str(self.data))
        try:
            waiting: list[tuple[ProcessSpec, ProcessRecord]] = []
            for process in todo:
                self._say(f"starting {process.name}")
                waiting.append((process, self._launch(process)))
                if process.name == TEMPORAL:  # everything else needs it
                    self._wait(current, *waiting.pop())
            for process, record in waiting:  # side by side
                self._wait(current, process, record)
        except BaseException:
            with uninterrupted():
                self._end([process.name for process in todo])
            raise
        return [process.name for process in todo]

    def start(self, name: str) -> bool:
        """Start one process and wait until it works; False if it ran already."""
        process = self._process(name)
        if name in self.running():
            return False
        current = state.require(self.data)
        ports.require_free(
            {port: what for port, what in current.spec.ports().items() if _serves(what, [process])}, str(self.data)
        )
        self._say(f"starting {name}")
        self._wait(current, process, self._launch(process))
        return True

    def stop(self, name: str) -> bool:
        """Let one process end (SIGTERM), and kill it if it does not; False if it did not run."""
        self._process(name)
        record = self.running().get(name)
        if record is None:
            return False
        self._say(f"stopping {name}")
        if not processes.terminate(record, deadline=STOP_SECONDS):
            self._say(f"{name} did not end within {STOP_SECONDS:.0f} s and was killed")
        self._note(name, None)
        return True

    def kill(self, name: str) -> bool:
        """Kill one process (SIGKILL), as a power failure would; False if it did not run."""
        self._process(name)
        record = self.running().get(name)
        if record is None:
            return False
        processes.kill(record)
        self._note(name, None)
        return True

    def down(self) -> list[str]:
        """Stop everything: the nodes side by side, the controller, Temporal. The names of what ran."""
        current = state.load(self.data)
        if current is None:
            return []
        running = self._running(current)
        names = [p.name for p in self._layout(current) if p.name in running]
        self._end(names)
        return names

    # Inside

    def _layout(self, current: StackState) -> tuple[ProcessSpec, ...]:
        specs = layout.processes(current.spec, current.temporal_binary)
        return tuple(
            dataclasses.replace(spec, environment={**spec.environment, **self._extra.get(spec.name, {})})
            for spec in specs
        )

    def _running(self, current: StackState) -> dict[str, ProcessRecord]:
        specs = self._layout(current)
        found = {p.name: record for p in specs if (record := current.records.get(p.name)) and processes.alive(record)}
        rest = tuple(p for p in specs if p.name not in found)
        return found | processes.find(rest) if rest else found

    def _end(self, names: list[str]) -> None:
        """End the processes named, in the order of a stop."""
        running = {name: record for name, record in self.running().items() if name in names}
        nodes = [name for name in running if name not in (TEMPORAL, CONTROLLER)]
        for group in (nodes, [CONTROLLER], [TEMPORAL]):
            present = sorted(name for name in group if name in running)
            if not present:
                continue
            self._say(f"stopping {', '.join(present)}")
            if not processes.end([running[name] for name in present], deadline=STOP_SECONDS):
                self._say(f"not ended within {STOP_SECONDS:.0f} s, killed: {', '.join(present)}")
            for name in present:
                self._note(name, None)

    def _check_change(self, current: StackState, spec: StackSpec) -> None:
        before = current.spec
        how = (
            f"it has --nodes {before.nodes} --dirs {before.dirs} "
            f"--port {before.port} --temporal-port {before.temporal_port}"
        )
        if self._running(current):
            raise OpsError(
                f"a stack runs in {self.data} with other settings ({how}); "
                f"end it first with: rehome stack down --data {self.data}, or choose another --data"
            )
        if spec.dirs != before.dirs or spec.nodes < before.nodes or spec.cluster != before.cluster:
            raise OpsError(
                f"the stack in {self.data} keeps its shape ({how}): nodes can only be added; choose another --data"
            )

    def _format(self, spec: StackSpec) -> None:
        """Folders, server.properties and (once) meta.properties of every node."""
        for folder in (spec.database.parent, spec.exports):
            folder.mkdir(parents=True, exist_ok=True)
        for node in spec.node_ids:
            dirs = spec.log_dirs(node)
            for path in dirs:
                path.mkdir(parents=True, exist_ok=True)
            file = spec.node_home(node) / "server.properties"
            _write_properties(file, layout.server_properties(spec, node))
            if not (dirs[0] / "meta.properties").exists():
                try:
                    format_directories(dirs, spec.cluster, node)
                except StartRefused as error:
                    raise OpsError(f"the log directories of node {node} cannot be used: {error}") from error

    def _process(self, name: str) -> ProcessSpec:
        for process in self.processes():
            if process.name == name:
                return process
        names = ", ".join(process.name for process in self.processes())
        raise UsageError(f"the stack in {self.data} has no process named {name}; it has {names}")

    def _launch(self, process: ProcessSpec) -> ProcessRecord:
        with state.changing(self.data):
            record = processes.launch(process)
            state.save(state.require(self.data).with_record(process.name, record))
        return record

    def _wait(self, current: StackState, process: ProcessSpec, record: ProcessRecord) -> None:
        health.wait_ready(current.spec, process, record, current.temporal_binary)
        where = next(iter(process.addresses.values()), "")
        self._say(f"{process.name} is up{' at ' + where if where else ''} (pid {record.pid})")

    def _note(self, name: str, record: ProcessRecord | None) -> None:
        with state.changing(self.data):
            state.save(state.require(self.data).with_record(name, record))


def _serves(what: str, todo: list[ProcessSpec]) -> bool:
    names = {process.name for process in todo}
    return what in names or (TEMPORAL in names and "Temporal" in what)


def _write_properties(path: Path, values: Mapping[str, str]) -> None:
    """Only what the stack decides; lines that a user added stay."""
    kept: dict[str, str] = {}
    if path.exists():
        kept = {k: v for k, v in javaproperties.loads(path.read_text()).items() if k not in values}
    text = javaproperties.dumps({**values, **kept}, timestamp=False)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(path)
