"""A node's folders in turn under Apache Kafka's broker and under ours: the same records, and nothing in the way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ops.cli import main as cli
from ops.kafka import tools
from ops.kafka.cluster import CLUSTER_ID, KafkaCluster
from ops.kafka.tools import Ran
from storage_node.config.node_config import NodeConfig
from storage_node.directories.errors import StartRefused
from storage_node.directories.meta import properties as meta_properties
from storage_node.node import Node
from tests.conformance.clusters import KINDS, REHOME
from tests.conformance.differences import DIFFERENCES
from tests.support.nodes.kafka_folders import CODECS, controller_that_knows, read
from tests.support.programs.kafka import require_kafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow_conformance]

TOPIC = "orders"
PARTITIONS = 4


def formatted_by_us(tool: str, *arguments: str) -> Ran:
    """What formats the broker's folders instead of Kafka's own tool."""
    assert tool == "kafka-storage"
    return Ran(cli.run(["storage", *arguments, "--meta-version", "1"]), "", "")


def write(bootstrap: str, life: int) -> list[bytes]:
    """Records of every codec into every partition."""
    sent = []
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "acks": "all"})
        for number in range(100):
            value = f"{life} {codec} {number} {'x' * 200}".encode()
            sent.append(value)
            producer.produce(TOPIC, value, key=codec.encode(), partition=number % PARTITIONS, headers=[("h", b"v")])
        assert producer.flush(30) == 0
    return sent


def ids(paths: Sequence[Path]) -> list[tuple[int, str | None]]:
    found = [meta_properties.read(path) for path in paths]
    return [(each.version, each.directory_id) for each in found if each is not None]


@pytest.mark.feature("858-04", "858-07")
@pytest.mark.parametrize("formatter", ["Kafka's tool", "our command"])
def test_from_kafka_to_us_and_back(tmp_path: Path, formatter: str) -> None:
    require_kafka()
    more = {"run_tool": formatted_by_us} if formatter == "our command" else {}
    brokers = KafkaCluster(tmp_path / "broker", log_dirs={1: 2}, **more)  # type: ignore[arg-type]
    dirs, config_file = brokers.log_dirs[1], tmp_path / "broker" / "broker-1" / "server.properties"
    with brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        sent = write(brokers.bootstrap, 1)
        assert sorted(read(brokers.bootstrap, TOPIC, PARTITIONS, len(sent))) == sorted(sent)
        brokers.stop(1)
        before = ids(dirs)
        assert [version for version, _ in before] == [1, 1]
        # Our node on Kafka's folders, by Kafka's own configuration.
        config = NodeConfig.load(config_file)
        controller = controller_that_knows(TOPIC, config, CLUSTER_ID)
        node = Node(config, controller)
        node.start()
        try:
            controller.attach(node)
            assert sorted(read(brokers.bootstrap, TOPIC, PARTITIONS, len(sent))) == sorted(sent)
            sent += write(brokers.bootstrap, 2)
        finally:
            controller.detach(node)
            node.stop()
            controller.close()
        assert ids(dirs) == [(2, id_) for _, id_ in before]
        assert (dirs[0] / "__cluster_metadata-0").is_dir()
        # And back: what our node appended is there for Kafka's broker.
        arguments = ["format", "-t", CLUSTER_ID, "-c", str(config_file), "-g", "--meta-version", "1"]
        assert cli.run(["storage", *arguments]) == 0
        assert ids(dirs) == before
        brokers.start(1)
        assert sorted(read(brokers.bootstrap, TOPIC, PARTITIONS, len(sent))) == sorted(sent)
        sent += write(brokers.bootstrap, 3)
        assert sorted(read(brokers.bootstrap, TOPIC, PARTITIONS, len(sent))) == sorted(sent)


class Kind:
    """Starts one kind of node on a configuration, to its end or until it serves."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def differs(self, id_: str) -> bool:
        """Whether this kind is the one that differs on purpose."""
        assert id_ in DIFFERENCES
        return self.kind == REHOME

    def refused(self, config: Path, says: str) -> bool:
        """Whether a start is refused; ours `says` why (Kafka's reason is in a log that nobody writes here)."""
        if self.kind != REHOME:
            return tools.run("kafka.Kafka", str(config)).code == 1
        node = Node(NodeConfig.load(config), None)
        try:
            node.start()
        except StartRefused as refused:
            assert says in str(refused)
            return True
        node.stop()
        return False


@pytest.mark.feature("858-06", "858-11", "858-14")
@pytest.mark.conformance(125, 126)
@pytest.mark.parametrize("kind", KINDS)
def test_start_on_folders_that_are_not_as_they_should_be(tmp_path: Path, kind: str) -> None:
    require_kafka()
    started = Kind(kind)
    one, two = tmp_path / "d1", tmp_path / "d2"
    config = tmp_path / "server.properties"
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@127.0.0.1:19093",
        "listeners": "PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": f"{one},{two}",
    }

    def write_config(**more: str) -> None:
        lines = {**values, **{key.replace("_", "."): value for key, value in more.items()}}
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))

    write_config()
    assert started.refused(config, f"{two}: the directory does not exist; format it with: rehome storage format")
    write_config(log_dirs=str(one))
    assert cli.run(["storage", "format", "-c", str(config), "-t", CLUSTER_ID, "--meta-version", "1"]) == 0
    write_config(log_dirs=str(one), node_id="2", controller_quorum_voters="2@127.0.0.1:19093")
    says = f"{one}: Stored node id 1 doesn't match previous node id 2 in {one}/meta.properties"
    assert started.refused(config, says)
    write_config()
    if started.differs("new-directories-at-start"):
        assert not started.refused(config, "") and [version for version, _ in ids([one, two])] == [2, 2]
    else:
        assert started.refused(config, "") and not two.exists()
