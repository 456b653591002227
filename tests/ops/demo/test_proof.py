"""The demo's clients are judged by the checks of the torture: damage is reported, sound data is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ops.demo.proof import Record, Verdict, judge

SOUND = [Record(p, offset, f"v-{p}-{offset}") for p in range(2) for offset in range(5)]
ENDS = {0: 5, 1: 5}
SENT = {record.value for record in SOUND}


def verdict(
    acks: list[Record] | None = None,
    read: list[Record] | None = None,
    consumed: list[Record] | None = None,
    ends: dict[int, int] | None = None,
) -> Verdict:
    return judge(
        SOUND if acks is None else acks,
        SOUND if read is None else read,
        SOUND[1:4] if consumed is None else consumed,
        sent=SENT,
        ends=ends or ENDS,
    )


def test_sound_data_is_sound() -> None:
    found = verdict()
    assert found.sound
    assert (found.acknowledged, found.read, found.consumed) == (10, 10, 3)


def test_unacknowledged_records_may_be_read() -> None:
    assert verdict(acks=SOUND[:-3]).sound


def test_lost_unacknowledged_tail_is_sound() -> None:
    kept = [r for r in SOUND if r.offset < 4]
    assert verdict(kept, kept, [], {0: 4, 1: 4}).sound


SWAPPED = [
    replace(r, value="v-0-3") if r == SOUND[2] else replace(r, value="v-0-2") if r == SOUND[3] else r for r in SOUND
]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (verdict(read=[r for r in SOUND if r.offset != 4]), "v-0-4 was acknowledged by orders-0 at offset 4"),
        (verdict(read=[*SOUND, Record(0, 5, "v-0-4")], ends={0: 6, 1: 5}), "v-0-4 is in orders more than once"),
        (verdict(read=SWAPPED, consumed=[]), "offset 2 of orders-0 is v-0-2 for the acknowledgement"),
        (verdict([], [r for r in SOUND if r != SOUND[2]], []), "has nothing at offset 2"),
        (verdict(read=[SOUND[1], SOUND[0], *SOUND[2:]]), "has offset 0 after 1"),
        (verdict([], [replace(r, value="x") if r == SOUND[2] else r for r in SOUND], []), "no client sent it"),
        (verdict(consumed=[SOUND[0], SOUND[2]]), "skipped to offset 2"),
        (verdict(consumed=[SOUND[1], SOUND[1]]), "received again offset 1"),
        (verdict(consumed=[Record(1, 4, "v-0-0")]), "offset 4 of orders-1"),
    ],
)
def test_damage_is_reported(found: Verdict, words: str) -> None:
    assert words in " | ".join(found.problems)
