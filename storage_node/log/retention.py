"""Which of a log's oldest segments may go: by age, by the log's size, and by the log start offset. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage_node.log.config import LogConfig


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """What retention looks at: a segment's offsets [base, end), its bytes, the time of its newest record in ms."""

    base_offset: int
    end_offset: int
    size: int
    newest_ms: int


def deletable(
    segments: Sequence[SegmentAge], config: LogConfig, *, log_start_offset: int, high_watermark: int, now_ms: int
) -> int:
    """How many of the oldest segments may be deleted; the last one is the active segment.

    An empty active segment never goes, and nothing does that is not wholly below the high watermark.
    """
    excess = sum(s.size for s in segments) - config.retention_bytes if config.retention_bytes >= 0 else -1
    count = 0
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        if segment.end_offset > high_watermark or (last and segment.size == 0):
            break
        too_old = 0 <= config.retention_ms < now_ms - segment.newest_ms
        too_much = excess - segment.size >= 0
        if not (too_old or too_much or segment.end_offset <= log_start_offset):
            break
        excess -= segment.size
        count += 1
    return count
