"""Helpers that create logs for tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from storage_node.log import BatchHeader, Log, LogConfig, build_batch, headers
from storage_node.model.ids import TopicPartition

TP = TopicPartition("topic", 0)
SMALL = LogConfig(segment_bytes=2_000, index_interval_bytes=200, retention_ms=-1, file_delete_delay_ms=0)


def open_log(path: Path, config: LogConfig = SMALL, **options: Any) -> Log:
    return Log.open(path, TP, config, directory=str(path.parent), **options)


def batch(count: int = 3, size: int = 10, **options: Any) -> bytes:
    return build_batch([b"v" * size] * count, **options)


def produced(producer: int, sequence: int, count: int = 1, epoch: int = 0, **options: Any) -> bytes:
    return batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **options)


def fill(log: Log, batches: int, *, count: int = 3, size: int = 10, start_ms: int = 1_000, epoch: int = 0) -> None:
    """Append `batches` batches of `count` records, ten milliseconds apart."""
    for number in range(batches):
        log.append_as_leader(batch(count, size, timestamp=start_ms + 10 * number), epoch, now_ms=start_ms)


def read_all(log: Log, start: int | None = None, max_bytes: int = 1 << 20) -> bytes:
    """Read everything from `start` on, in as many reads as necessary."""
    offset = log.log_start_offset if start is None else start
    parts = []
    while (found := log.read(offset, max_bytes)).data:
        parts.append(found.data)
        assert found.next_offset > offset
        offset = found.next_offset
    return b"".join(parts)


def batches_in(data: bytes) -> list[BatchHeader]:
    return [header for _, header in headers(data)]


def all_batches(log: Log) -> list[BatchHeader]:
    return batches_in(read_all(log))


def crashed(log: Log, to: Path) -> Path:
    """Copy the log's files as they are now, as a killed process would leave them."""
    shutil.copytree(log.path, to)
    return to


def files(path: Path, suffix: str) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in sorted(path.iterdir()) if entry.name.endswith(suffix)}
