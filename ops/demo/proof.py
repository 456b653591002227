"""The demo's clients as evidence for the checks of the torture: acknowledged records against the final read.

Values are unique, so the checks find every kind of damage: an acknowledged record that is lost or has another offset, a
duplicate, a gap in the offsets, a record that no client sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ops.torture.checks.facts import Evidence, FinalRead, TopicFact
from ops.torture.checks.table import check
from ops.torture.history import ASSIGN, INFO, OK, POLL, SEND, Event

TOPIC = "orders"


@dataclass(frozen=True, slots=True)
class Record:
    """A record with its partition, offset and unique value."""

    partition: int
    offset: int
    value: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The counts of the compared records, and a sentence for each damage; sound without any."""

    acknowledged: int
    read: int
    consumed: int
    problems: tuple[str, ...]

    @property
    def sound(self) -> bool:
        return not self.problems


def judge(
    acknowledged: Iterable[Record],
    read: Iterable[Record],
    consumed: Iterable[Record],
    *,
    sent: Collection[str],
    ends: Mapping[int, int],
) -> Verdict:
    """Compare the acknowledged records with the final read and with the live consumer's records.

    `acknowledged` is in the order of the acknowledgements; `sent` are the values of all sends, acknowledged or not;
    `ends` are the end offsets of the partitions before the final read.
    """
    acks, final, live = list(acknowledged), list(read), list(consumed)
    known = {record.value for record in acks}
    history = [_sent(record.value, number, OK, record.partition, record.offset) for number, record in enumerate(acks)]
    history += [_sent(value, len(acks), INFO, 0, -1) for value in sent if value not in known]
    begun: set[int] = set()
    for record in live:
        if record.partition not in begun:
            begun.add(record.partition)
            history.append(Event("consumer", ASSIGN, TOPIC, record.partition, OK, 0, 0, offset=record.offset))
        rows = ((record.offset, record.value),)
        history.append(Event("consumer", POLL, TOPIC, record.partition, OK, 0, 0, records=rows))
    found: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for record in final:
        found[record.partition].append((record.offset, record.value))
    evidence = Evidence(
        history=history,
        topics={TOPIC: TopicFact(TOPIC, TOPIC, len(ends))},
        final={(TOPIC, number): FinalRead(0, end, tuple(found[number])) for number, end in ends.items()},
    )
    problems = tuple(finding.sentence for finding in check(evidence) if finding.check in RECORDS)
    return Verdict(len(acks), len(final), len(live), problems)


#: The checks that need only clients' operations.
RECORDS = ("C1", "C2", "C3", "C4", "C5")


def _sent(value: str, number: int, kind: str, partition: int, offset: int) -> Event:
    # The loading and the live producer are two, each with an order of its own.
    return Event(value.split("-", 1)[0], SEND, TOPIC, partition, kind, number, number, value=value, offset=offset)
