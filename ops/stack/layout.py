"""The dev stack as values: the folders, files, ports and command lines of a stack. No I/O.

A stack has a Temporal server, and storage nodes with their controller, or Apache Kafka's brokers with an orchestrator.
All files are below one data folder:

    stack.json                     the stack's settings and processes
    .lock                          locked (flock) by the `rehome stack up` that manages the folder
    temporal/temporal.db           the Temporal dev server's database
    node-1/server.properties       one folder per node, with its log directories disk-a, disk-b, ...
    broker-1/server.properties     the same of Apache Kafka's brokers
    client.properties              the settings of a client of Apache Kafka's brokers
    logs/<process>.log             standard output and error of each process
    logs/controller.state          the state of the controller's connection to Temporal, or logs/orchestrator.state
    plans/                         the plans that the controller or orchestrator keeps
    export/                        the exported histories
"""

from __future__ import annotations

import shlex
import string
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ops.kafka import brokers
from ops.kafka.brokers import Broker
from ops.kafka.jars import Runtime

TEMPORAL = "temporal"
CONTROLLER = "controller"
ORCHESTRATOR = "orchestrator"
HISTORY = "history"
HOST = "127.0.0.1"
NAMESPACE = "default"

#: The worker program of this checkout, independent of the current folder.
WORKER = Path(__file__).resolve().parents[2] / "worker.py"

MAX_NODES = 9  # the supported size of a cluster
MAX_DIRS = len(string.ascii_lowercase)

#: Milliseconds until a moved replica's source is deleted, instead of a minute: an operator can watch a move to its end.
DELETE_DELAY = "5000"

#: A broker's heap: three of them, Temporal and clients share a small machine.
BROKER_HEAP = "320m"


class StackKind(StrEnum):
    """What holds the records of a stack."""

    STORAGE_NODES = "storage nodes"
    APACHE_KAFKA = "Apache Kafka"


