"""The dev stack as values: which folders, files, ports and command lines a stack has. No I/O in here.

Everything lives below one data folder:

    stack.json                     what the stack is and which processes run
    .lock                          held (flock) by the `up` that looks after the folder
    temporal/temporal.db           the Temporal dev server's database
    node-1/server.properties       one folder per node, with its log directories disk-a, disk-b, ...
    logs/<process>.log             standard output and error of each process
    logs/controller.state          the state of the controller's connection to Temporal
    export/                        where histories are exported to
"""

from __future__ import annotations

import shlex
import string
import sys
from dataclasses import dataclass, field
from pathlib import Path

TEMPORAL = "temporal"
CONTROLLER = "controller"
HOST = "127.0.0.1"
NAMESPACE = "default"

#: The worker program of this checkout: processes are started from here, whatever the current folder is.
WORKER = Path(__file__).resolve().parents[2] / "worker.py"

MAX_NODES = 9  # the stated limit of an embedded cluster
MAX_DIRS = len(string.ascii_lowercase)


@dataclass(frozen=True, slots=True)
class StackSpec:
    """What a stack is. Ports: node i listens on `port + i - 1`; Temporal on `temporal_port`, its UI 1000 above."""

    data: Path
    nodes: int = 3
    dirs: int = 3
    port: int = 9092
    temporal_port: int = 7233
    cluster: str = "rehome"

    @property
    def ui_port(self) -> int:
        """The Temporal UI's port: 1000 above Temporal's, or below where that is no port."""
        return self.temporal_port + 1000 if self.temporal_port <= 64535 else self.temporal_port - 1000

    @property
    def temporal_address(self) -> str:
        return f"{HOST}:{self.temporal_port}"

    @property
    def ui_url(self) -> str:
        return f"http://{HOST}:{self.ui_port}"

    @property
    def bootstrap(self) -> str:
        """Kafka bootstrap servers, all nodes."""
        return ",".join(self.node_address(node) for node in self.node_ids)

    @property
    def node_ids(self) -> range:
        return range(1, self.nodes + 1)

    def node_port(self, node: int) -> int:
        return self.port + node - 1

    def node_address(self, node: int) -> str:
        return f"{HOST}:{self.node_port(node)}"

    def node_home(self, node: int) -> Path:
        return self.data / node_name(node)

    def log_dirs(self, node: int) -> tuple[Path, ...]:
        """The log directories of a node: disk-a, disk-b, ..."""
        return tuple(self.node_home(node) / f"disk-{letter}" for letter in string.ascii_lowercase[: self.dirs])

    @property
    def database(self) -> Path:
        return self.data / "temporal" / "temporal.db"

    @property
    def exports(self) -> Path:
        return self.data / "export"

    @property
    def controller_state(self) -> Path:
        """Where the controller, which listens at no port, writes the state of its connection to Temporal."""
        return self.data / "logs" / f"{CONTROLLER}.state"

    def ports(self) -> dict[int, str]:
        """Every port the stack listens on, and for what."""
        ports = {self.temporal_port: "the Temporal server", self.ui_port: "the Temporal UI"}
        return ports | {self.node_port(node): node_name(node) for node in self.node_ids}


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process: how it is started, where it listens, what it holds."""

    name: str
    command: tuple[str, ...]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    directories: tuple[Path, ...] = ()

    @property
    def command_line(self) -> str:
        """A shell line that starts the process again, with its part of the environment."""
        settings = [f"{name}={value}" for name, value in sorted(self.environment.items())]
        return shlex.join((["env", *settings] if settings else []) + list(self.command))


def node_name(node: int) -> str:
    """The process name of a node."""
    return f"node-{node}"


def problem(spec: StackSpec) -> str | None:
    """Why a stack cannot be as asked for, or None."""
    if not 1 <= spec.nodes <= MAX_NODES:
        return f"--nodes must be 1 to {MAX_NODES}, not {spec.nodes}"
    if not 1 <= spec.dirs <= MAX_DIRS:
        return f"--dirs must be 1 to {MAX_DIRS}, not {spec.dirs}"
    if len(spec.ports()) != spec.nodes + 2:
        return f"the nodes' ports from {spec.port} on overlap Temporal's ({spec.temporal_port}, UI {spec.ui_port})"
    for port, what in spec.ports().items():
        if not 1 <= port <= 65535:
            return f"{port} is no port number ({what}); choose --port and --temporal-port between 1 and 65535"
    if "," in str(spec.data) or "\n" in str(spec.data):
        return f"--data {spec.data} cannot be used: log.dirs is a list separated by commas"
    return None


def processes(spec: StackSpec, temporal_binary: str) -> tuple[ProcessSpec, ...]:
    """The stack's processes in the order in which they start."""
    return (_temporal(spec, temporal_binary), _controller(spec), *(_node(spec, node) for node in spec.node_ids))


