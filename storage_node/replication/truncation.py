"""Where a follower cuts its log off when its leader's history is another one (KIP-101, KIP-279)."""

from __future__ import annotations

from storage_node.errors import OffsetOutOfRange
from storage_node.log.leader_epochs import LeaderEpochs
from storage_node.types import TopicPartition


def truncation_offset(epochs: LeaderEpochs, end: int, diverging: tuple[int, int]) -> int:
    """The offset to truncate to, at most `end`, the follower's log end offset.

    `diverging` is the leader's word: the largest of its epochs that is not above the follower's newest, and where that
    one ends there. A follower that does not know that epoch drops its own newer ones and asks again.
    """
    epoch, leader_end = diverging
    known, own_end = epochs.end_offset_for(epoch, end)
    if known < 0:
        return min(max(leader_end, 0), end)
    if known != epoch:
        return min(own_end, end)
    return min(own_end, max(leader_end, 0), end)


def divergence(
    tp: TopicPartition, log_start: int, offset: int, last_epoch: int, known: tuple[int, int]
) -> tuple[int, int] | None:
    """Return the epoch and its end where a log that ends at `offset` with a record of `last_epoch` leaves the leader's,
    None where it does not.

    `known`: the largest epoch of the leader that is not above `last_epoch`, and where it ends. Raises OffsetOutOfRange
    below the leader's log start, or where the end of the epoch is not known.
    """
    epoch, end = known
    if epoch < 0 or end < 0:
        raise OffsetOutOfRange(f"it is not known where leader epoch {last_epoch} of {tp} ends")
    if offset < log_start:
        raise OffsetOutOfRange(f"{tp} begins at {log_start}")
    return known if epoch < last_epoch or end < offset else None
