"""Where an offline move takes each replica, and what its next step is."""

from __future__ import annotations

import itertools

import pytest

from ops.disks.moving import CopyState, MoveRefused, Room, Seen, Step, assign, headroom, lacking, next_step
from storage_node.model.ids import TopicPartition

TP = TopicPartition("t", 0)
REFUSED = None

#: (source, target, copy): what was found -> what is done next.
TABLE = {
    (True, False, CopyState.NONE): Step.COPY,
    (True, False, CopyState.PARTIAL): Step.COPY,
    (True, False, CopyState.STALE): Step.COPY,
    (True, False, CopyState.PLACED): Step.COPY,
    (True, False, CopyState.COMPLETE): Step.PLACE,
    (True, True, CopyState.NONE): REFUSED,
    (True, True, CopyState.PARTIAL): REFUSED,
    (True, True, CopyState.STALE): REFUSED,
    (True, True, CopyState.COMPLETE): REFUSED,
    (True, True, CopyState.PLACED): Step.SET_ASIDE,
    (False, True, CopyState.NONE): Step.DONE,
    (False, True, CopyState.PLACED): Step.TIDY,
    (False, True, CopyState.PARTIAL): REFUSED,
    (False, True, CopyState.STALE): REFUSED,
    (False, True, CopyState.COMPLETE): REFUSED,
    **{(False, False, copy): REFUSED for copy in CopyState},
}


def test_table_has_every_state() -> None:
    assert set(TABLE) == set(itertools.product((True, False), (True, False), CopyState))


@pytest.mark.parametrize("found", TABLE, ids=str)
def test_next_step(found: tuple[bool, bool, CopyState]) -> None:
    wanted = TABLE[found]
    if wanted is None:
        with pytest.raises(MoveRefused, match="t-0"):
            next_step(TP, Seen(*found))
    else:
        assert next_step(TP, Seen(*found)) is wanted


def parts(*sizes: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", number): size for number, size in enumerate(sizes)}


def test_assign_fills_the_emptier_directory_first() -> None:
    rooms = [Room("/a", 100, 1), Room("/b", 150, 2)]
    chosen = assign(parts(60, 50, 40), rooms, {})
    assert [chosen[tp] for tp in parts(0, 0, 0)] == ["/b", "/a", "/b"]


def test_assign_keeps_the_directory_of_a_begun_copy() -> None:
    rooms = [Room("/a", 10, 1), Room("/b", 1000, 2)]
    assert assign(parts(60), rooms, {TP: "/a"}) == {TP: "/a"}
    assert assign(parts(60), rooms, {TP: "/gone"}) == {TP: "/b"}


def test_lacking_counts_directories_of_one_file_system_together() -> None:
    gib = 1 << 30
    rooms = [Room("/a", gib, 1), Room("/b", gib, 1)]
    sizes = parts(gib // 2, gib // 2)
    chosen = {TopicPartition("t", 0): "/a", TopicPartition("t", 1): "/b"}
    assert lacking(sizes, chosen, rooms) == [("/a", gib, gib - headroom(gib))]
    assert lacking(parts(gib // 2, gib // 4), chosen, rooms) == []
