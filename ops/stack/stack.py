"""The dev stack, of storage nodes or of Apache Kafka: start its processes in order, and stop them in reverse order."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import javaproperties

from ops.kafka import jars
from ops.kafka.jars import Runtime
from ops.stack import clients, health, java, kafka_storage, layout, ports, processes, state, temporal_server
from ops.stack.errors import OpsError, UsageError
from ops.stack.interrupts import uninterrupted
from ops.stack.layout import TEMPORAL, ProcessSpec, StackKind, StackSpec
from ops.stack.state import ProcessRecord, StackState
from storage_node.directories.errors import StartRefused
from storage_node.directories.formatting import format_directories

#: Seconds before a process that does not exit on SIGTERM is killed.
STOP_SECONDS = 20.0

_DEFAULT_KIND = StackKind.STORAGE_NODES

Say = Callable[[str], None]


def quiet(line: str) -> None:
    """Discard progress messages."""


class Stack:
    """A stack in a data folder. Every method reads stack.json again, since other commands may change it."""

    def __init__(
        self, data: Path, say: Say = quiet, environment: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        """`environment` adds variables to processes, by their names."""
        self.data = data
        self._say = say
        self._extra = environment or {}

    # Reading

    def spec(self) -> StackSpec:
        """Return the stack's settings. Raises `NoStack`."""
        return state.require(self.data).spec

    def processes(self) -> tuple[ProcessSpec, ...]:
        return self._layout(state.require(self.data))

    def running(self) -> dict[str, ProcessRecord]:
        """Return the running processes of the stack by name, however they were started."""
        return self._running(state.require(self.data))

    def status(self) -> list[dict[str, Any]]:
        """Return a row per process, as `rehome stack status --json` prints it."""
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

    # Changing

    def make_folder(self) -> None:
        """Create the data folder."""
        try:
            (self.data / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OpsError(
                f"cannot use the folder {self.data}: {error.strerror}; choose another with --data"
            ) from error

    def prepare(self, changes: Mapping[str, Any]) -> StackSpec:
        """Create or update the stack's files without starting it. `changes` are the requested fields of `StackSpec`.

        Without a requested kind, a new stack has storage nodes. Temporal's server, and for Apache Kafka Java and the
        jars, are installed if they are missing.
        """
        current = state.load(self.data)
        before = current.spec if current else layout.first_spec(self.data, changes.get("kind") or _DEFAULT_KIND)
        spec = dataclasses.replace(before, **{key: value for key, value in changes.items() if value is not None})
        why = layout.problem(spec)
        if why:
            raise UsageError(f"cannot start the stack in {self.data}: {why}")
        if current and spec != before:
            self._check_change(current, spec)
        binary = temporal_server.ensure(self._say)
        runtime = self._runtime() if spec.apache_kafka else None
        self._format(spec, runtime)
        with state.changing(self.data):
            latest = state.load(self.data)
            state.save(StackState(spec, binary, latest.records if latest else {}, runtime))
        return spec

    def up(self) -> list[str]:
        """Start the processes that are not running, in order, and wait until they work; return their names."""
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
                if process.name == TEMPORAL:  # all other processes need it
                    self._wait(current, *waiting.pop())
            for process, record in waiting:  # they start concurrently
                self._wait(current, process, record)
        except BaseException:
            with uninterrupted():
                self._end([process.name for process in todo])
            raise
        return [process.name for process in todo]

    def start(self, name: str) -> bool:
        """Start a process and wait until it works; return False if it was running."""
        process = self._process(name)
        if name in self.running():
            return False
        current = state.require(self.data)
        ports.require_free(
            {port: what for port, what in current.spec.ports().items() if _serves(what, [process])}, str(self.data)
        )
        self._say(f"starting {name}")
        record = self._launch(process)
        if layout.lacks_quorum(current.spec, name, self.running()):
            self._say(f"{name} is starting; it serves when more than half of the brokers run")
        else:
            self._wait(current, process, record)
        return True

    def stop(self, name: str) -> bool:
        """Terminate a process, and kill it after `STOP_SECONDS`; return False if it was not running."""
        self._process(name)
        record = self.running().get(name)
        if record is None:
            return False
        self._say(f"stopping {name}")
        if not processes.terminate(record, deadline=STOP_SECONDS):
            self._say(f"{name} did not exit within {STOP_SECONDS:.0f} s and was killed")
        self._note(name, None)
        return True

    def kill(self, name: str) -> bool:
        """Kill a process (SIGKILL); return False if it was not running."""
        self._process(name)
        record = self.running().get(name)
        if record is None:
            return False
        processes.kill(record)
        self._note(name, None)
        return True

    def down(self) -> list[str]:
        """Stop the nodes concurrently, then the controller, then Temporal; return the names of what was running.

        Of Apache Kafka's stack the orchestrator is stopped first: it is a client of the brokers.
        """
        current = state.load(self.data)
        if current is None:
            return []
        running = self._running(current)
        names = [p.name for p in self._layout(current) if p.name in running]
        self._end(names)
        return names

    # Inside

    def _layout(self, current: StackState) -> tuple[ProcessSpec, ...]:
        specs = layout.processes(current.spec, current.temporal_binary, current.java)
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
        """Stop the named processes in stopping order."""
        running = {name: record for name, record in self.running().items() if name in names}
        for present in layout.stopping_order(running):
            self._say(f"stopping {', '.join(present)}")
            if not processes.end([running[name] for name in present], deadline=STOP_SECONDS):
                self._say(f"killed, as not all exited within {STOP_SECONDS:.0f} s: {', '.join(present)}")
            for name in present:
                # On a full disk the others are stopped all the same: the record of a process that has ended is ignored.
                try:
                    self._note(name, None)
                except OpsError as error:
                    self._say(str(error))

    def _check_change(self, current: StackState, spec: StackSpec) -> None:
        before = current.spec
        if spec.kind is not before.kind:
            raise OpsError(
                f"the stack in {self.data} has {before.kind} and cannot change to {spec.kind}; choose another --data"
            )
        how = (
            f"it has --nodes {before.nodes} --dirs {before.dirs} "
            f"--port {before.port} --temporal-port {before.temporal_port}"
        )
        if self._running(current):
            raise OpsError(
                f"a stack runs in {self.data} with other settings ({how}); "
                f"stop it first with: rehome stack down --data {shlex.quote(str(self.data))}, or choose another --data"
            )
        fewer = spec.nodes != before.nodes if spec.apache_kafka else spec.nodes < before.nodes
        if spec.dirs != before.dirs or fewer or spec.cluster != before.cluster:
            only = "" if spec.apache_kafka else ", only add nodes"
            raise OpsError(f"the stack in {self.data} cannot change its shape ({how}){only}; choose another --data")

    def _runtime(self) -> Runtime:
        """Return what runs Apache Kafka's brokers, installed if it is missing."""
        home = java.ensure(self._say)
        return jars.logging_runtime(str(home / "bin" / "java"), self._say)

    def _format(self, spec: StackSpec, runtime: Runtime | None) -> None:
        """Create the folders and server.properties of every node, and format its log directories once."""
        for folder in (spec.database.parent, spec.exports):
            folder.mkdir(parents=True, exist_ok=True)
        if runtime is not None:
            kafka_storage.make(spec, runtime, self._say)
            return
        for node in spec.node_ids:
            dirs = spec.log_dirs(node)
            for path in dirs:
                path.mkdir(parents=True, exist_ok=True)
            file = spec.node_home(node) / "server.properties"
            kafka_storage.write_properties(file, {**layout.server_properties(spec, node), **_changed_log_dirs(file)})
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


def _changed_log_dirs(file: Path) -> dict[str, str]:
    """Return the log.dirs that `rehome dirs add` and `remove` have left in a node's file, unless it was moved."""
    found = javaproperties.loads(file.read_text(encoding="latin-1")).get("log.dirs", "") if file.exists() else ""
    return {"log.dirs": found} if found and all(Path(each).parent.is_dir() for each in found.split(",")) else {}


def _serves(what: str, todo: list[ProcessSpec]) -> bool:
    names = {process.name for process in todo}
    return any(what.endswith(name) for name in names) or (TEMPORAL in names and "Temporal" in what)
