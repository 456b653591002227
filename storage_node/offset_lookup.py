"""Find offsets in a log for ListOffsets: by special timestamps, or the first record at a time or later."""

from __future__ import annotations

from dataclasses import dataclass

from storage_node.log.log import Log

#: ListOffsets sends these instead of a time.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """A result of ListOffsets; -1 where nothing is known."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1


def find_offset(log: Log, timestamp: int, limit: int) -> FoundOffset | None:
    """Return the record for a time, None where there is none before `limit`, and for LATEST. Raises like `Log.read`."""
    if timestamp == LATEST:
        return None
    epochs = log.leader_epochs
    if timestamp == EARLIEST:
        start = log.log_start_offset
        return FoundOffset(start, -1, epochs.epoch_for(start))
    if timestamp == MAX_TIMESTAMP:
        newest = log.max_timestamp()
        found = newest if newest[0] >= 0 else None
    else:
        found = log.offset_for_timestamp(timestamp)
    if found is None or found[0] >= limit:
        return None
    return FoundOffset(found[0], found[1], epochs.epoch_for(found[0]))
