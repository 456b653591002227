"""Several Apache Kafka brokers (KRaft, each controller and broker in one process) on loopback, with small heaps."""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from ops.kafka import tools
from ops.kafka.broker import KafkaUnavailable, ensure_libs, java_command
from ops.kafka.tools import Ran
from ops.stack import ports

CLUSTER_ID = "rehomeConformanceClust"  # 22 characters, as a cluster id of Kafka's own

HEAP = "400m"
START_SECONDS = 90.0
STOP_SECONDS = 20.0

#: Of `__consumer_offsets`.
OFFSETS_PARTITIONS = 6

#: Replication factors of internal topics that suit any number of brokers, small caches, and short waits.
PROPERTIES = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.initial.task.delay.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1500",
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    "controlled.shutdown.enable": "false",
}

#: Runs a tool to its end: `ops.kafka.tools.run`, or the same of `WarmTools`.
RunTool = Callable[..., Ran]


class KafkaCluster:
    """Brokers below one folder; use as a context manager."""

    def __init__(
        self,
        folder: Path,
        *,
        log_dirs: Mapping[int, int],
        properties: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
        run_tool: RunTool = tools.run,
        quick: bool = True,
    ) -> None:
        """`log_dirs`: how many log directories each broker has, by its id.

        `properties` go above `PROPERTIES` in every server.properties; `racks`: broker.rack of some brokers; `run_tool`
        formats the folders. `quick`: ready soon and small; without it a broker runs as Kafka starts one, for what is
        measured.
        """
        self.folder, self._quick = folder, quick
        self.nodes = tuple(log_dirs)
        # Not ports that the system gives to clients: a broker that is down would lose its own to one of them.
        first = ports.free_block(2 * len(self.nodes), start=random.randrange(20000, 24000))
        self.ports = {node: first + index for index, node in enumerate(self.nodes)}
        self.log_dirs = {
            node: [folder / f"broker-{node}" / f"disk-{i + 1}" for i in range(count)]
            for node, count in log_dirs.items()
        }
        self._controllers = {node: port + len(self.nodes) for node, port in self.ports.items()}
        self._properties = {**PROPERTIES, **(properties or {})}
        self._racks = dict(racks or {})
        self._run_tool = run_tool
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(self.address(node) for node in self.nodes)

    @property
    def controllers(self) -> str:
        """host:port of the controllers' listeners, with commas."""
        return ",".join(f"127.0.0.1:{port}" for port in self._controllers.values())

    def address(self, node: int) -> str:
        """host:port of a broker."""
        return f"127.0.0.1:{self.ports[node]}"

    def __enter__(self) -> KafkaCluster:
        ensure_libs()
        try:
            for node in self.nodes:
                self._format(node)
                self.launch(node)
            for node in self.nodes:
                self.wait(node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all brokers, at once."""
        processes, self._processes = self._processes, {}
        for process in processes.values():
            process.terminate()
        until = time.monotonic() + STOP_SECONDS
        for process in processes.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill(self, node: int) -> None:
        """SIGKILL, as a power failure would."""
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    def stop(self, node: int) -> None:
        """SIGTERM, and SIGKILL if that does not help."""
        process = self._processes.pop(node)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        process.kill()
        process.wait()

    def start(self, node: int) -> None:
        """Start a broker that was ended, and wait until it serves."""
        self.launch(node)
        self.wait(node)

    def running(self, node: int) -> bool:
        """Whether the broker's process is there."""
        process = self._processes.get(node)
        return process is not None and process.poll() is None

    def pid(self, node: int) -> int:
        """The process of a broker that runs."""
        return self._processes[node].pid

    def log(self, node: int) -> Path:
        """What the broker writes to its standard output."""
        return self.folder / f"broker-{node}.log"

    def _config(self, node: int) -> Path:
        return self.folder / f"broker-{node}" / "server.properties"

    def _format(self, node: int) -> None:
        for directory in self.log_dirs[node]:
            directory.mkdir(parents=True, exist_ok=True)
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in self._controllers.items())
        values = {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{self.address(node)},CONTROLLER://127.0.0.1:{self._controllers[node]}",
            "advertised.listeners": f"PLAINTEXT://{self.address(node)}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": ",".join(map(str, self.log_dirs[node])),
            **self._properties,
            **({"broker.rack": self._racks[node]} if node in self._racks else {}),
        }
        self._config(node).write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        done = self._run_tool("kafka-storage", "format", "-t", CLUSTER_ID, "-c", str(self._config(node)))
        if done.code:
            raise KafkaUnavailable(f"Apache Kafka's storage could not be formatted: {(done.out + done.err)[-500:]}")

    def launch(self, node: int) -> None:
        """Start a broker's process, without waiting until it serves."""
        command = java_command("kafka.Kafka", str(self._config(node)), heap=HEAP if self._quick else "1g")
        if self._quick:
            quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
            command = [command[0], *quick, *(part for part in command[1:] if part != "-XX:+UseG1GC")]
        with self.log(node).open("ab") as log:
            self._processes[node] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=tools.die_with_parent,
            )

    def wait(self, node: int) -> None:
        """Until the broker answers and knows all brokers that run. Raises KafkaUnavailable with its last words."""
        until = time.monotonic() + START_SECONDS
        wanted = {n for n in self.nodes if self.running(n)}
        client = AdminClient({"bootstrap.servers": self.address(node), "log_level": 0})
        while time.monotonic() < until and self.running(node):
            try:
                if wanted <= set(client.list_topics(timeout=1).brokers):
                    return
            except KafkaException:
                pass
            time.sleep(0.1)
        words = self.log(node).read_text(errors="replace")[-1000:]
        raise KafkaUnavailable(f"broker {node} of Apache Kafka did not start: {words}")
