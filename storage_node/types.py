"""Values that every part of the storage node shares."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class TopicPartition:
    """A partition of a topic; sorts by topic, then partition, which is the order in which moves are chosen."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
