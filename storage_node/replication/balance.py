"""auto.leader.rebalance.enable: a node periodically requests the leadership of the partitions that prefer it.

While a node is down, other nodes lead its partitions. Kafka's controller corrects that every
leader.imbalance.check.interval.seconds; here each node does, with one request for all of its partitions.
"""

from __future__ import annotations

import logging
import time

from storage_node.asking import ASK_TIMEOUT
from storage_node.config.table import BROKER
from storage_node.config.values import BrokerValues
from storage_node.model.ids import NO_LEADER, TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import PartitionImage
from storage_node.replication.host import BalanceHost

log = logging.getLogger(__name__)

ENABLED = "auto.leader.rebalance.enable"
INTERVAL = "leader.imbalance.check.interval.seconds"


def to_lead_again(image: ClusterImage, node: int) -> list[TopicPartition]:
    """Return the partitions that prefer this node and have it in the ISR, but that another node leads.

    Partitions under reassignment are excluded: their leader is determined when the reassignment ends.
    """
    return [
        TopicPartition(topic.name, row.index)
        for topic in image.topics.values()
        for row in topic.partitions
        if _should_lead(row, node)
    ]


def _should_lead(row: PartitionImage, node: int) -> bool:
    """Whether the node is preferred for the partition and in sync with another leader, in no reassignment."""
    elsewhere = row.leader not in (node, NO_LEADER) and node in row.isr
    return row.replicas[:1] == (node,) and elsewhere and not row.assignment.reassigning


class LeaderBalance:
    """The periodic check of a node's preferred partitions."""

    def __init__(self, node: BalanceHost) -> None:
        values = BrokerValues({}, {}, node.config.values)
        self._node = node
        enabled = values.effective().get(ENABLED, BROKER[ENABLED].default) == "true"
        self.interval = float(values.number(INTERVAL)) if enabled else None
        """Seconds between two checks, None if disabled."""
        self._due = time.monotonic() + (self.interval or 0)

    async def look(self) -> None:
        """Request the leadership of the preferred partitions if a check is due. Raises RequestTimedOut."""
        controller = self._node.controller
        if self.interval is None or controller is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self.interval
        partitions = to_lead_again(self._node.metadata.image, self._node.id)
        if partitions:
            log.info("requesting the leadership of %d partitions that prefer this node", len(partitions))
            await controller.elect_leaders(partitions, unclean=False, timeout=ASK_TIMEOUT)
