"""A sound history passes; every forged anomaly is found, by the check that stands for it and by no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.torture.checks import CHECKS, Finding, check
from ops.torture.checks_moves import compare
from ops.torture.facts import Batch, Boot, Evidence, FaultFact, LimitFact, RowFact, RunFact
from ops.torture.history import ASSIGN, FAIL, INFO, MARKS, OK, OUT_OF_RANGE, POLL, SEND, Event
from tests.ops.torture import forge
from tests.ops.torture.forge import COUNT, ORDERS, OTHER, SECOND, TICKS, A, B, at, one, value, with_events, with_final

Forger = Callable[[Evidence], Evidence]


def found(evidence: Evidence) -> list[Finding]:
    return check(evidence)


# C1 to C4: records


def lost_tail(e: Evidence) -> Evidence:
    return with_final(e, OTHER, lambda read: forge.cut_at(read, COUNT - 1))


def lost_in_the_middle(e: Evidence) -> Evidence:
    return with_final(e, OTHER, lambda read: forge.without(read, 7))


def lost_though_only_read(e: Evidence) -> Evidence:
    """Nobody acknowledged it, but a consumer was given it: it had been written."""
    opened = with_events(e, lambda x: replace(x, type=INFO, offset=-1) if forge.is_send(x, OTHER, 8) else x)
    return with_final(opened, OTHER, lambda read: forge.without(read, 8))


def lost_below_a_log_start_nobody_asked_for(e: Evidence) -> Evidence:
    return with_final(e, OTHER, lambda read: forge.from_low(read, 3))


def log_start_beyond_what_was_deleted(e: Evidence) -> Evidence:
    return with_final(e, ORDERS, lambda read: forge.from_low(read, forge.DELETED + 2))


def retention_took_too_much(e: Evidence) -> Evidence:
    return replace(e, scans=[replace(s, size=500) if s.place == TICKS else s for s in e.scans])


def partition_that_cannot_be_read(e: Evidence) -> Evidence:
    return replace(e, final={p: read for p, read in e.final.items() if p != OTHER})


def two_values_at_one_offset(e: Evidence) -> Evidence:
    """What is there at the end is another record that was sent: in the place of the one acknowledged."""
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


def record_that_nobody_sent(e: Evidence) -> Evidence:
    return with_final(e, OTHER, lambda read: forge.appended(read, "ghost-1"))


def record_of_another_topic(e: Evidence) -> Evidence:
    return with_final(e, OTHER, lambda read: forge.appended(read, value(TICKS, 3)))


def idempotent_record_twice(e: Evidence) -> Evidence:
    return with_final(e, OTHER, lambda read: forge.appended(read, value(OTHER, 6)))


def idempotent_record_in_two_partitions(e: Evidence) -> Evidence:
    return with_final(e, ORDERS, lambda read: forge.appended(read, value(OTHER, 6)))


def acknowledged_twice(e: Evidence) -> Evidence:
    """The second acknowledgement names a later offset, where the record stands again."""
    again = next(x for x in e.history if forge.is_send(x, OTHER, 18))
    more = with_events(e, lambda x: x, replace(again, offset=COUNT, invoked=at(40), completed=at(41)))
    return with_final(more, OTHER, lambda read: forge.appended(read, again.value))


def hole_that_nobody_knew(e: Evidence) -> Evidence:
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
    """Two records of one producer changed places for everybody."""
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


# C5, C7, C13: readers


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
    """Nobody knows a record of it, but somebody was told of an end that is not there any more."""
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


RETAINED_LOW = forge.RETAINED


def _out_of_range(place: forge.Place, offset: int, low: int, high: int) -> Event:
    return Event("new", POLL, *place, FAIL, at(15), at(16), error=OUT_OF_RANGE, offset=offset, low=low, high=high)


# C6, C8 to C12, C14: disks, moves, rates, throttles, starts


def batch_changed_at_the_swap(e: Evidence) -> Evidence:
    return replace(e, swaps=one(e.swaps, 0, differences=((5, 1, 2),)))


def batch_missing_after_the_swap(e: Evidence) -> Evidence:
    return replace(e, swaps=one(e.swaps, 0, differences=((5, 1, None),)))


def head_missing_after_the_swap(e: Evidence) -> Evidence:
    return replace(e, swaps=one(e.swaps, 0, first=10))


def corrupt_batch_on_the_disk(e: Evidence) -> Evidence:
    return replace(e, scans=one(e.scans, 1, problems=("the batch at offset 5 in 0.log has CRC 1, its bytes have 2",)))


def copy_left_behind(e: Evidence) -> Evidence:
    return _folders(e, 0, "orders-0.move")


def source_left_behind(e: Evidence) -> Evidence:
    return _folders(e, 0, f"orders-0.{'0' * 32}.delete")


def replica_in_two_directories(e: Evidence) -> Evidence:
    return _folders(e, 0, "orders-0")


def deleted_topic_came_back(e: Evidence) -> Evidence:
    return _folders(e, 0, "visits-0")


def replica_nowhere(e: Evidence) -> Evidence:
    changed = replace(e.directories[1], folders=(), replicas=())
    return replace(e, directories=[e.directories[0], changed])


def _folders(e: Evidence, number: int, folder: str) -> Evidence:
    there = e.directories[number]
    return replace(e, directories=one(e.directories, number, folders=(*there.folders, folder)))


def metadata_knows_another_directory(e: Evidence) -> Evidence:
    return replace(e, homes={**e.homes, OTHER: (1, B)})


def last_move_went_elsewhere(e: Evidence) -> Evidence:
    more = RunFact("move-9", 1, "completed", rows=(RowFact(ORDERS, "deleted", A, 3),))
    return replace(e, runs=[*e.runs, more])


def described_copy_without_a_move(e: Evidence) -> Evidence:
    return replace(e, directories=one(e.directories, 0, futures=(ORDERS,)))


def described_where_no_folder_is(e: Evidence) -> Evidence:
    return replace(e, directories=one(e.directories, 0, replicas=(*e.directories[0].replicas, ORDERS)))


def offline_directory_serves(e: Evidence) -> Evidence:
    return replace(e, directories=one(e.directories, 1, error="KAFKA_STORAGE_ERROR"))


def healthy_directory_is_offline(e: Evidence) -> Evidence:
    return replace(e, directories=one(e.directories, 1, error="KAFKA_STORAGE_ERROR", replicas=()), faults=[])


def other_directories_are_slow(e: Evidence) -> Evidence:
    """Produce to disk-b's neighbours takes most of a minute while disk-b has its fault."""
    stalled = {OTHER, TICKS}

    def change(x: Event) -> Event:
        if x.op == SEND and x.type == OK and x.place in stalled and at(5) <= x.invoked <= at(8):
            return replace(x, completed=x.completed + 50 * SECOND)
        return x

    return with_events(e, change)


