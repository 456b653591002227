"""Apply the roles of an image to the replicas that are served: leader or follower, which needs only memory; and the
node's limit on moves, which the image may change.
"""

from __future__ import annotations

from storage_node.config.changes import move_rate
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import PartitionImage
from storage_node.partitions.partition import Partition
from storage_node.publisher.host import RolesHost


class Roles:
    """The roles of this node's replicas by the newest image."""

    def __init__(self, node: RolesHost) -> None:
        self._node = node
        self._cluster_generation = 0
        """The cluster generation of the newest image."""
        self.registered = False
        """Whether the controller has registered this incarnation, so that it may lead partitions with followers."""

    def take(self, image: ClusterImage, before: ClusterImage | None) -> None:
        """Apply the image's roles to the replicas that are served, and its leaders to the fetchers."""
        node = self._node
        self._cluster_generation = image.cluster_generation
        registered, self.registered = self.registered, self._may_lead(image)
        node.alter_partition_manager.brokers_are(image)
        for served in node.replicas.served.values():
            if served.topic_id and served.topic_id in image.gone:
                served.delete()  # it must take no records for a newer topic of its name
        known = before.topics if before is not None and registered == self.registered else {}
        for topic in image.topics.values():
            if known.get(topic.name) is topic:
                continue
            for row in topic.partitions:
                partition = node.replicas.served.get(TopicPartition(topic.name, row.index))
                if partition is not None and partition.topic_id in ("", topic.id):
                    # Also where the metadata has reassigned it: this node must not continue to lead it.
                    self.assign(partition, topic.id, row)
        broker = node.broker_values(image)
        node.engine.set_node_rate(move_rate(broker))
        node.listener.limit(broker.number("max.connections"), broker.number("max.connections.per.ip"))
        node.replica_fetchers.reconcile(image)

    def assign(self, partition: Partition, topic_id: str, row: PartitionImage) -> None:
        """Give a replica the role that its row has for this node."""
        # A start that the controller has not registered does not know the present leader: its disks may be outdated.
        node = self._node.id
        leads = row.leader == node and (len(row.replicas) == 1 or self.registered)
        partition.host = self._node.alter_partition_manager
        brokers = self._node.alter_partition_manager.brokers
        partition.assign(row, topic_id, node, brokers, leads=leads, cluster_generation=self._cluster_generation)

    def _may_lead(self, image: ClusterImage) -> bool:
        node = self._node
        row = image.nodes.get(node.id)
        return node.controller is None or (row is not None and row.incarnation == node.incarnation)
