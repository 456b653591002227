"""The history of leader epochs: its file, and the responses to OffsetForLeaderEpoch."""

from __future__ import annotations

import pytest

from storage_node.log.leader_epochs import LeaderEpochs

HISTORY = LeaderEpochs(((2, 0), (3, 11), (5, 31)))


def test_golden_bytes() -> None:
    assert HISTORY.encode() == b"0\n3\n2 0\n3 11\n5 31\n"
    assert LeaderEpochs.decode(HISTORY.encode()) == HISTORY
    assert LeaderEpochs().encode() == b"0\n0\n"
    assert LeaderEpochs.decode(b"") == LeaderEpochs.decode(b"0\n0\n") == LeaderEpochs()


@pytest.mark.parametrize(
    "data", [b"1\n0\n", b"0\n", b"0\n2\n1 0\n", b"0\n1\n1 0\n2 5\n", b"0\n1\n1\n", b"0\nx\n", b"\xff"]
)
def test_damaged_file_is_rejected(data: bytes) -> None:
    with pytest.raises(ValueError):
        LeaderEpochs.decode(data)


@pytest.mark.parametrize(
    ("epoch", "start", "entries"),
    [
        (6, 40, ((2, 0), (3, 11), (5, 31), (6, 40))),
        (5, 35, ((2, 0), (3, 11), (5, 31))),  # already known
        (6, 31, ((2, 0), (3, 11), (6, 31))),  # 5 never had a record
        (6, 20, ((2, 0), (3, 11), (6, 20))),
        (4, 40, ((2, 0), (3, 11), (4, 40))),  # contradicts 5
        (5, 20, ((2, 0), (3, 11), (5, 20))),
        (-1, 50, HISTORY.entries),
    ],
)
def test_assigning(epoch: int, start: int, entries: tuple[tuple[int, int], ...]) -> None:
    assert HISTORY.assign(epoch, start).entries == entries


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(5, (5, 50)), (4, (3, 31)), (3, (3, 31)), (2, (2, 11)), (1, (1, 0)), (6, (-1, -1)), (-1, (-1, -1))],
)
def test_where_an_epoch_ends(epoch: int, expected: tuple[int, int]) -> None:
    assert HISTORY.end_offset_for(epoch, 50) == expected


def test_without_history_nothing_is_known() -> None:
    assert LeaderEpochs().latest == -1
    assert LeaderEpochs().end_offset_for(0, 10) == (-1, -1)
    assert LeaderEpochs().epoch_for(3) == -1


@pytest.mark.parametrize(("offset", "epoch"), [(0, 2), (10, 2), (11, 3), (30, 3), (31, 5), (900, 5)])
def test_which_epoch_an_offset_has(offset: int, epoch: int) -> None:
    assert HISTORY.epoch_for(offset) == epoch


def test_truncating_at_both_ends() -> None:
    assert HISTORY.truncated_from_end(31).entries == ((2, 0), (3, 11))
    assert HISTORY.truncated_from_end(32) == HISTORY
    assert HISTORY.truncated_from_end(0) == LeaderEpochs()
    assert HISTORY.truncated_from_start(0) == HISTORY
    assert HISTORY.truncated_from_start(12).entries == ((3, 12), (5, 31))
    assert HISTORY.truncated_from_start(31).entries == ((5, 31),)
    assert HISTORY.truncated_from_start(90).entries == ((5, 90),)
