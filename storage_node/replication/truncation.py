"""Where a follower cuts its log off when its leader's history is another one (KIP-101, KIP-279)."""

from __future__ import annotations

from storage_node.log.leader_epochs import LeaderEpochs


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
