"""Several Apache Kafka brokers (KRaft, combined mode) on loopback, with small heaps."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import javaproperties

from ops.kafka import brokers, tools
from ops.kafka.brokers import Broker, Registered, RunTool
from ops.kafka.jars import VERSION, KafkaUnavailable, Runtime, runtime
from ops.stack import ports

CLUSTER_ID = "rehomeConformanceClust"  # 22 characters, like a generated one

START_SECONDS = 90.0
STOP_SECONDS = 20.0

#: Internal topics for any number of brokers, small caches, short timeouts.
PROPERTIES = {**brokers.internal_topics(1), **brokers.SMALL}


class KafkaCluster:
    """Brokers in one folder; a context manager."""

    def __init__(
        self,
        folder: Path,
        *,
        log_dirs: Mapping[int, int],
        properties: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
        run_tool: RunTool = tools.run,
        quick: bool = True,
        base: Mapping[str, str] = PROPERTIES,
        prefix: Sequence[str] = (),
        version: str = VERSION,
    ) -> None:
        """`log_dirs`: the number of each broker's log directories, by its id.

        `properties` override those of `base` in every server.properties; `racks`: broker.rack by broker id; `run_tool`
        formats the folders of `VERSION`, other versions are formatted by their own tool. `quick`: JVM options for a
        fast start and little memory; without it a broker has Kafka's own, for benchmarks. `prefix`: a command that
        becomes the broker's, which is appended to it.
        """
        self._prefix = tuple(prefix)
        self.folder, self._quick = folder, quick
        self.nodes = tuple(log_dirs)
        # Not ephemeral ports: a client could take the port of a broker that is down.
        first = ports.some_block(2 * len(self.nodes))
        racks = racks or {}
        self._brokers = {
            node: Broker(
                node,
                first + index,
                first + len(self.nodes) + index,
                tuple(folder / f"broker-{node}" / f"disk-{i + 1}" for i in range(count)),
                folder / f"broker-{node}" / "server.properties",
                racks.get(node, ""),
            )
            for index, (node, count) in enumerate(log_dirs.items())
        }
        self.ports = {node: broker.port for node, broker in self._brokers.items()}
        self.log_dirs = {node: list(broker.log_dirs) for node, broker in self._brokers.items()}
        self._properties = {**base, **(properties or {})}
        self._version = version
        self._run_tool = run_tool
        self._java: Runtime | None = None
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(self.address(node) for node in self.nodes)

    @property
    def controllers(self) -> str:
        """The controllers' listeners as host:port, separated by commas."""
        return ",".join(broker.controller_address for broker in self._brokers.values())

    def address(self, node: int) -> str:
        """Return a broker's listener as host:port."""
        return self._brokers[node].address

    def __enter__(self) -> KafkaCluster:
        self._java = runtime(self._version)
        if self._version != VERSION:  # A tool formats for its own metadata.version.
            self._run_tool = functools.partial(tools.run, java=self._java)
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
        """Stop all brokers concurrently."""
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
        """Kill a broker (SIGKILL)."""
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    def stop(self, node: int) -> None:
        """Stop a broker by SIGTERM, after `STOP_SECONDS` by SIGKILL."""
        process = self._processes.pop(node)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        process.kill()
        process.wait()

    def start(self, node: int) -> None:
        """Start a stopped broker, and wait until it accepts connections."""
        self.launch(node)
        self.wait(node)

    def running(self, node: int) -> bool:
        """Return whether the broker's process is running."""
        process = self._processes.get(node)
        return process is not None and process.poll() is None

    def pid(self, node: int) -> int:
        """Return the pid of a running broker."""
        return self._processes[node].pid

    def log(self, node: int) -> Path:
        """Return the file of the broker's standard output."""
        return self.folder / f"broker-{node}.log"

    def _format(self, node: int) -> None:
        broker = self._brokers[node]
        for directory in broker.log_dirs:
            directory.mkdir(parents=True, exist_ok=True)
        values = brokers.server_properties(broker, list(self._brokers.values()), self._properties)
        broker.config.write_text(javaproperties.dumps(values, timestamp=False))
        brokers.format_storage(broker, CLUSTER_ID, self._run_tool)

    def launch(self, node: int) -> None:
        """Start a broker's process without waiting until it is ready."""
        command = brokers.command(self._java or runtime(self._version), self._brokers[node], quick=self._quick)
        with self.log(node).open("ab") as log:
            self._processes[node] = subprocess.Popen(
                (*self._prefix, *command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=tools.die_with_parent,
            )

    def wait(self, node: int) -> None:
        """Wait until the broker responds with all running brokers. Raises KafkaUnavailable with the end of its log."""
        until = time.monotonic() + START_SECONDS
        wanted = {n for n in self.nodes if self.running(n)}
        registered = Registered(self.address(node))
        while time.monotonic() < until and self.running(node):
            if wanted <= registered.read():
                return
            time.sleep(0.1)
        end = self.log(node).read_text(errors="replace")[-1000:]
        raise KafkaUnavailable(f"broker {node} of Apache Kafka did not start: {end}")
