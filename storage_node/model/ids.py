"""Ids of partitions, and the ids that Kafka reserves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Kafka's reserved directory ids (KIP-858) that say "not known" and "lost".
UNASSIGNED: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
MIGRATING: Final = "AAAAAAAAAAAAAAAAAAAAAA"
LOST: Final = "AAAAAAAAAAAAAAAAAAAAAg"

#: The leader of a partition without one.
NO_LEADER: Final = -1


@dataclass(frozen=True, order=True, slots=True)
class TopicPartition:
    """A partition of a topic; sorts by topic, then partition, which is the order in which moves are chosen."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
