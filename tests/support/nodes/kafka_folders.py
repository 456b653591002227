"""A node of ours on folders that Apache Kafka's broker wrote; tests/golden/kafka-folders holds two of them.

They are of one broker of Apache Kafka 4.3.1 (KRaft, combined mode), stopped cleanly: `orders` with two partitions,
fifty records in each, ten per codec.
"""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from storage_node.config.node_config import NodeConfig
from storage_node.directories import partition_metadata
from storage_node.model.assignment import Assignment
from storage_node.model.metadata import PartitionImage, TopicImage
from tests.support.nodes.local_controller import LocalController

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-folders"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def controller_that_knows(topic: str, config: NodeConfig, cluster: str) -> LocalController:
    """A controller whose metadata has the topic by the id that its folders name."""
    folders = {
        int(folder.name.rpartition("-")[2]): folder
        for path in config.log_dirs
        for folder in Path(path).glob(f"{topic}-*")
    }
    (topic_id,) = {partition_metadata.read(folder, directory=folder.parent) for folder in folders.values()}
    assert topic_id is not None
    node = config.node_id
    rows = tuple(
        PartitionImage(
            index, Assignment((node,)), directories=("",), generations=(0,), isr=(node,), leader=node, leader_epoch=5
        )
        for index in sorted(folders)
    )
    controller = LocalController(cluster)
    controller.change(topics={topic: TopicImage(topic, topic_id, {}, rows)})
    return controller


def read(bootstrap: str, topic: str, partitions: int, count: int) -> list[bytes]:
    """The values of all records, in the order of their offsets within a partition; each has the header `h` = `v`."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "check.crcs": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: list[bytes] = []
    try:
        while len(found) < count:
            messages = consumer.consume(count - len(found), timeout=20)
            assert messages, f"{len(found)} of {count} records"
            for message in messages:
                assert message.error() is None, message.error()
                assert message.headers() == [("h", b"v")]
                found.append(message.value())
        assert not consumer.consume(1, timeout=0.3)
    finally:
        consumer.close()
    return found
