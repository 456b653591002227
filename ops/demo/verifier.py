"""The judge: what was acknowledged against what is read at the end. Pure, and trusts nobody.

A value is unique: nobody sends the same twice. So every kind of damage shows: an acknowledged record that is gone or
has another offset, a record that is there twice, an offset that is missing, a record that nobody sent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

#: How many examples of one kind of damage are told.
EXAMPLES = 3


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
    sent: Collection[str] | None,
    ends: Mapping[int, int],
) -> Verdict:
    """Compare acknowledgements with the final read from the beginning, and with what the running consumer saw.

    `sent` are all values handed to the producer (None: not known), acknowledged or not; `ends` the end offset of each
    partition before the final read.
    """
    acks, final, live = list(acknowledged), list(read), list(consumed)
    problems = [
        *_acks_are_there(acks, final),
        *_twice("acknowledged", acks),
        *_twice("read", final),
        *_contiguous(final, ends),
        *_never_sent(final, sent),
        *_live_in_order(live, final),
    ]
    return Verdict(len(acks), len(final), len(live), tuple(problems))


def _acks_are_there(acks: list[Record], final: list[Record]) -> list[str]:
    there = {(r.partition, r.offset): r.value for r in final}
    lost = [r for r in acks if (r.partition, r.offset) not in there]
    other = [r for r in acks if there.get((r.partition, r.offset), r.value) != r.value]
    return [
        *_told("acknowledged but not there", [f"{r.value} at {_at(r)}" for r in lost]),
        *_told("another record at an acknowledged offset", [f"{_at(r)} instead of {r.value}" for r in other]),
    ]


def _twice(what: str, records: list[Record]) -> list[str]:
    values = Counter(r.value for r in records)
    places = Counter((r.partition, r.offset) for r in records)
    return [
        *_told(f"{what} twice", [value for value, count in values.items() if count > 1]),
        *_told(f"offset {what} twice", [f"{p}:{offset}" for (p, offset), count in places.items() if count > 1]),
    ]


def _contiguous(final: list[Record], ends: Mapping[int, int]) -> list[str]:
    by_partition: dict[int, list[int]] = defaultdict(list)
    for record in final:
        by_partition[record.partition].append(record.offset)
    missing: list[str] = []
    unordered: list[str] = []
    for partition, end in sorted(ends.items()):
        offsets = by_partition.get(partition, [])
        missing += [f"{partition}:{offset}" for offset in sorted(set(range(end)) - set(offsets))]
        if any(later <= earlier for earlier, later in pairwise(offsets)):
            unordered.append(str(partition))
    return [*_told("offset missing", missing), *_told("partition read out of order", unordered)]


def _never_sent(final: list[Record], sent: Collection[str] | None) -> list[str]:
    if sent is None:
        return []
    known = sent if isinstance(sent, (set, frozenset, dict)) else set(sent)
    return _told("read but never sent", [f"{r.value} at {_at(r)}" for r in final if r.value not in known])


def _live_in_order(live: list[Record], final: list[Record]) -> list[str]:
    """The consumer that ran all the time saw one offset after the other, and the records that are there at the end."""
    there = {(r.partition, r.offset): r.value for r in final}
    last: dict[int, int] = {}
    jumps: list[str] = []
    different: list[str] = []
    for record in live:
        before = last.get(record.partition)
        if before is not None and record.offset != before + 1:
            jumps.append(f"{record.partition}:{before} then {record.offset}")
        last[record.partition] = record.offset
        if there.get((record.partition, record.offset)) != record.value:
            different.append(_at(record))
    return [
        *_told("the running consumer was not given offsets one after the other", jumps),
        *_told("the running consumer saw a record that is not there at the end", different),
    ]


def _at(record: Record) -> str:
    return f"{record.partition}:{record.offset}"


def _told(kind: str, examples: list[str]) -> list[str]:
    if not examples:
        return []
    more = f" and {len(examples) - EXAMPLES} more" if len(examples) > EXAMPLES else ""
    return [f"{kind}: {', '.join(examples[:EXAMPLES])}{more}"]
