"""Anomalies of records, by the check that finds them: C1 to C4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ops.torture.checks.facts import Evidence
from ops.torture.history import INFO, OK, POLL, SEND, Event
from tests.ops.torture.checks import forge
from tests.ops.torture.checks.forge import COUNT, ORDERS, OTHER, TICKS, at, value, with_events, with_final

Forger = Callable[[Evidence], Evidence]


def lost_tail(e: Evidence) -> Evidence:
    return with_final(e, OTHER, lambda read: forge.cut_at(read, COUNT - 1))


def lost_in_the_middle(e: Evidence) -> Evidence:
    return with_final(e, OTHER, lambda read: forge.without(read, 7))


def lost_though_only_read(e: Evidence) -> Evidence:
    """The lost record was not acknowledged, but a consumer received it."""
    opened = with_events(e, lambda x: replace(x, type=INFO, offset=-1) if forge.is_send(x, OTHER, 8) else x)
    return with_final(opened, OTHER, lambda read: forge.without(read, 8))


def lost_below_a_log_start_not_requested(e: Evidence) -> Evidence:
    return with_final(e, OTHER, lambda read: forge.from_low(read, 3))


def log_start_beyond_what_was_deleted(e: Evidence) -> Evidence:
    return with_final(e, ORDERS, lambda read: forge.from_low(read, forge.DELETED + 2))


def retention_took_too_much(e: Evidence) -> Evidence:
    return replace(e, scans=[replace(s, size=500) if s.place == TICKS else s for s in e.scans])


def partition_that_cannot_be_read(e: Evidence) -> Evidence:
    return replace(e, final={p: read for p, read in e.final.items() if p != OTHER})


def two_values_at_one_offset(e: Evidence) -> Evidence:
    """The final read has another sent record at the offset of the acknowledged one."""
    sent = Event("plain", SEND, *OTHER, INFO, at(1), at(30), value="plain-late", sound=False)
    return with_final(with_events(e, lambda x: x, sent), OTHER, lambda read: forge.renamed(read, 9, "plain-late"))


def consumers_disagree(e: Evidence) -> Evidence:
    def change(x: Event) -> Event:
        if x.process == "slow" and x.place == ORDERS and x.op == POLL and x.type == OK:
            swapped = [(o, value(ORDERS, 13) if o == 11 else value(ORDERS, 11) if o == 13 else v) for o, v in x.records]
            return replace(x, records=tuple(swapped))
        return x

    return with_events(e, change)


def disk_holds_something_else(e: Evidence) -> Evidence:
    def change(records: tuple[tuple[int, str], ...]) -> tuple[tuple[int, str], ...]:
        return tuple((o, value(OTHER, 3) if o == 5 else value(OTHER, 5) if o == 3 else v) for o, v in records)

    return replace(e, scans=[replace(s, records=change(s.records)) if s.place == OTHER else s for s in e.scans])


def refused_record_is_there(e: Evidence) -> Evidence:
    return with_final(e, ORDERS, lambda read: forge.appended(read, "plain-refused"))


def record_that_no_client_sent(e: Evidence) -> Evidence:
    return with_final(e, OTHER, lambda read: forge.appended(read, "ghost-1"))


def record_of_another_topic(e: Evidence) -> Evidence:
    return with_final(e, OTHER, lambda read: forge.appended(read, value(TICKS, 3)))


def idempotent_record_twice(e: Evidence) -> Evidence:
    return with_final(e, OTHER, lambda read: forge.appended(read, value(OTHER, 6)))


def idempotent_record_in_two_partitions(e: Evidence) -> Evidence:
    return with_final(e, ORDERS, lambda read: forge.appended(read, value(OTHER, 6)))


def acknowledged_twice(e: Evidence) -> Evidence:
    """The second acknowledgement has a later offset, where the record is appended again."""
    again = next(x for x in e.history if forge.is_send(x, OTHER, 18))
    more = with_events(e, lambda x: x, replace(again, offset=COUNT, invoked=at(40), completed=at(41)))
    return with_final(more, OTHER, lambda read: forge.appended(read, again.value))


def with_unplaced(e: Evidence, what: str) -> Evidence:
    """Return the evidence with a send that was acknowledged without an offset."""
    return with_events(e, lambda x: x, Event("sure", SEND, *OTHER, OK, at(COUNT), at(COUNT + 1), value=what))


def record_without_an_offset_lost(e: Evidence) -> Evidence:
    return with_unplaced(e, "sure-nowhere")


def gap_at_unknown_offset(e: Evidence) -> Evidence:
    return with_final(
        e, OTHER, lambda read: replace(read, high=COUNT + 2, records=(*read.records, (COUNT + 1, "sure-open")))
    )


def final_read_out_of_order(e: Evidence) -> Evidence:
    def turned(read: forge.FinalRead) -> forge.FinalRead:
        rows = list(read.records)
        rows[2], rows[3] = rows[3], rows[2]
        return replace(read, records=tuple(rows))

    return with_final(e, OTHER, turned)


def producer_out_of_order(e: Evidence) -> Evidence:
    """Two records of one producer have each other's offsets for all clients."""
    swapped = {6: value(OTHER, 8), 8: value(OTHER, 6)}

    def change(x: Event) -> Event:
        if x.place != OTHER:
            return x
        if x.op == SEND and x.offset in swapped:
            return replace(x, offset=14 - x.offset)
        return replace(x, records=tuple((o, swapped.get(o, v)) for o, v in x.records))

    def turned(read: forge.FinalRead) -> forge.FinalRead:
        return replace(read, records=tuple((o, swapped.get(o, v)) for o, v in read.records))

    return with_final(with_events(e, change), OTHER, turned)


def unacknowledged_record_behind_later_ones(e: Evidence) -> Evidence:
    early = Event("sure", SEND, *OTHER, INFO, at(2) + 1, at(30), value="sure-late", error="_TIMED_OUT")
    return with_final(with_events(e, lambda x: x, early), OTHER, lambda read: forge.appended(read, "sure-late"))


ANOMALIES: dict[str, list[Forger]] = {
    "C1": [
        record_without_an_offset_lost,
        lost_tail,
        lost_in_the_middle,
        lost_though_only_read,
        lost_below_a_log_start_not_requested,
        log_start_beyond_what_was_deleted,
        retention_took_too_much,
        partition_that_cannot_be_read,
    ],
    "C2": [
        two_values_at_one_offset,
        consumers_disagree,
        disk_holds_something_else,
        refused_record_is_there,
        record_that_no_client_sent,
        record_of_another_topic,
    ],
    "C3": [idempotent_record_twice, acknowledged_twice],
    "C4": [
        gap_at_unknown_offset,
        final_read_out_of_order,
        producer_out_of_order,
        unacknowledged_record_behind_later_ones,
    ],
}