def copy_beyond_its_limit(e: Evidence) -> Evidence:
    def faster(n: int, copied: int) -> int:
        return copied + (4 * forge.RATE if n >= 40 else 0)

    samples = [
        replace(s, copied=tuple((key, faster(n, copied), limit) for key, copied, limit in s.copied))
        for n, s in enumerate(e.samples)
    ]
    # The node's own limit is not what was broken.
    return replace(e, samples=samples, limits=[LimitFact(1, 0, 1, 10 * forge.RATE)])


def node_beyond_its_limit(e: Evidence) -> Evidence:
    """Three copies, each within its own limit, together above the node's."""
    samples = [
        replace(
            s,
            copied=tuple(
                ((topic, n, d, c), copied, limit) for (topic, _, d, c), copied, limit in s.copied for n in range(4)
            ),
        )
        for s in e.samples
    ]
    return replace(e, samples=samples, limits=[LimitFact(1, -60 * SECOND, -59 * SECOND, 2 * forge.RATE)])


def throttle_left_behind(e: Evidence) -> Evidence:
    return replace(e, throttles=one(e.throttles, 0, value="7"))


def throttle_removed(e: Evidence) -> Evidence:
    return replace(e, throttles=one(e.throttles, 0, value="None"))


def stuck_run(e: Evidence) -> Evidence:
    return replace(e, runs=[*e.runs, RunFact("move-4", 1, "running", waiting="waiting for node 1")])


def failed_without_reason(e: Evidence) -> Evidence:
    return replace(e, runs=[*e.runs, RunFact("move-4", 1, "failed")])


def row_failed_without_reason(e: Evidence) -> Evidence:
    run = RunFact("move-4", 1, "failed", "NodeFailure", (RowFact(OTHER, "failed", B),))
    return replace(e, runs=[*e.runs, run])


def terminated_run(e: Evidence) -> Evidence:
    return replace(e, runs=[*e.runs, RunFact("move-4", 1, "terminated", "by the server")])


def process_that_stays_away(e: Evidence) -> Evidence:
    return replace(e, roles=one(e.roles, 0, works=False, why="it does not run"))


def second_start_removed_a_replica(e: Evidence) -> Evidence:
    return replace(e, boots=[e.boots[0], Boot({})])


def second_start_changed_a_replica(e: Evidence) -> Evidence:
    return replace(e, boots=[e.boots[0], Boot({(1, B, "orders-0"): "CURRENT 0 to 18"})])


