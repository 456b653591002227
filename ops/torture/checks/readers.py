"""C5, C7 and C13: each consumer's polls in order, and the offsets that nodes reported. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

from ops.torture.checks.facts import Place
from ops.torture.checks.index import Index, few, seconds, told
from ops.torture.history import ASSIGN, FAIL, OK, OUT_OF_RANGE, POLL, Event

#: How long (ns) a deposed leader may not know its successor: the longest injected freeze, and a margin.
DEPOSED = 20_000_000_000
#: How much later (ns) than an election the watch, which polls every node's metadata, may notice it.
SEEN_LATE = 2_000_000_000


def skips(index: Index) -> list[str]:
    """Return C5's violations: between two assignments a consumer receives consecutive offsets."""
    return few(_skips(index))


def _skips(index: Index) -> Iterator[str]:
    for (process, place), events in index.reads.items():
        expected = -1
        for event in events:
            if event.op == ASSIGN:
                expected = event.offset
            elif event.type == OK:
                for offset, value in event.records:
                    if expected >= 0 and offset != expected:
                        how = "skipped to" if offset > expected else "received again"
                        yield (
                            f"{process} {how} offset {offset} ({value}) of {told(place)} at "
                            f"{seconds(event.completed)}, instead of {expected}"
                        )
                    expected = offset + 1


def backwards(index: Index) -> list[str]:
    """Return C7's violations: log start and end never decrease, from one client to the next nor at a swap."""
    return [*few(_marks(index)), *few(_swaps(index)), *few(_in_the_end(index))]


def _marks(index: Index) -> Iterator[str]:
    """Yield the ListOffsets results below an offset that a client knew before the request was sent.

    Concurrent requests bound nothing. A new leader may not have its predecessor's last log start offset unless all
    replicas have it: only an acknowledged DeleteRecords bounds the log start of a replicated partition.
    """
    known: dict[Place, list[tuple[int, int, int, str]]] = defaultdict(list)
    for mark in index.marks:
        low_then = -1 if index.replicated(mark.place) else mark.low
        known[mark.place].append((mark.completed, low_then, mark.high, f"{mark.process} received {mark.high}"))
    for done in index.deletes:
        if done.type == OK:
            known[done.place].append((done.completed, done.offset, -1, ""))
    for ack in index.acks:
        known[ack.place].append((ack.completed, -1, ack.offset + 1, f"{ack.value} was acknowledged at {ack.offset}"))
    for event, offset, value in index.polled():
        known[event.place].append((event.completed, -1, offset + 1, f"{event.process} consumed {value} at {offset}"))
    for place, facts in known.items():
        facts.sort()
        times = [at for at, _, _, _ in facts]
        lows = list(accumulate(((low, at) for at, low, _, _ in facts), max))
        highs = list(accumulate(((high, what, at) for at, _, high, what in facts), max))
        changes = sorted(fact.at for fact in index.evidence.leaders if fact.place == place)
        for mark in index.marks:
            before = bisect_left(times, _known_by(mark, changes)) if mark.place == place else 0
            if not before:
                continue
            (low, low_at), (high, what, high_at) = lows[before - 1], highs[before - 1]
            if mark.high < high:
                yield (
                    f"{mark.process} received end offset {mark.high} of {told(place)} at {seconds(mark.completed)}, "
                    f"but {what} at {seconds(high_at)}"
                )
            if mark.low < low:
                yield (
                    f"{mark.process} received log start {mark.low} of {told(place)} at {seconds(mark.completed)}, "
                    f"but it was {low} at {seconds(low_at)}"
                )


def _known_by(mark: Event, changes: Sequence[int]) -> int:
    """Return the time up to which the responding node must know all offsets.

    As in Apache Kafka, a deposed leader that does not know its successor yet responds with its old offsets, to a client
    whose metadata is as old.
    """
    since, until = mark.invoked - DEPOSED, mark.completed + SEEN_LATE
    newer = changes[bisect_left(changes, since) : bisect_left(changes, until)]
    return min(mark.invoked, *(at - SEEN_LATE for at in newer)) if newer else mark.invoked


def _swaps(index: Index) -> Iterator[str]:
    for swap in index.evidence.swaps:
        where = f"the swap of {told(swap.place)} from {swap.source} to {swap.target} at {seconds(swap.at)}"
        sealed = swap.seal_high if index.replicated(swap.place) else swap.seal_end
        if swap.end < sealed:
            yield f"{where} was sealed at {sealed}, but the copy ends at {swap.end}"
        if swap.seal_high > swap.seal_end:
            yield f"{where} has a high watermark of {swap.seal_high}, beyond its end {swap.seal_end}"


def _in_the_end(index: Index) -> Iterator[str]:
    lowest: dict[Place, Event] = {}
    highest: dict[Place, Event] = {}
    for fact in index.marks:
        if fact.place not in lowest or fact.low > lowest[fact.place].low:
            lowest[fact.place] = fact
        if fact.place not in highest or fact.high > highest[fact.place].high:
            highest[fact.place] = fact
    deleted: dict[Place, Event] = {}
    for done in index.deletes:
        if done.type == OK and (done.place not in deleted or done.offset > deleted[done.place].offset):
            deleted[done.place] = done
    for place, read in index.evidence.final.items():
        over = deleted.get(place)
        if over is not None and read.low < over.offset:
            yield (
                f"{told(place)} begins at {read.low} at the end, but the records below {over.offset} were deleted at "
                f"{seconds(over.completed)}"
            )
        mark: Event | None = lowest.get(place)
        if mark is not None and read.low < mark.low and not index.replicated(place):
            yield (
                f"{told(place)} begins at {read.low} at the end, but {mark.process} received {mark.low} at "
                f"{seconds(mark.completed)}"
            )
        mark = highest.get(place)
        # Where a client knows a record of the range, its loss is the finding (C1).
        if mark is not None and index.known[place].isdisjoint(range(read.high, mark.high)) and read.high < mark.high:
            yield (
                f"{told(place)} ends at {read.high} at the end, but {mark.process} received {mark.high} at "
                f"{seconds(mark.completed)}"
            )


def out_of_range(index: Index) -> list[str]:
    """Return C13's violations: a consumer gets OFFSET_OUT_OF_RANGE only if DeleteRecords or retention has moved the log
    start beyond its position.

    Such a poll has the position as `offset`, and the partition's log start and end right after it as `low` and `high`.
    """
    return few(_out_of_range(index))


def _out_of_range(index: Index) -> Iterator[str]:
    for (process, place), events in index.reads.items():
        if index.gone(place):
            continue
        for event in events:
            if event.op != POLL or event.type != FAIL or event.error != OUT_OF_RANGE:
                continue
            position, deleted = event.offset, index.floor(place, event.completed)
            if position < deleted or (index.retains(place) and _began(index, event) > position):
                continue
            log = f"was from {event.low} to {event.high}" if event.low >= 0 else "was unavailable"
            yield (
                f"{process} got OFFSET_OUT_OF_RANGE for offset {position} of {told(place)} at "
                f"{seconds(event.completed)}, when the log {log} and records below {deleted} had been deleted"
            )


def _began(index: Index, poll: Event) -> int:
    """Return the log start right after a poll, else as the next ListOffsets response to any client has it."""
    if poll.low >= 0:
        return poll.low
    later = (mark for mark in index.marks if mark.place == poll.place and mark.completed > poll.completed)
    if first := min(later, key=lambda mark: mark.completed, default=None):
        return first.low
    read = index.evidence.final.get(poll.place)
    return read.low if read is not None else -1
