"""Anomalies of consumers' polls and offsets, by the check that finds them: C5, C7 and C13."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ops.torture.checks.facts import Evidence
from ops.torture.history import ASSIGN, FAIL, MARKS, OK, OUT_OF_RANGE, POLL, Event
from tests.ops.torture.checks import forge
from tests.ops.torture.checks.forge import COUNT, ORDERS, OTHER, TICKS, at, one, value, with_events, with_final

Forger = Callable[[Evidence], Evidence]


def consumer_skipped(e: Evidence) -> Evidence:
    return _reader(e, lambda records: records[:2] + records[3:])


def consumer_was_given_a_record_again(e: Evidence) -> Evidence:
    return _reader(e, lambda records: (*records[:3], records[2], *records[3:]))


def consumer_went_back(e: Evidence) -> Evidence:
    return _reader(e, lambda records: (records[1], records[0], *records[2:]))


def consumer_began_beyond_its_assignment(e: Evidence) -> Evidence:
    change = lambda x: replace(x, offset=1) if x.op == ASSIGN and x.place == OTHER else x  # noqa: E731
    return with_events(e, change)


def _reader(e: Evidence, change: Callable[..., tuple[tuple[int, str], ...]]) -> Evidence:
    polls = [x for x in e.history if x.op == POLL and x.place == OTHER]
    return with_events(e, lambda x: replace(x, records=change(x.records)) if x is polls[1] else x)


def end_went_back(e: Evidence) -> Evidence:
    return _last_mark(e, OTHER, high=3)


def end_below_an_acknowledgement(e: Evidence) -> Evidence:
    first = next(x for x in e.history if x.op == MARKS and x.place == OTHER)
    return with_events(e, lambda x: replace(x, high=5) if x is first else x)


def end_went_back_for_another_client(e: Evidence) -> Evidence:
    more = Event("other", MARKS, *OTHER, OK, at(40), at(41), low=0, high=COUNT - 1)
    return with_events(e, lambda x: x, more)


def end_went_back_in_the_end(e: Evidence) -> Evidence:
    """No client knows a record there, but one received an end offset beyond the final end."""
    return _last_mark(e, OTHER, high=COUNT + 2)


def log_start_went_back(e: Evidence) -> Evidence:
    return _last_mark(e, ORDERS, low=1)


def log_start_went_back_in_the_end(e: Evidence) -> Evidence:
    return with_final(
        e,
        ORDERS,
        lambda r: replace(r, low=0, records=(*((o, value(ORDERS, o)) for o in range(forge.DELETED)), *r.records)),
    )


def swap_lost_its_end(e: Evidence) -> Evidence:
    return replace(e, swaps=one(e.swaps, 0, end=11))


def swap_with_a_high_watermark_beyond_its_end(e: Evidence) -> Evidence:
    return replace(e, swaps=one(e.swaps, 0, seal_high=13))


def _last_mark(e: Evidence, place: forge.Place, **changes: int) -> Evidence:
    last = [x for x in e.history if x.op == MARKS and x.place == place][-1]
    return with_events(e, lambda x: replace(x, **changes) if x is last else x)


def out_of_range_without_reason(e: Evidence) -> Evidence:
    return with_events(e, lambda x: x, _out_of_range(OTHER, 7, 0, 12))


def out_of_range_beyond_the_end(e: Evidence) -> Evidence:
    return with_events(e, lambda x: x, _out_of_range(TICKS, 12, RETAINED_LOW, 11))


def out_of_range_though_nothing_was_deleted_there(e: Evidence) -> Evidence:
    return with_events(e, lambda x: x, _out_of_range(ORDERS, forge.DELETED + 1, forge.DELETED, 12))


def out_of_range_without_a_known_log_start(e: Evidence) -> Evidence:
    return with_events(e, lambda x: x, _out_of_range(TICKS, RETAINED_LOW, -1, -1))


RETAINED_LOW = forge.RETAINED


def _out_of_range(place: forge.Place, offset: int, low: int, high: int) -> Event:
    return Event("new", POLL, *place, FAIL, at(15), at(16), error=OUT_OF_RANGE, offset=offset, low=low, high=high)


ANOMALIES: dict[str, list[Forger]] = {
    "C5": [
        consumer_skipped,
        consumer_was_given_a_record_again,
        consumer_went_back,
        consumer_began_beyond_its_assignment,
    ],
    "C7": [
        end_went_back,
        end_below_an_acknowledgement,
        end_went_back_for_another_client,
        end_went_back_in_the_end,
        log_start_went_back,
        log_start_went_back_in_the_end,
        swap_lost_its_end,
        swap_with_a_high_watermark_beyond_its_end,
    ],
    "C13": [
        out_of_range_without_reason,
        out_of_range_beyond_the_end,
        out_of_range_though_nothing_was_deleted_there,
        out_of_range_without_a_known_log_start,
    ],
}