def second_start_made_a_folder(e: Evidence) -> Evidence:
    more = {**e.boots[0].what, (1, A, "orders-0.move"): "COPYING"}
    return replace(e, boots=[e.boots[0], Boot(more)])


ANOMALIES: dict[str, list[Forger]] = {
    "C1": [
        lost_tail,
        lost_in_the_middle,
        lost_though_only_read,
        lost_below_a_log_start_nobody_asked_for,
        log_start_beyond_what_was_deleted,
        retention_took_too_much,
        partition_that_cannot_be_read,
    ],
    "C2": [
        two_values_at_one_offset,
        consumers_disagree,
        disk_holds_something_else,
        refused_record_is_there,
        record_that_nobody_sent,
        record_of_another_topic,
    ],
    "C3": [idempotent_record_twice, acknowledged_twice],
    "C4": [
        hole_that_nobody_knew,
        final_read_out_of_order,
        producer_out_of_order,
        unacknowledged_record_behind_later_ones,
    ],
    "C5": [
        consumer_skipped,
        consumer_was_given_a_record_again,
        consumer_went_back,
        consumer_began_beyond_its_assignment,
    ],
    "C6": [
        batch_changed_at_the_swap,
        batch_missing_after_the_swap,
        head_missing_after_the_swap,
        corrupt_batch_on_the_disk,
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
    "C8": [
        copy_left_behind,
        source_left_behind,
        replica_in_two_directories,
        deleted_topic_came_back,
        replica_nowhere,
        metadata_knows_another_directory,
        last_move_went_elsewhere,
        described_copy_without_a_move,
        described_where_no_folder_is,
    ],
    "C9": [offline_directory_serves, healthy_directory_is_offline, other_directories_are_slow],
    "C10": [copy_beyond_its_limit, node_beyond_its_limit],
    "C11": [throttle_left_behind, throttle_removed],
    "C12": [
        stuck_run,
        failed_without_reason,
        row_failed_without_reason,
        terminated_run,
        process_that_stays_away,
    ],
    "C13": [
        out_of_range_without_reason,
        out_of_range_beyond_the_end,
        out_of_range_though_nothing_was_deleted_there,
    ],
    "C14": [second_start_removed_a_replica, second_start_changed_a_replica, second_start_made_a_folder],
}


def test_a_sound_history_passes() -> None:
    assert [str(finding) for finding in found(forge.sound())] == []


def test_every_check_has_forged_anomalies() -> None:
    assert list(ANOMALIES) == [each.id for each in CHECKS]


@pytest.mark.parametrize(
    ("expected", "anomaly"),
    [pytest.param(c, f, id=f"{c}-{f.__name__}") for c, forgers in ANOMALIES.items() for f in forgers],
)
def test_a_forged_anomaly_is_found_by_its_check_alone(expected: str, anomaly: Forger) -> None:
    findings = found(anomaly(forge.sound()))
    assert {finding.check for finding in findings} == {expected}, [str(finding) for finding in findings]


def test_a_value_in_two_partitions_is_a_duplicate() -> None:
    findings = found(idempotent_record_in_two_partitions(forge.sound()))
    assert [f.check for f in findings] == ["C3"]
    assert "0:20" in findings[0].sentence and "1:6" in findings[0].sentence


def test_a_plain_producers_duplicate_is_no_damage() -> None:
    assert not found(with_final(forge.sound(), OTHER, lambda read: forge.appended(read, value(OTHER, 7))))


def test_an_open_send_may_be_there_or_not() -> None:
    assert not found(with_final(forge.sound(), OTHER, lambda read: forge.appended(read, "sure-open")))


def test_what_was_deleted_on_purpose_is_not_lost_even_if_the_answer_never_came() -> None:
    opened = with_events(
        forge.sound(), lambda x: replace(x, type=INFO, error="timed out") if x.process == "nemesis" else x
    )
    assert not found(opened)


def test_a_fault_excuses_its_directory() -> None:
    sound = forge.sound()
    offline = replace(sound, directories=one(sound.directories, 1, error="KAFKA_STORAGE_ERROR", replicas=()))
    assert not found(replace(offline, faults=[FaultFact(1, B, at(5), at(8))]))


def test_a_limit_just_changed_is_not_held_against_a_copy() -> None:
    changing = [LimitFact(1, -60 * SECOND, -59 * SECOND, 10), LimitFact(1, at(0), at(1), 10 * forge.RATE)]
    fast = node_beyond_its_limit(forge.sound())
    assert not found(replace(fast, limits=changing))


def test_findings_tell_the_evidence() -> None:
    sentence = found(lost_in_the_middle(forge.sound()))[0].sentence
    for word in ("plain-orders1-7", "orders-1", "offset 7", "17.000 s", "17.100 s", "from 0 to 20"):
        assert word in sentence


def test_many_findings_of_one_kind_are_cut_short() -> None:
    findings = found(with_final(forge.sound(), OTHER, lambda read: forge.cut_at(read, 2)))
    assert len(findings) == 6
    assert "13 more" in findings[-1].sentence


# Any single change


@settings(deadline=None)
@given(st.sampled_from([ORDERS, OTHER, TICKS]), st.integers(0, COUNT - 1), st.sampled_from(["gone", "other", "twice"]))
def test_any_single_change_of_what_is_read_at_the_end_is_found(place: forge.Place, offset: int, how: str) -> None:
    sound = forge.sound()
    low = sound.final[place].low
    offset = max(offset, low)
    if how == "gone":
        changed = with_final(sound, place, lambda read: forge.without(read, offset))
    elif how == "other":
        changed = with_final(sound, place, lambda read: forge.renamed(read, offset, f"forged-{offset}"))
    else:
        even = max(low, offset - offset % 2)
        even += even % 2
        changed = with_final(sound, place, lambda read: forge.appended(read, value(place, even)))
    assert found(changed)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(-3, 3).filter(bool))
