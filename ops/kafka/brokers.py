"""How a broker of Apache Kafka is configured, formatted and started, for the stack, tests and benchmarks alike.

Each broker is its own controller (KRaft, combined mode), and all brokers of a cluster are voters of its quorum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.kafka import tools
from ops.kafka.jars import QUICK, SERVER, KafkaUnavailable, Runtime
from ops.kafka.tools import Ran

HOST = "127.0.0.1"

#: Heap of a broker that starts fast and takes little memory, and of one with the JVM options of Kafka's scripts.
QUICK_HEAP = "400m"
SERVER_HEAP = "1g"

#: The partitions of `__consumer_offsets` in `SMALL`.
OFFSETS_PARTITIONS = 6

#: Small caches, few threads, short timeouts: for a cluster on one machine.
SMALL = {
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "transaction.state.log.num.partitions": "3",
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
    # All brokers are stopped at once: one that waits for the controllers, which are stopping too, would wait long.
    "controlled.shutdown.enable": "false",
}

#: Runs a tool until it exits: `ops.kafka.tools.run` or `WarmTools.run`.
RunTool = Callable[..., Ran]


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker on loopback: its id, the ports of its two listeners, its folders and its server.properties."""

    node: int
    port: int
    controller_port: int
    log_dirs: tuple[Path, ...]
    config: Path
    rack: str = ""

    @property
    def address(self) -> str:
        """The listener of the clients as host:port."""
        return f"{HOST}:{self.port}"

    @property
    def controller_address(self) -> str:
        """The controller's listener as host:port."""
        return f"{HOST}:{self.controller_port}"


def internal_topics(replicas: int) -> dict[str, str]:
    """Return the properties of Kafka's internal topics for so many replicas; one less may be out of sync."""
    factor, in_sync = str(replicas), str(max(1, replicas - 1))
    return {
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


def server_properties(broker: Broker, quorum: Sequence[Broker], properties: Mapping[str, str]) -> dict[str, str]:
    """Return a broker's server.properties; `quorum`: all brokers of the cluster; `properties` override the rest."""
    voters = ",".join(f"{each.node}@{each.controller_address}" for each in quorum)
    return {
        "process.roles": "broker,controller",
        "node.id": str(broker.node),
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{broker.address},CONTROLLER://{broker.controller_address}",
        "advertised.listeners": f"PLAINTEXT://{broker.address}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": ",".join(map(str, broker.log_dirs)),
        **properties,
        **({"broker.rack": broker.rack} if broker.rack else {}),
    }


def format_storage(broker: Broker, cluster_id: str, run_tool: RunTool = tools.run) -> None:
    """Format a broker's log directories by its server.properties, with Kafka's own tool. Raises KafkaUnavailable.

    Directories that are formatted already keep their ids (`--ignore-formatted`).
    """
    done = run_tool("kafka-storage", "format", "-g", "-t", cluster_id, "-c", str(broker.config))
    if done.code:
        raise KafkaUnavailable(f"cannot format the storage of broker {broker.node}: {(done.out + done.err)[-500:]}")


def command(runtime: Runtime, broker: Broker, *, quick: bool = True, heap: str = "") -> tuple[str, ...]:
    """Return the command line of a broker; `quick`: for a fast start and little memory."""
    return runtime.command(
        "kafka.Kafka",
        str(broker.config),
        heap=heap or (QUICK_HEAP if quick else SERVER_HEAP),
        options=QUICK if quick else SERVER,
    )


class Registered:
    """Reads which brokers a broker lists as registered and alive (Metadata), repeatedly over one connection."""

    def __init__(self, address: str) -> None:
        from confluent_kafka.admin import AdminClient

        self._client = AdminClient({"bootstrap.servers": address, "log_level": 0})

    def read(self, timeout: float = 1.0) -> set[int]:
        """Return their ids; none if the broker does not respond within `timeout` seconds."""
        from confluent_kafka import KafkaException

        try:
            return set(self._client.list_topics(timeout=timeout).brokers)
        except KafkaException:
            return set()
