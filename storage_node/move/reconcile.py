"""Makes a copy fit its source again: whatever the two do not have in common goes from the copy.

The source may have been truncated, or have lost its beginning, while nobody copied. Where the two part is told by
their leader epochs; that the copy's last batch is the source's, byte for byte, is checked on top.
"""

from __future__ import annotations

from storage_node.errors import OffsetOutOfRange
from storage_node.log.log import Log
from storage_node.move.moving import Move


def fit_to_source(move: Move) -> None:
    """Cut the copy to the longest prefix it shares with the source, or empty it and let it begin where the source
    does.
    """
    source, future = move.partition.log, move.future
    assert future is not None
    with future.writing:
        future.apply_deferred()
        end = common_end(
            source.leader_epochs.entries, source.log_end_offset, future.leader_epochs.entries, future.log_end_offset
        )
        start = source.log_start_offset
        if end >= start and future.log_start_offset <= max(start, end):
            if end < future.log_end_offset:
                future.truncate_to(end)
            if future.size and same_last_batch(source, future):
                return
        if future.size or future.log_end_offset != start:
            # A first batch that begins before `start` and reaches beyond it is taken by the empty log as it is.
            future.truncate_fully(start)


def fits_source(move: Move) -> bool:
    """Whether the copy is a prefix of the source, as far as leader epochs, ends and the last batch tell.

    A source that was truncated between the reading and the writing of a chunk shows here; the copy is then mended.
    """
    source, future = move.partition.log, move.future
    assert future is not None
    future.apply_deferred()
    end = common_end(
        source.leader_epochs.entries, source.log_end_offset, future.leader_epochs.entries, future.log_end_offset
    )
    if end == future.log_end_offset and (not future.size or same_last_batch(source, future)):
        return True
    fit_to_source(move)
    return False


def common_end(
    source: tuple[tuple[int, int], ...], source_end: int, copy: tuple[tuple[int, int], ...], copy_end: int
) -> int:
    """Up to which offset two logs hold the same records, going by their histories of (leader epoch, start offset)."""
    end = min(source_end, copy_end)
    if not source or not copy:
        return end
    ours = [*copy, (copy[-1][0] + 1, copy_end)]
    for index, (epoch, begins) in reversed(list(enumerate(copy))):
        if begins >= end:
            continue
        if any(known == epoch for known, _ in source):
            ends = next((offset for known, offset in source if known > epoch), source_end)
            return min(end, ends, ours[index + 1][1])
        if epoch < source[0][0]:
            # Older than all the source remembers: its beginning was deleted since, up to where its oldest epoch begins.
            return min(end, source[0][1])
        end = begins
    return end


def same_last_batch(source: Log, copy: Log) -> bool:
    """Whether the last batch of the copy stands at the same offsets in the source; True where the source has it no
    more.
    """
    last = copy.log_end_offset - 1
    if last < source.log_start_offset or last < copy.log_start_offset:
        return True
    try:
        return bytes(source.read(last, 1).data) == bytes(copy.read(last, 1).data)
    except OffsetOutOfRange:
        return last < source.log_start_offset
