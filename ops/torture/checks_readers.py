"""C5, C7 and C13: what each consumer saw, one poll after the other. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

from ops.torture.facts import Place
from ops.torture.history import ASSIGN, FAIL, OK, OUT_OF_RANGE, POLL, Event
from ops.torture.index import Index, few, seconds, told

#: How long a leader may not have heard that it was deposed: the longest standstill that is made, and some more, ns.
DEPOSED = 20_000_000_000
#: A change of leader is seen by asking every node again and again: so much later than it was, ns.
SEEN_LATE = 2_000_000_000


def skips(index: Index) -> list[str]:
    """C5: between two assignments a consumer is given one offset after the other."""
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
                        how = "skipped to" if offset > expected else "was given again"
                        yield (
                            f"{process} {how} offset {offset} ({value}) of {told(place)} at "
                            f"{seconds(event.completed)}, when {expected} was next"
                        )
                    expected = offset + 1


def backwards(index: Index) -> list[str]:
    """C7: log start and end that a client was told never go back, also from one client to the next, nor at a swap."""
    return [*few(_marks(index)), *few(_swaps(index)), *few(_in_the_end(index))]


def _marks(index: Index) -> Iterator[str]:
    """Whatever was known before a request began bounds its answer; what overlaps in time says nothing.

    A new leader may not have heard of the last step of its log's start, unless all replicas have confirmed it: a
    DeleteRecords that was answered, and nothing else, bounds the start of what is replicated.
    """
    known: dict[Place, list[tuple[int, int, int, str]]] = defaultdict(list)
    for mark in index.marks:
        low_then = -1 if index.replicated(mark.place) else mark.low
        known[mark.place].append((mark.completed, low_then, mark.high, f"{mark.process} was told {mark.high}"))
    for done in index.deletes:
        if done.type == OK:
            known[done.place].append((done.completed, done.offset, -1, ""))
    for ack in index.acks:
        known[ack.place].append((ack.completed, -1, ack.offset + 1, f"{ack.value} was acknowledged at {ack.offset}"))
    for event, offset, value in index.polled():
        known[event.place].append((event.completed, -1, offset + 1, f"{event.process} was given {value} at {offset}"))
    for place, facts in known.items():
        facts.sort()
        times = [at for at, _, _, _ in facts]
        lows = list(accumulate(((low, at) for at, low, _, _ in facts), max))
        highs = list(accumulate(((high, what, at) for at, _, high, what in facts), max))
        changes = sorted(fact.at for fact in index.evidence.leaders if fact.place == place)
        for mark in index.marks:
            before = bisect_left(times, _heard_by(mark, changes)) if mark.place == place else 0
            if not before:
                continue
            (low, low_at), (high, what, high_at) = lows[before - 1], highs[before - 1]
            if mark.high < high:
                yield (
                    f"{mark.process} was told at {seconds(mark.completed)} that {told(place)} ends at {mark.high}, "
                    f"but {what} at {seconds(high_at)}"
                )
            if mark.low < low:
                yield (
                    f"{mark.process} was told at {seconds(mark.completed)} that {told(place)} begins at {mark.low}, "
                    f"but it began at {low} at {seconds(low_at)}"
                )


def _heard_by(mark: Event, changes: Sequence[int]) -> int:
    """Until when whoever answered knows what happened: a leader that was deposed, and has not heard of it, answers with
    what it knew, as one of Apache Kafka does; it was asked because the client has not heard of it either.
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
    for told_of in index.marks:
        if told_of.place not in lowest or told_of.low > lowest[told_of.place].low:
            lowest[told_of.place] = told_of
        if told_of.place not in highest or told_of.high > highest[told_of.place].high:
            highest[told_of.place] = told_of
    deleted: dict[Place, Event] = {}
    for done in index.deletes:
        if done.type == OK and (done.place not in deleted or done.offset > deleted[done.place].offset):
            deleted[done.place] = done
    for place, read in index.evidence.final.items():
        over = deleted.get(place)
        if over is not None and read.low < over.offset:
            yield (
                f"{told(place)} begins at {read.low} in the end, but the records below {over.offset} were deleted at "
                f"{seconds(over.completed)}"
            )
        mark: Event | None = lowest.get(place)
        if mark is not None and read.low < mark.low and not index.replicated(place):
            yield (
                f"{told(place)} begins at {read.low} in the end, but {mark.process} was told {mark.low} at "
                f"{seconds(mark.completed)}"
            )
        mark = highest.get(place)
        # Where a record is known to have been there, its loss is the finding (C1).
        if mark is not None and index.known[place].isdisjoint(range(read.high, mark.high)) and read.high < mark.high:
            yield (
                f"{told(place)} ends at {read.high} in the end, but {mark.process} was told {mark.high} at "
                f"{seconds(mark.completed)}"
            )


def out_of_range(index: Index) -> list[str]:
    """C13: a consumer is told OFFSET_OUT_OF_RANGE only when deletion or retention has passed its position.

    Such a poll carries the position as `offset`, and as `low` and `high` what the partition said right after it.
    """
    return few(_out_of_range(index))


def _out_of_range(index: Index) -> Iterator[str]:
    for (process, place), events in index.reads.items():
        if index.gone(place):
            continue
        for event in events:
            if event.op != POLL or event.type != FAIL or event.error != OUT_OF_RANGE:
                continue
            position, asked = event.offset, index.floor(place, event.completed)
            if position < asked or (index.retains(place) and _began(index, event) > position):
                continue
            log = f"was from {event.low} to {event.high}" if event.low >= 0 else "did not answer where it begins"
            yield (
                f"{process} was told at {seconds(event.completed)} that offset {position} of {told(place)} is out of "
                f"range, when the log {log} and records below {asked} had been deleted"
            )


def _began(index: Index, poll: Event) -> int:
    """Where the log began right after a poll; where it did not answer then, by the first answer to anybody after it."""
    if poll.low >= 0:
        return poll.low
    later = (mark for mark in index.marks if mark.place == poll.place and mark.completed > poll.completed)
    if first := min(later, key=lambda mark: mark.completed, default=None):
        return first.low
    read = index.evidence.final.get(poll.place)
    return read.low if read is not None else -1
