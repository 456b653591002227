"""The copy's log: a `Log` whose writers need not agree on a lock of their own.

Two write to it: the copier, and whoever truncates or shortens the replica (both copies are shortened alike, KIP-113).
If they shared the partition's lock, a slow target disk would hold up producers; so each change takes the copy's own
lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from storage_node.log.batch import Buffer
from storage_node.log.config import LogConfig
from storage_node.log.files import Home
from storage_node.log.log import Appended, Log
from storage_node.log.segment import LOG, file_name
from storage_node.types import TopicPartition


class FutureLog(Log):
    """See the module. `writing` is held around every change; take it to make several changes one."""

    def __init__(self, path: Path, tp: TopicPartition, config: LogConfig, directory: str, home: Home) -> None:
        super().__init__(path, tp, config, directory, home)
        self.writing = threading.RLock()

    def append_copied(self, records: Buffer, now_ms: int | None = None) -> Appended:
        with self.writing:
            return super().append_copied(records, now_ms)

    def roll(self, now_ms: int | None = None) -> None:
        with self.writing:
            super().roll(now_ms)

    def truncate_to(self, offset: int) -> None:
        with self.writing:
            super().truncate_to(offset)

    def truncate_fully(self, offset: int) -> None:
        with self.writing:
            super().truncate_fully(offset)

    def advance_log_start(self, offset: int) -> bool:
        with self.writing:
            return super().advance_log_start(offset)

    def delete_old_segments(self, now_ms: int, high_watermark: int | None = None) -> int:
        with self.writing:
            return super().delete_old_segments(now_ms, high_watermark)

    def set_leader_epochs(self, entries: Iterable[tuple[int, int]]) -> None:
        with self.writing:
            super().set_leader_epochs(entries)

    def settle(self) -> None:
        with self.writing:
            super().settle()

    def close(self, clean: bool = True) -> None:
        with self.writing:
            super().close(clean)


def open_copy(path: Path, source: Log, directory: str) -> FutureLog:
    """Open a `.move`, new or found: every batch in it is checked, since nothing says how much of it was flushed.

    Raises like `Log.open`.
    """
    return FutureLog.open(path, source.tp, source.config, directory=directory)


def segment_files(log: Log, since: int) -> list[str]:
    """The names of the .log files that hold offsets from `since` on, the active one last."""
    segments = log.segments
    ends = [segment.base_offset for segment in segments[1:]]
    return [
        file_name(segment.base_offset, LOG)
        for segment, end in zip(segments, [*ends, None], strict=True)
        if end is None or end > since
    ]


def carry_history(source: Log, copy: FutureLog) -> None:
    """Take over what batches alone do not carry: leader epochs without records, and producers whose records are gone.

    Called under the partition's lock when both have the same records.
    """
    with copy.writing:
        start = copy.log_start_offset
        entries = source.leader_epochs.truncated_from_start(start).entries
        if entries != copy.leader_epochs.entries:
            copy.set_leader_epochs(entries)
        copy.producers.producers.update(source.producers.producers)
