"""Make a copy fit its source again by truncating it to the prefix that both share.

The source may have been truncated, or have lost its beginning, while no copier ran. The leader epochs show where the
two diverge; the copy's last batch is compared with the source's byte for byte as well.
"""

from __future__ import annotations

from storage_node.errors import OffsetOutOfRange
from storage_node.log.log import Log
from storage_node.move.future import FutureLog
from storage_node.move.moving import OpenMove


def fit_to_source(opened: OpenMove) -> None:
    """Truncate the copy to the longest prefix that it shares with the source, or empty it and start it at the source's
    log start offset.
    """
    source, future = opened.move.partition.log, opened.future
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
            # The empty log accepts a first batch that begins before `start` and reaches beyond it.
            future.truncate_fully(start)


def fits_source(opened: OpenMove) -> bool:
    """Return whether the copy is a prefix of the source, by leader epochs, ends and the last batch; else repair the
    copy.

    It detects a source that was truncated between the read and the write of a chunk.
    """
    source, future = opened.move.partition.log, opened.future
    future.apply_deferred()
    end = common_end(
        source.leader_epochs.entries, source.log_end_offset, future.leader_epochs.entries, future.log_end_offset
    )
    if end == future.log_end_offset and (not future.size or same_last_batch(source, future)):
        return True
    fit_to_source(opened)
    return False


def common_end(
    source: tuple[tuple[int, int], ...], source_end: int, copy: tuple[tuple[int, int], ...], copy_end: int
) -> int:
    """Return the offset up to which two logs hold the same records, by their lists of (leader epoch, start offset)."""
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
            # The epoch is older than all that the source has: the source's beginning was deleted, up to its oldest
            # epoch.
            return min(end, source[0][1])
        end = begins
    return end


def same_last_batch(source: Log, copy: FutureLog) -> bool:
    """Return whether the copy's last batch is at the same offsets in the source; also true where the source no longer
    has it.
    """
    last = copy.log_end_offset - 1
    if last < source.log_start_offset or last < copy.log_start_offset:
        return True
    try:
        return bytes(source.read(last, 1).data) == bytes(copy.read(last, 1).data)
    except OffsetOutOfRange:
        return last < source.log_start_offset
