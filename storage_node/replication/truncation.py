"""Where a follower truncates its log when it diverges from the leader's (KIP-101, KIP-279)."""

from __future__ import annotations

from storage_node.errors import OffsetOutOfRange
from storage_node.log.leader_epochs import LeaderEpochs
from storage_node.model.ids import TopicPartition


def truncation_offset(epochs: LeaderEpochs, end: int, diverging: tuple[int, int]) -> int:
    """Return the offset to truncate to, at most `end`, the follower's log end offset.

    `diverging` is the leader's response: its largest epoch at or below the follower's newest, and that epoch's end
    offset. A follower without that epoch drops its newer ones and fetches again.
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
    """Return the epoch and end offset at which a follower's log diverges from the leader's, None if it does not.

    The follower's log ends at `offset` with a record of `last_epoch`. `known`: the leader's largest epoch at or below
    `last_epoch`, and its end offset. Raises OffsetOutOfRange below the leader's log start offset, or if the end of the
    epoch is unknown.
    """
    epoch, end = known
    if epoch < 0 or end < 0:
        raise OffsetOutOfRange(f"the end offset of leader epoch {last_epoch} of {tp} is unknown")
    if offset < log_start:
        raise OffsetOutOfRange(f"the log of {tp} starts at {log_start}")
    return known if epoch < last_epoch or end < offset else None