def test_any_acknowledged_offset_that_is_not_so_is_found(which: int, by: int) -> None:
    sound = forge.sound()
    acks = [x for x in sound.history if x.op == SEND and x.type == OK and x.offset >= forge.RETAINED]
    victim = acks[which % len(acks)]
    changed = with_events(sound, lambda x: replace(x, offset=x.offset + by) if x is victim else x)
    assert found(changed)


@settings(deadline=None)
@given(st.data())
def test_any_single_change_of_a_poll_is_found(data: st.DataObject) -> None:
    sound = forge.sound()
    polls = [x for x in sound.history if x.op == POLL and x.type == OK]
    victim = data.draw(st.sampled_from(polls))
    number = data.draw(st.integers(0, len(victim.records) - 1))
    offset, what = victim.records[number]
    last = number == len(victim.records) - 1
    new = data.draw(st.sampled_from(["value", "offset"] if last else ["value", "offset", "gone"]))
    records = list(victim.records)
    if new == "gone":
        del records[number]
    else:
        records[number] = (offset, f"{what}x") if new == "value" else (offset + data.draw(st.integers(1, 9)), what)
    assert found(with_events(sound, lambda x: replace(x, records=tuple(records)) if x is victim else x))


@settings(deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["low", "high"]), st.integers(1, 5))
def test_a_mark_that_is_too_low_is_found(which: int, field: str, by: int) -> None:
    sound = forge.sound()
    marks = [x for x in sound.history if x.op == MARKS and (field == "high" or (x.place == ORDERS and x.low))]
    victim = marks[which % len(marks)] if field == "high" else marks[-1]
    changed = {"high": victim.high - by} if field == "high" else {"low": max(0, victim.low - by)}
    assert {f.check for f in found(with_events(sound, lambda x: replace(x, **changed) if x is victim else x))} == {"C7"}


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=3, max_size=30), st.data())
def test_any_single_change_of_a_copy_is_found(sizes: list[int], data: st.DataObject) -> None:
    batches, base = [], 0
    for number, size in enumerate(sizes):
        batches.append(Batch(base, base + size - 1, number))
        base += size
    assert compare(batches, batches, 0, base) == (len(batches), ())
    victim = data.draw(st.integers(0, len(batches) - 1))
    copy = list(batches)
    how = data.draw(st.sampled_from(["gone", "bytes", "split"]))
    if how == "gone":
        del copy[victim]
    elif how == "bytes":
        copy[victim] = replace(copy[victim], digest=-1)
    else:
        copy[victim] = replace(copy[victim], last=copy[victim].last + 1)
    _, differences = compare(batches, copy, 0, base)
    assert differences and differences[0][0] == batches[victim].base


def test_what_stands_outside_the_compared_range_does_not_count() -> None:
    source = [Batch(0, 4, 1), Batch(5, 9, 2), Batch(10, 14, 3)]
    copy = [Batch(5, 9, 2), Batch(10, 14, 4)]
    assert compare(source, copy, 5, 10) == (1, ())
    assert compare(source, copy, 4, 10)[1] == ((0, 1, None),)
    assert compare(source, copy, 5, 11)[1] == ((10, 3, 4),)


def test_directories_are_named() -> None:
    assert A in found(copy_left_behind(forge.sound()))[0].sentence