@dataclass(frozen=True, slots=True)
class StackSpec:
    """A stack's settings. Node i listens on `port + i - 1`, Temporal on `temporal_port`, its UI 1000 above.

    With Apache Kafka the nodes are brokers, and the controllers' listeners are on the ports after the brokers'.
    """

    data: Path
    nodes: int = 3
    dirs: int = 3
    port: int = 9092
    temporal_port: int = 7233
    cluster: str = "rehome"
    kind: StackKind = StackKind.STORAGE_NODES

    @property
    def apache_kafka(self) -> bool:
        """Whether Apache Kafka's brokers hold the records."""
        return self.kind is StackKind.APACHE_KAFKA

    @property
    def ui_port(self) -> int:
        """The Temporal UI's port: 1000 above Temporal's, or below if that exceeds 65535."""
        return self.temporal_port + 1000 if self.temporal_port <= 64535 else self.temporal_port - 1000

    @property
    def temporal_address(self) -> str:
        return f"{HOST}:{self.temporal_port}"

    @property
    def ui_url(self) -> str:
        return f"http://{HOST}:{self.ui_port}"

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers: all nodes."""
        return ",".join(self.node_address(node) for node in self.node_ids)

    @property
    def node_ids(self) -> range:
        return range(1, self.nodes + 1)

    def node_port(self, node: int) -> int:
        return self.port + node - 1

    def node_address(self, node: int) -> str:
        return f"{HOST}:{self.node_port(node)}"

    def node_name(self, node: int) -> str:
        """Return the process name of a node or broker."""
        return broker_name(node) if self.apache_kafka else node_name(node)

    def node_home(self, node: int) -> Path:
        return self.data / self.node_name(node)

    def log_dirs(self, node: int) -> tuple[Path, ...]:
        """Return the log directories of a node: disk-a, disk-b, ..."""
        return tuple(self.node_home(node) / f"disk-{letter}" for letter in string.ascii_lowercase[: self.dirs])

    @property
    def database(self) -> Path:
        return self.data / "temporal" / "temporal.db"

    @property
    def exports(self) -> Path:
        return self.data / "export"

    @property
    def plans(self) -> Path:
        """The folder of the plans that the controller or orchestrator keeps."""
        return self.data / "plans"

    @property
    def client_properties(self) -> Path:
        """The settings of a client of Apache Kafka's brokers, as Kafka's tools take them with --command-config."""
        return self.data / "client.properties"

    def state_file(self, name: str) -> Path:
        """Return the file to which a process without a listener writes the state of its connection to Temporal."""
        return self.data / "logs" / f"{name}.state"

    def brokers(self) -> tuple[Broker, ...]:
        """Return Apache Kafka's brokers, each with its own controller."""
        return tuple(
            Broker(
                node,
                self.node_port(node),
                self.port + self.nodes + node - 1,
                self.log_dirs(node),
                self.node_home(node) / "server.properties",
            )
            for node in self.node_ids
        )

    def ports(self) -> dict[int, str]:
        """Return every port that the stack listens on, with its purpose, which ends with the process' name."""
        ports = {self.temporal_port: "the Temporal server", self.ui_port: "the Temporal UI"}
        ports |= {self.node_port(node): self.node_name(node) for node in self.node_ids}
        if self.apache_kafka:
            ports |= {each.controller_port: f"the controller of {broker_name(each.node)}" for each in self.brokers()}
        return ports


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process: its command, log, environment, listeners and directories."""

    name: str
    command: tuple[str, ...]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    directories: tuple[Path, ...] = ()

    @property
    def command_line(self) -> str:
        """A shell command that starts the process with its environment."""
        settings = [f"{name}={value}" for name, value in sorted(self.environment.items())]
        return shlex.join((["env", *settings] if settings else []) + list(self.command))


def node_name(node: int) -> str:
    """Return the process name of a node."""
    return f"node-{node}"


def broker_name(node: int) -> str:
    """Return the process name of a broker of Apache Kafka."""
    return f"broker-{node}"


def first_spec(data: Path, kind: StackKind) -> StackSpec:
    """Return the settings of a new stack: Apache Kafka's brokers have two log directories each."""
    return StackSpec(data, kind=kind, dirs=2) if kind is StackKind.APACHE_KAFKA else StackSpec(data)


def problem(spec: StackSpec) -> str | None:
    """Return why the settings are invalid, or None."""
    if not 1 <= spec.nodes <= MAX_NODES:
        return f"--nodes must be 1 to {MAX_NODES}, not {spec.nodes}"
    if not 1 <= spec.dirs <= MAX_DIRS:
        return f"--dirs must be 1 to {MAX_DIRS}, not {spec.dirs}"
    if len(spec.ports()) != spec.nodes * (2 if spec.apache_kafka else 1) + 2:
        return f"the nodes' ports from {spec.port} on overlap Temporal's ({spec.temporal_port}, UI {spec.ui_port})"
    for port, what in spec.ports().items():
        if not 1 <= port <= 65535:
            return f"{port} is not a valid port ({what}); choose --port and --temporal-port between 1 and 65535"
    if "," in str(spec.data) or "\n" in str(spec.data):
        return f"--data {spec.data} cannot be used: log.dirs is a list separated by commas"
    if found := set("?#%") & set(str(spec.data)):
        named = " or ".join(sorted(found))
        return f"--data {spec.data} cannot be used: Temporal's database has no path with {named}; choose another folder"
    return None


def processes(spec: StackSpec, temporal_binary: str, java: Runtime | None = None) -> tuple[ProcessSpec, ...]:
    """Return the stack's processes in starting order. Apache Kafka's brokers need `java`."""
    temporal = _temporal(spec, temporal_binary)
    if not spec.apache_kafka:
        controller = _service(spec, CONTROLLER, "--bootstrap-server", spec.bootstrap)
        return (temporal, controller, *(_node(spec, node) for node in spec.node_ids))
    java = java or Runtime("java", "")
    settings = ("--command-config", str(spec.client_properties))
    each_broker = (_broker(spec, each, java) for each in spec.brokers())
    return (temporal, *each_broker, _service(spec, ORCHESTRATOR, *settings), _service(spec, HISTORY))


