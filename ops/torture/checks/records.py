"""C1 to C4: acknowledged and consumed records against the final read and the disks. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from ops.torture.checks.facts import Place
from ops.torture.checks.index import Index, few, seconds, told
from ops.torture.history import FAIL, Event

#: How far (ns) the time of a producer's new epoch may be off: the client reads it from a log that it polls.
SESSION_LOGGED = 1_000_000_000


def lost(index: Index) -> list[str]:
    """Return C1's violations: every record acknowledged, or consumed by any client, is in the final read unless the log
    start passed it.

    DeleteRecords and retention may move the log start; a log start beyond theirs has lost the records below it.
    """
    return [*few(_unread(index)), *few(_log_starts(index)), *few(_missing(index)), *few(_nowhere(index))]


def _unread(index: Index) -> Iterator[str]:
    for topic in index.evidence.topics.values():
        for number in range(topic.partitions):
            place = (topic.label, number)
            if topic.used and not topic.deleted and place not in index.evidence.final:
                acked = sum(1 for ack in index.acks if ack.place == place)
                yield f"{told(place)} could not be read at the end, and {acked} acknowledged records are in it"


def _log_starts(index: Index) -> Iterator[str]:
    sizes: dict[Place, int] = {}
    for scan in index.evidence.scans:
        sizes[scan.place] = max(scan.size, sizes.get(scan.place, 0))
    for place, read in index.evidence.final.items():
        deleted = index.floor(place)
        if read.low <= deleted:
            continue
        topic = index.evidence.topics.get(place[0])
        if topic is not None and topic.retention_bytes is not None:
            kept = sizes.get(place, topic.retention_bytes)
            if kept >= topic.retention_bytes:
                continue
            why = f"retention keeps {topic.retention_bytes} bytes and only {kept} are left"
        else:
            why = f"the highest offset of a DeleteRecords request is {deleted}"
        below = [ack for ack in index.acks if ack.place == place and deleted <= ack.offset < read.low]
        example = f", for example {below[-1].value} at {below[-1].offset}" if below else ""
        yield (
            f"the log start of {told(place)} is {read.low}, but {why}: "
            f"{len(below)} acknowledged records are below it{example}"
        )


def _nowhere(index: Index) -> Iterator[str]:
    for ack, least in index.unplaced:
        read = index.evidence.final.get(ack.place)
        if read is None or read.low > least or ack.value in index.values[ack.place].values():
            continue
        yield (
            f"{ack.value} was acknowledged by {told(ack.place)} (sent at {seconds(ack.invoked)}, acknowledged at "
            f"{seconds(ack.completed)}), but the final read from {read.low} to {read.high} does not contain it"
        )


def _missing(index: Index) -> Iterator[str]:
    seen: set[tuple[Place, int]] = set()
    finals = index.evidence.final
    for ack in index.acks:
        read = finals.get(ack.place)
        if read is not None and ack.offset >= read.low and ack.offset not in index.values[ack.place]:
            seen.add((ack.place, ack.offset))
            yield (
                f"{ack.value} was acknowledged by {told(ack.place)} at offset {ack.offset} (sent at "
                f"{seconds(ack.invoked)}, acknowledged at {seconds(ack.completed)}), but the final read from "
                f"{read.low} to {read.high} has nothing there"
            )
    for event, offset, value in index.polled():
        read = finals.get(event.place)
        if read is None or offset < read.low or offset in index.values[event.place]:
            continue
        if (event.place, offset) not in seen:
            seen.add((event.place, offset))
            yield (
                f"{event.process} consumed {value} at offset {offset} of {told(event.place)} at "
                f"{seconds(event.completed)}, but the final read from {read.low} to {read.high} has nothing there"
            )


def inconsistent(index: Index) -> list[str]:
    """Return C2's violations: all clients and disks have the same value at an offset, sent and not rejected."""
    return [*few(_conflicts(index)), *few(_strangers(index))]


def _sightings(index: Index) -> Iterator[tuple[Place, int, str, str]]:
    for ack in index.acks:
        yield ack.place, ack.offset, ack.value, f"the acknowledgement at {seconds(ack.completed)}"
    yield from _seen(index)


def _seen(index: Index) -> Iterator[tuple[Place, int, str, str]]:
    for event, offset, value in index.polled():
        yield event.place, offset, value, f"{event.process} at {seconds(event.completed)}"
    for place, read in index.evidence.final.items():
        for offset, value in read.records:
            yield place, offset, value, "the final read"
    for scan in index.evidence.scans:
        where = f"the segments in {scan.directory} of node {scan.node}"
        for offset, value in scan.records:
            yield scan.place, offset, value, where


