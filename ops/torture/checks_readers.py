"""C5, C7 and C13: what each consumer saw, one poll after the other. Pure."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator

from ops.torture.facts import Place
from ops.torture.history import ASSIGN, FAIL, OK, OUT_OF_RANGE, POLL, Event
from ops.torture.index import Index, few, seconds, told


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
    asked = defaultdict(list)
    for mark in index.marks:
        asked[mark.place].append(mark)
    for place, marks in asked.items():
        waiting = known[place]
        heapq.heapify(waiting)
        low: tuple[int, int] = (-1, 0)
        high: tuple[int, str, int] = (-1, "", 0)
        for mark in sorted(marks, key=lambda mark: mark.invoked):
            while waiting and waiting[0][0] < mark.invoked:
                at, its_low, its_high, what = heapq.heappop(waiting)
                low = max(low, (its_low, at))
                high = max(high, (its_high, what, at))
            if mark.high < high[0]:
                yield (
                    f"{mark.process} was told at {seconds(mark.completed)} that {told(place)} ends at {mark.high}, "
                    f"but {high[1]} at {seconds(high[2])}"
                )
            if mark.low < low[0]:
                yield (
                    f"{mark.process} was told at {seconds(mark.completed)} that {told(place)} begins at {mark.low}, "
                    f"but it began at {low[0]} at {seconds(low[1])}"
                )


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
            if position < asked or (index.retains(place) and event.low > position):
                continue
            yield (
                f"{process} was told at {seconds(event.completed)} that offset {position} of {told(place)} is out of "
                f"range, when the log was from {event.low} to {event.high} and records below {asked} had been deleted"
            )