def server_properties(spec: StackSpec, node: int) -> dict[str, str]:
    """A node's server.properties."""
    listener = f"PLAINTEXT://{spec.node_address(node)}"
    return {
        "node.id": str(node),
        "listeners": listener,
        "advertised.listeners": listener,
        "log.dirs": ",".join(str(path) for path in spec.log_dirs(node)),
        # A minute is long for someone who watches a move from beginning to end.
        "file.delete.delay.ms": "5000",
    }


def temporal_command(binary: str, host: str, port: int, ui_port: int, database: Path) -> tuple[str, ...]:
    """The command line of a Temporal dev server that listens at `host`."""
    return (
        binary, "server", "start-dev",
        "--ip", host, "--port", str(port), "--ui-port", str(ui_port),
        "--db-filename", str(database),
        "--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL",
        # Without these one workflow gets ten activities a second, and a timer below a second takes a second.
        "--dynamic-config-value", "history.transferProcessorMaxPollRPS=2000",
        "--dynamic-config-value", "history.timerProcessorMaxPollRPS=2000",
        "--dynamic-config-value", 'history.timerProcessorMaxTimeShift="50ms"',
        # `temporal workflow pause` is rejected without it.
        "--dynamic-config-value", "frontend.WorkflowPauseEnabled=true",
        "--log-level", "error",
    )  # fmt: skip


def _temporal(spec: StackSpec, binary: str) -> ProcessSpec:
    command = temporal_command(binary, HOST, spec.temporal_port, spec.ui_port, spec.database)
    return ProcessSpec(
        TEMPORAL,
        command,
        spec.data / "logs" / f"{TEMPORAL}.log",
        addresses={"grpc": spec.temporal_address, "ui": spec.ui_url},
        directories=(spec.database.parent,),
    )


def _environment(spec: StackSpec) -> dict[str, str]:
    return {
        "TEMPORAL_ADDRESS": spec.temporal_address,
        "TEMPORAL_NAMESPACE": NAMESPACE,
        "REHOME_EXPORT_DIR": str(spec.exports),
    }


def _controller(spec: StackSpec) -> ProcessSpec:
    return ProcessSpec(
        CONTROLLER,
        (sys.executable, str(WORKER), "controller", "--cluster", spec.cluster),
        spec.data / "logs" / f"{CONTROLLER}.log",
        environment={**_environment(spec), "REHOME_STATE_FILE": str(spec.controller_state)},
        directories=(spec.exports,),
    )


def _node(spec: StackSpec, node: int) -> ProcessSpec:
    return ProcessSpec(
        node_name(node),
        (sys.executable, str(WORKER), "node", "--config", str(spec.node_home(node) / "server.properties")),
        spec.data / "logs" / f"{node_name(node)}.log",
        environment=_environment(spec),
        addresses={"kafka": spec.node_address(node)},
        directories=spec.log_dirs(node),
    )