def _conflicts(index: Index) -> Iterator[str]:
    first: dict[Place, dict[int, tuple[str, str]]] = defaultdict(dict)
    reported: set[tuple[Place, int]] = set()
    for place, offset, value, source in _sightings(index):
        before = first[place].setdefault(offset, (value, source))
        if before[0] != value and (place, offset) not in reported:
            reported.add((place, offset))
            yield f"offset {offset} of {told(place)} is {before[0]} for {before[1]}, but {value} for {source}"


def _strangers(index: Index) -> Iterator[str]:
    types: dict[tuple[str, str], str] = {}
    for send in index.sends:
        types[send.topic, send.value] = send.type if send.type != FAIL else f"rejected ({send.error})"
    reported: set[tuple[str, str]] = set()
    for place, offset, value, source in _seen(index):
        known = types.get((place[0], value))
        if (known is None or known.startswith("rejected")) and (place[0], value) not in reported:
            reported.add((place[0], value))
            what = f"its send was {known}" if known else f"no client sent it to {place[0]}"
            yield f"{source} has {value} at offset {offset} of {told(place)}, but {what}"


def duplicates(index: Index) -> list[str]:
    """Return C3's violations: a value of an idempotent producer has one offset.

    Values in flight when the producer bumped its epoch are exempt: the leader cannot deduplicate across epochs.
    """
    sound = {(send.topic, send.value) for send in index.sends if send.sound and not _resent(index, send)}
    places: dict[tuple[str, str], dict[tuple[int, int], str]] = defaultdict(dict)
    for place, offset, value, source in _sightings(index):
        if (place[0], value) in sound:
            places[place[0], value].setdefault((place[1], offset), source)
    found = (
        f"{value} is in {topic} more than once: "
        + ", ".join(f"{number}:{offset} ({source})" for (number, offset), source in sorted(where.items()))
        for (topic, value), where in places.items()
        if len(where) > 1 and not _rewritten(index, topic, where)
    )
    return few(found)


def _resent(index: Index, send: Event) -> bool:
    return any(
        send.invoked - SESSION_LOGGED <= at <= send.completed + SESSION_LOGGED
        for at in index.sessions.get(send.process, ())
    )


def _rewritten(index: Index, topic: str, where: dict[tuple[int, int], str]) -> bool:
    """Return whether the offsets have different values in the final read: then the finding is C2's."""
    values = set()
    for number, offset in where:
        held = index.values.get((topic, number), {})
        if offset in held:
            values.add(held[offset])
    return len(values) > 1


def disorder(index: Index) -> list[str]:
    """Return C4's violations: the final read has each offset once, in order, and a producer's records in send order."""
    return [*few(_holes(index)), *few(_unordered_acks(index)), *few(_unordered_log(index))]


def _holes(index: Index) -> Iterator[str]:
    for place, read in index.evidence.final.items():
        offsets = [offset for offset, _ in read.records]
        for before, after in pairwise(offsets):
            if after <= before:
                yield f"the final read of {told(place)} has offset {after} after {before}"
        have = set(offsets)
        for offset in range(read.low, read.high):
            # A gap at an acknowledged or consumed offset is a loss (C1).
            if offset not in have and offset not in index.known[place]:
                yield f"the final read of {told(place)} from {read.low} to {read.high} has nothing at offset {offset}"


def _unordered_acks(index: Index) -> Iterator[str]:
    by_producer = defaultdict(list)
    for ack in index.acks:
        by_producer[ack.process, ack.place].append(ack)
    for (process, place), acks in by_producer.items():
        acks.sort(key=lambda ack: ack.invoked)
        for before, after in pairwise(acks):
            # A plain producer has one request in flight per leader: to the unresponsive leader and to the next.
            apart = after.sound or before.completed < after.invoked or not index.replicated(place)
            if after.offset <= before.offset and apart:
                yield (
                    f"{process} sent {after.value} after {before.value} to {told(place)}, but they were acknowledged "
                    f"at offsets {after.offset} and {before.offset}"
                )


def _unordered_log(index: Index) -> Iterator[str]:
    # `_unordered_acks` covers acknowledged records; this covers the order against records without an acknowledgement.
    order = {(s.topic, s.value): (s.process, s.invoked) for s in index.sends if s.sound}
    acked = {(ack.topic, ack.value) for ack in index.acks}
    for place, read in index.evidence.final.items():
        newest: dict[str, tuple[int, str]] = {}
        seen: set[str] = set()
        for offset, value in read.records:
            sent = order.get((place[0], value))
            if sent is None or value in seen:
                continue
            seen.add(value)
            process, invoked = sent
            before = newest.get(process)
            if before is not None and invoked < before[0]:
                if not ((place[0], value) in acked and (place[0], before[1]) in acked):
                    yield f"{value} is at offset {offset} of {told(place)}, behind {before[1]} that was sent later"
            else:
                newest[process] = (invoked, value)
