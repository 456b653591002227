"""auto.leader.rebalance.enable: a node asks from time to time to lead again what it should.

After a node was away others lead its partitions. Kafka's controller looks after that every
leader.imbalance.check.interval.seconds; here each node does for itself, with one request for all of its partitions.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from storage_node.asking import ASK_TIMEOUT
from storage_node.config_table import BROKER
from storage_node.config_values import BrokerValues
from storage_node.metadata import ClusterImage
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

ENABLED = "auto.leader.rebalance.enable"
INTERVAL = "leader.imbalance.check.interval.seconds"


def to_lead_again(image: ClusterImage, node: int) -> list[TopicPartition]:
    """The partitions that a node is preferred for and in sync with, and that another one leads.

    One that is being reassigned is left alone: who leads it is settled when that is done.
    """
    return [
        TopicPartition(topic.name, row.partition)
        for topic in image.topics.values()
        for row in topic.partitions.values()
        if row.replicas[:1] == (node,) and row.leader not in (node, -1) and node in row.isr and not row.original
    ]


class LeaderBalance:
    """When the next look is due, and what is done then."""

    def __init__(self, node: Node) -> None:
        values = BrokerValues({}, {}, node.config.values)
        self._node = node
        enabled = values.effective().get(ENABLED, BROKER[ENABLED].default) == "true"
        self.interval = float(values.number(INTERVAL)) if enabled else None
        """Seconds between two looks, None for never."""
        self._due = time.monotonic() + (self.interval or 0)

    async def look(self) -> None:
        """Ask for what this node should lead, if it is time. Raises RequestTimedOut."""
        controller = self._node.controller
        if self.interval is None or controller is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self.interval
        partitions = to_lead_again(self._node.metadata.image, self._node.id)
        if partitions:
            log.info("asking to lead %d partitions again", len(partitions))
            await controller.elect_leaders(partitions, unclean=False, timeout=ASK_TIMEOUT)
