"""C1 to C4: what was acknowledged or read against the final read and the disks. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from ops.torture.facts import Place
from ops.torture.history import FAIL, Event
from ops.torture.index import Index, few, seconds, told

#: A client learns of its producer's new epoch from a log that it polls: so much later or earlier, ns.
SESSION_TOLD = 1_000_000_000


def lost(index: Index) -> list[str]:
    """C1: every record acknowledged, or given to any consumer, is there at the end unless the log start passed it.

    The log start may be moved by DeleteRecords and by retention; one that went further has lost what is below it.
    """
    return [*few(_unread(index)), *few(_log_starts(index)), *few(_missing(index)), *few(_nowhere(index))]


def _unread(index: Index) -> Iterator[str]:
    for topic in index.evidence.topics.values():
        for number in range(topic.partitions):
            place = (topic.label, number)
            if topic.used and not topic.deleted and place not in index.evidence.final:
                acked = sum(1 for ack in index.acks if ack.place == place)
                yield f"{told(place)} could not be read at the end, and {acked} records of it were acknowledged"


def _log_starts(index: Index) -> Iterator[str]:
    sizes: dict[Place, int] = {}
    for scan in index.evidence.scans:
        sizes[scan.place] = max(scan.size, sizes.get(scan.place, 0))
    for place, read in index.evidence.final.items():
        asked = index.floor(place)
        if read.low <= asked:
            continue
        topic = index.evidence.topics.get(place[0])
        if topic is not None and topic.retention_bytes is not None:
            kept = sizes.get(place, topic.retention_bytes)
            if kept >= topic.retention_bytes:
                continue
            why = f"retention keeps {topic.retention_bytes} bytes and only {kept} are left"
        else:
            why = f"the highest log start that anybody asked for is {asked}"
        below = [ack for ack in index.acks if ack.place == place and asked <= ack.offset < read.low]
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
            f"{seconds(ack.completed)}), but the final read from {read.low} to {read.high} has it nowhere"
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
                f"{event.process} was given {value} at offset {offset} of {told(event.place)} at "
                f"{seconds(event.completed)}, but the final read from {read.low} to {read.high} has nothing there"
            )


def inconsistent(index: Index) -> list[str]:
    """C2: an offset has one value, whoever says so and whenever, and only values that were sent and not refused."""
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
    for place, offset, value, who in _sightings(index):
        before = first[place].setdefault(offset, (value, who))
        if before[0] != value and (place, offset) not in reported:
            reported.add((place, offset))
            yield f"offset {offset} of {told(place)} is {before[0]} for {before[1]}, but {value} for {who}"


def _strangers(index: Index) -> Iterator[str]:
    types: dict[tuple[str, str], str] = {}
    for send in index.sends:
        types[send.topic, send.value] = send.type if send.type != FAIL else f"refused ({send.error})"
    reported: set[tuple[str, str]] = set()
    for place, offset, value, who in _seen(index):
        known = types.get((place[0], value))
        if (known is None or known.startswith("refused")) and (place[0], value) not in reported:
            reported.add((place[0], value))
            what = f"its send was {known}" if known else f"nobody sent it to {place[0]}"
            yield f"{who} has {value} at offset {offset} of {told(place)}, but {what}"


def duplicates(index: Index) -> list[str]:
    """C3: a value that an idempotent producer sent has one offset.

    Unless it was outstanding when the producer began a new epoch, which is a new producer to any broker.
    """
    sound = {(send.topic, send.value) for send in index.sends if send.sound and not _sent_anew(index, send)}
    places: dict[tuple[str, str], dict[tuple[int, int], str]] = defaultdict(dict)
    for place, offset, value, who in _sightings(index):
        if (place[0], value) in sound:
            places[place[0], value].setdefault((place[1], offset), who)
    found = (
        f"{value} is in {topic} more than once: "
        + ", ".join(f"{number}:{offset} ({who})" for (number, offset), who in sorted(where.items()))
        for (topic, value), where in places.items()
        if len(where) > 1 and not _rewritten(index, topic, where)
    )
    return few(found)


def _sent_anew(index: Index, send: Event) -> bool:
    return any(
        send.invoked - SESSION_TOLD <= at <= send.completed + SESSION_TOLD
        for at in index.sessions.get(send.process, ())
    )


def _rewritten(index: Index, topic: str, where: dict[tuple[int, int], str]) -> bool:
    """Whether one of the offsets has another value in the final read: then that is the finding (C2), not this."""
    values = set()
    for number, offset in where:
        held = index.values.get((topic, number), {})
        if offset in held:
            values.add(held[offset])
    return len(values) > 1


def disorder(index: Index) -> list[str]:
    """C4: the final read has every offset once and in order; a producer's records keep the order it sent them in."""
    return [*few(_holes(index)), *few(_unordered_acks(index)), *few(_unordered_log(index))]


def _holes(index: Index) -> Iterator[str]:
    for place, read in index.evidence.final.items():
        offsets = [offset for offset, _ in read.records]
        for before, after in pairwise(offsets):
            if after <= before:
                yield f"the final read of {told(place)} gives offset {after} after {before}"
        have = set(offsets)
        for offset in range(read.low, read.high):
            # A hole where something was acknowledged or read is a loss (C1).
            if offset not in have and offset not in index.known[place]:
                yield f"the final read of {told(place)} from {read.low} to {read.high} has nothing at offset {offset}"


def _unordered_acks(index: Index) -> Iterator[str]:
    by_producer = defaultdict(list)
    for ack in index.acks:
        by_producer[ack.process, ack.place].append(ack)
    for (process, place), acks in by_producer.items():
        acks.sort(key=lambda ack: ack.invoked)
        for before, after in pairwise(acks):
            # A plain producer has one request in flight to each leader: to the one that is silent, and to the next.
            apart = after.sound or before.completed < after.invoked or not index.replicated(place)
            if after.offset <= before.offset and apart:
                yield (
                    f"{process} sent {after.value} after {before.value} to {told(place)}, but they were acknowledged "
                    f"at offsets {after.offset} and {before.offset}"
                )


def _unordered_log(index: Index) -> Iterator[str]:
    # What was acknowledged is looked at above; here is what was sent and has no acknowledgement.
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
                    yield f"{value} stands at offset {offset} of {told(place)}, behind {before[1]} that was sent later"
            else:
                newest[process] = (invoked, value)
