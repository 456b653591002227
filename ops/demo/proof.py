"""The demo's clients as evidence for the checks of the torture: what was acknowledged against what is read at the end.

A value is unique: nobody sends the same twice. So every kind of damage shows: an acknowledged record that is gone or
has another offset, a record that is there twice, an offset that is missing, a record that nobody sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ops.torture.checks import check
from ops.torture.facts import Evidence, FinalRead, TopicFact
from ops.torture.history import ASSIGN, INFO, OK, POLL, SEND, Event

TOPIC = "orders"


@dataclass(frozen=True, slots=True)
class Record:
    """A record by its place and its unique value."""

    partition: int
    offset: int
    value: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was compared, and every damage found in one sentence each; sound when there is none."""

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
    """Compare acknowledgements with the final read from the beginning, and with what the running consumer saw.

    `sent` are all values handed to idempotent producers, acknowledged or not, the acknowledged ones in the order of
    their acknowledgement; `ends` the end offset of each partition before the final read.
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


#: The checks that need nothing but what clients saw.
RECORDS = ("C1", "C2", "C3", "C4", "C5")


def _sent(value: str, number: int, kind: str, partition: int, offset: int) -> Event:
    # Loading and running producer are two: each keeps its own order.
    return Event(value.split("-", 1)[0], SEND, TOPIC, partition, kind, number, number, value=value, offset=offset)
