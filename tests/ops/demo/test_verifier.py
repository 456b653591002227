"""Every kind of forged damage is found, and sound data is called sound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.demo.verifier import Record, Verdict, judge

SOUND = [Record(p, offset, f"v-{p}-{offset}") for p in range(2) for offset in range(5)]
ENDS = {0: 5, 1: 5}
SENT = {record.value for record in SOUND}


def check(
    acks: list[Record] | None = None, read: list[Record] | None = None, consumed: list[Record] | None = None
) -> Verdict:
    return judge(
        SOUND if acks is None else acks,
        SOUND if read is None else read,
        SOUND[1:4] if consumed is None else consumed,
        sent=SENT,
        ends=ENDS,
    )


def problem(verdict: Verdict) -> str:
    assert not verdict.sound
    return " | ".join(verdict.problems)


def test_sound_data_is_sound() -> None:
    verdict = check()
    assert verdict.sound
    assert (verdict.acknowledged, verdict.read, verdict.consumed) == (10, 10, 3)


def test_records_sent_but_never_acknowledged_may_be_there() -> None:
    assert check(acks=SOUND[:-3]).sound


def test_a_lost_record() -> None:
    told = problem(check(read=[r for r in SOUND if r.offset != 4]))
    assert "acknowledged but not there: v-0-4 at 0:4, v-1-4 at 1:4" in told
    assert "offset missing" in told


def test_a_lost_tail_that_nobody_acknowledged_is_no_damage() -> None:
    kept = [r for r in SOUND if r.offset < 4]
    assert judge(kept, kept, [], sent=SENT, ends={0: 4, 1: 4}).sound


def test_a_duplicate_under_a_new_offset() -> None:
    assert "read twice: v-0-4" in problem(
        judge(SOUND, [*SOUND, Record(0, 5, "v-0-4")], [], sent=SENT, ends={0: 6, 1: 5})
    )


def test_a_value_acknowledged_twice() -> None:
    assert "acknowledged twice" in problem(check(acks=[*SOUND, SOUND[0]]))


def test_a_record_at_another_offset() -> None:
    swapped = [
        replace(r, value="v-0-3") if r == SOUND[2] else replace(r, value="v-0-2") if r == SOUND[3] else r for r in SOUND
    ]
    assert "another record at an acknowledged offset" in problem(check(read=swapped, consumed=[]))


def test_a_gap_in_the_offsets() -> None:
    assert "offset missing: 0:2" in problem(check(acks=[], read=[r for r in SOUND if r != SOUND[2]], consumed=[]))


def test_records_out_of_order() -> None:
    turned = [SOUND[1], SOUND[0], *SOUND[2:]]
    assert "partition read out of order: 0" in problem(check(read=turned))


def test_a_record_that_nobody_sent() -> None:
    forged = [replace(r, value="forged") if r == SOUND[2] else r for r in SOUND]
    assert "read but never sent: forged at 0:2" in problem(check(acks=[], read=forged, consumed=[]))


def test_a_consumer_that_jumped() -> None:
    assert "0:0 then 2" in problem(check(consumed=[SOUND[0], SOUND[2]]))


def test_a_consumer_that_was_given_a_record_twice() -> None:
    assert "0:1 then 1" in problem(check(consumed=[SOUND[1], SOUND[1]]))


def test_a_consumer_that_saw_what_is_gone() -> None:
    assert "saw a record that is not there" in problem(check(consumed=[Record(1, 4, "other")]))


@given(st.sets(st.integers(min_value=0, max_value=9), min_size=1), st.booleans())
def test_any_set_of_lost_records_is_found(lost: set[int], close_the_gap: bool) -> None:
    kept = [record for number, record in enumerate(SOUND) if number not in lost]
    if close_the_gap:
        counters = {0: 0, 1: 0}
        moved = []
        for record in kept:
            moved.append(replace(record, offset=counters[record.partition]))
            counters[record.partition] += 1
        kept = moved
    ends = {p: max((r.offset + 1 for r in kept if r.partition == p), default=0) for p in (0, 1)}
    assert not judge(SOUND, kept, [], sent=SENT, ends=ends).sound


@pytest.mark.parametrize("count", [1, 3, 4])
def test_examples_are_few(count: int) -> None:
    verdict = check(acks=[Record(0, 100 + n, f"x{n}") for n in range(count)])
    assert ("and 1 more" in problem(verdict)) == (count == 4)
