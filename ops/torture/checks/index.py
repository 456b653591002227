"""Views of the evidence that several checks share, computed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property

from ops.torture.checks.facts import Evidence, Place
from ops.torture.history import ASSIGN, DELETE, FAIL, MARKS, OK, POLL, SEND, SESSION, Event

#: The number of findings reported of one kind.
EXAMPLES = 5


class Index:
    """The evidence, and views of it."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.sends: list[Event] = []
        self.marks: list[Event] = []
        self.deletes: list[Event] = []
        self.reads: dict[tuple[str, Place], list[Event]] = defaultdict(list)
        """Polls and assignments of one consumer of one partition, in order."""
        self.sessions: dict[str, list[int]] = defaultdict(list)
        """When each idempotent producer began a new epoch."""
        for event in evidence.history:
            if event.op == SEND:
                self.sends.append(event)
            elif event.op in (POLL, ASSIGN):
                self.reads[event.process, event.place].append(event)
            elif event.op == MARKS and event.type == OK:
                self.marks.append(event)
            elif event.op == DELETE:
                self.deletes.append(event)
            elif event.op == SESSION:
                self.sessions[event.process].append(event.completed)

    @cached_property
    def acks(self) -> list[Event]:
        """Acknowledged sends whose offset is known."""
        return [send for send in self.sends if send.type == OK and send.offset >= 0]

    @cached_property
    def unplaced(self) -> list[tuple[Event, int]]:
        """Acknowledged sends without an offset, each with the producer's highest offset acknowledged before it."""
        highest: dict[tuple[str, Place], int] = defaultdict(int)
        found = []
        for send in sorted((send for send in self.sends if send.type == OK), key=lambda send: send.invoked):
            key = send.process, send.place
            if send.offset < 0:
                found.append((send, highest[key]))
            highest[key] = max(highest[key], send.offset)
        return found

    def polled(self) -> Iterator[tuple[Event, int, str]]:
        """Yield (poll, offset, value) of every consumed record."""
        for events in self.reads.values():
            for event in events:
                if event.op == POLL and event.type == OK:
                    for offset, value in event.records:
                        yield event, offset, value

    @cached_property
    def values(self) -> dict[Place, dict[int, str]]:
        """The final read by offset."""
        return {place: dict(read.records) for place, read in self.evidence.final.items()}

    @cached_property
    def known(self) -> dict[Place, set[int]]:
        """The offsets of acknowledged and consumed records."""
        known: dict[Place, set[int]] = defaultdict(set)
        for ack in self.acks:
            known[ack.place].add(ack.offset)
        for event, offset, _ in self.polled():
            known[event.place].add(offset)
        return known

    def floor(self, place: Place, before: int | None = None) -> int:
        """Return the highest offset of a DeleteRecords request, sent by `before` if given, that was not rejected."""
        offsets = (
            each.offset
            for each in self.deletes
            if each.place == place and each.type != FAIL and (before is None or each.invoked <= before)
        )
        return max(offsets, default=0)

    def retains(self, place: Place) -> bool:
        """Return whether retention may move the log start of this partition."""
        topic = self.evidence.topics.get(place[0])
        return topic is not None and topic.retention_bytes is not None

    def replicated(self, place: Place) -> bool:
        """Return whether the partition has several replicas: a new leader may then be behind the previous one."""
        topics = self.evidence.topics.values()
        return any(topic.replicas > 1 for topic in topics if place[0] in (topic.label, topic.name))

    def gone(self, place: Place) -> bool:
        """Return whether the topic was deleted, so that none of its records need be left."""
        topic = self.evidence.topics.get(place[0])
        return topic is not None and topic.deleted

    def names(self) -> dict[str, Place]:
        """Return the folder name of every partition that must exist at the end."""
        return {
            f"{topic.name}-{number}": (topic.label, number)
            for topic in self.evidence.topics.values()
            if not topic.deleted
            for number in range(topic.partitions)
        }


def told(place: Place) -> str:
    """Return a partition's name for findings."""
    return f"{place[0]}-{place[1]}"


def seconds(ns: int) -> str:
    """Format a monotonic time as in the nemesis' log."""
    return f"{ns / 1e9:.3f} s"


def few(found: Iterable[str], limit: int = EXAMPLES) -> list[str]:
    """Return the first `limit` findings, and the number of the others."""
    sentences = list(found)
    if len(sentences) <= limit:
        return sentences
    return [*sentences[:limit], f"... and {len(sentences) - limit} more of this kind"]