def lacks_quorum(spec: StackSpec, name: str, running: Collection[str]) -> bool:
    """Return whether a process is a broker of Apache Kafka that waits for others: most of the controllers must run."""
    quorum = {broker_name(each.node) for each in spec.brokers()} if spec.apache_kafka else set()
    return name in quorum and 2 * len(quorum.intersection(running)) <= len(quorum)


def stopping_order(names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return the processes in groups that are stopped one after the other: what others need goes last."""
    left = sorted(names)
    nodes = tuple(name for name in left if name not in (TEMPORAL, CONTROLLER, ORCHESTRATOR, HISTORY))
    above = tuple(name for name in left if name in (ORCHESTRATOR, HISTORY))
    ends = (tuple(each for each in left if each == name) for name in (CONTROLLER, TEMPORAL))
    return tuple(group for group in (above, nodes, *ends) if group)


def server_properties(spec: StackSpec, node: int) -> dict[str, str]:
    """Return a node's server.properties."""
    listener = f"PLAINTEXT://{spec.node_address(node)}"
    return {
        "node.id": str(node),
        "listeners": listener,
        "advertised.listeners": listener,
        "log.dirs": ",".join(str(path) for path in spec.log_dirs(node)),
        "file.delete.delay.ms": DELETE_DELAY,
    }


def broker_properties(spec: StackSpec, node: int) -> dict[str, str]:
    """Return the server.properties of a broker of Apache Kafka."""
    quorum = spec.brokers()
    return brokers.server_properties(
        quorum[node - 1],
        quorum,
        {
            **brokers.internal_topics(min(3, spec.nodes)),
            **brokers.SMALL,
            "auto.create.topics.enable": "false",
            "log.segment.delete.delay.ms": DELETE_DELAY,
        },
    )


def temporal_command(binary: str, host: str, port: int, ui_port: int, database: Path) -> tuple[str, ...]:
    """Return the command line of a Temporal dev server that listens on `host`."""
    return (
        binary, "server", "start-dev",
        "--ip", host, "--port", str(port), "--ui-port", str(ui_port),
        "--db-filename", str(database),
        "--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL",
        # By default a workflow starts ten activities a second, and a timer takes at least a second.
        "--dynamic-config-value", "history.transferProcessorMaxPollRPS=2000",
        "--dynamic-config-value", "history.timerProcessorMaxPollRPS=2000",
        "--dynamic-config-value", 'history.timerProcessorMaxTimeShift="50ms"',
        # By default the server rejects `temporal workflow pause`.
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


_FOLDERS: Mapping[str, Callable[[StackSpec], tuple[Path, ...]]] = {
    CONTROLLER: lambda spec: (spec.exports, spec.plans),
    ORCHESTRATOR: lambda spec: (spec.plans,),
    HISTORY: lambda spec: (spec.exports,),
}


def _service(spec: StackSpec, role: str, *arguments: str) -> ProcessSpec:
    """Return a process without a listener: a role of the worker program."""
    return ProcessSpec(
        role,
        (sys.executable, str(WORKER), role, "--cluster", spec.cluster, *arguments),
        spec.data / "logs" / f"{role}.log",
        environment={
            **_environment(spec),
            "REHOME_STATE_FILE": str(spec.state_file(role)),
            "REHOME_PLAN_DIR": str(spec.plans),
        },
        directories=_FOLDERS[role](spec),
    )


def _broker(spec: StackSpec, broker: Broker, java: Runtime) -> ProcessSpec:
    name = broker_name(broker.node)
    return ProcessSpec(
        name,
        brokers.command(java, broker, heap=BROKER_HEAP),
        spec.data / "logs" / f"{name}.log",
        addresses={"kafka": broker.address, "controller": broker.controller_address},
        directories=broker.log_dirs,
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
