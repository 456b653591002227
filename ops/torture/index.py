"""What several checks need of the same evidence, worked out once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property

from ops.torture.facts import Evidence, Place
from ops.torture.history import ASSIGN, DELETE, FAIL, MARKS, OK, POLL, SEND, SESSION, Event

#: Examples that are told of one kind of damage in one place.
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
        """Acknowledged sends without an offset, and the highest that the same producer was told of one before it."""
        highest: dict[tuple[str, Place], int] = defaultdict(int)
        found = []
        for send in sorted((send for send in self.sends if send.type == OK), key=lambda send: send.invoked):
            key = send.process, send.place
            if send.offset < 0:
                found.append((send, highest[key]))
            highest[key] = max(highest[key], send.offset)
        return found

    def polled(self) -> Iterator[tuple[Event, int, str]]:
        """(poll, offset, value) of every record that any consumer was given."""
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
        """Offsets that an acknowledgement or a poll spoke of."""
        known: dict[Place, set[int]] = defaultdict(set)
        for ack in self.acks:
            known[ack.place].add(ack.offset)
        for event, offset, _ in self.polled():
            known[event.place].add(offset)
        return known

    def floor(self, place: Place, before: int | None = None) -> int:
        """The highest log start that was asked for (DeleteRecords), whatever came of it, before a time if given."""
        asked = (
            each.offset
            for each in self.deletes
            if each.place == place and each.type != FAIL and (before is None or each.invoked <= before)
        )
        return max(asked, default=0)

    def retains(self, place: Place) -> bool:
        """Whether retention may move the log start of this partition."""
        topic = self.evidence.topics.get(place[0])
        return topic is not None and topic.retention_bytes is not None

    def replicated(self, place: Place) -> bool:
        """Whether the partition has more than one replica, so that a leader may be followed by one that knows less."""
        topics = self.evidence.topics.values()
        return any(topic.replicas > 1 for topic in topics if place[0] in (topic.label, topic.name))

    def gone(self, place: Place) -> bool:
        """Whether the topic was deleted, so that nothing of it need be there."""
        topic = self.evidence.topics.get(place[0])
        return topic is not None and topic.deleted

    def names(self) -> dict[str, Place]:
        """The folder's name of every replica that is to be there at the end."""
        return {
            f"{topic.name}-{number}": (topic.label, number)
            for topic in self.evidence.topics.values()
            if not topic.deleted
            for number in range(topic.partitions)
        }


def told(place: Place) -> str:
    """A partition for people."""
    return f"{place[0]}-{place[1]}"


def seconds(ns: int) -> str:
    """A monotonic time for people, as in the nemesis' log."""
    return f"{ns / 1e9:.3f} s"


def few(found: Iterable[str], limit: int = EXAMPLES) -> list[str]:
    """The first findings, and how many more there are."""
    sentences = list(found)
    if len(sentences) <= limit:
        return sentences
    return [*sentences[:limit], f"... and {len(sentences) - limit} more of this kind"]
