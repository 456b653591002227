"""`.kafka_cleanshutdown`: written by a clean shutdown; the next start first reads and removes it."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_node import failpoints
from storage_node.directories import atomic
from storage_node.failpoints import failpoint

__all__ = ["FILE", "NOT_CLEAN", "CleanShutdown", "decode", "encode", "previous_broker_epoch", "take", "write"]

FILE: Final = ".kafka_cleanshutdown"

_LIMIT: Final = 4096
_POINTS: Final = atomic.points("clean_shutdown")
BEFORE_REMOVAL: Final = failpoints.register("clean_shutdown.before_removal")


@dataclass(frozen=True, slots=True)
class CleanShutdown:
    """A directory's record of the last shutdown; `broker_epoch` is -1 if it has none."""

    clean: bool
    broker_epoch: int = -1


NOT_CLEAN: Final = CleanShutdown(False)


def encode(broker_epoch: int) -> bytes:
    """Return the marker's content."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def decode(data: bytes) -> CleanShutdown:
    """Parse a marker; an empty one (older Kafka) is clean with an unknown epoch, an invalid one is not clean."""
    if not data.strip():
        return CleanShutdown(True)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return NOT_CLEAN
    if not isinstance(value, dict) or value.get("version") != 0:
        return NOT_CLEAN
    epoch = value.get("brokerEpoch", -1)
    return CleanShutdown(True, epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else -1)


def previous_broker_epoch(directories: Sequence[CleanShutdown]) -> int:
    """Return the broker epoch of the last clean shutdown; -1 unless all directories have the same one (KIP-966)."""
    epochs = {each.broker_epoch if each.clean else -1 for each in directories}
    return epochs.pop() if len(epochs) == 1 else -1


def take(directory: Path | str) -> CleanShutdown:
    """Read the marker and remove it durably, so that a power loss does not restore it. Raises MetadataIOError."""
    path = Path(directory) / FILE
    with atomic.io_errors(directory, f"taking {FILE}"):
        try:
            data = atomic.read_bytes(path, _LIMIT)
        except FileNotFoundError:
            return NOT_CLEAN
        except OSError as exc:
            if exc.errno != errno.EFBIG:
                raise
            data = b"too large to be a marker"
        failpoint(BEFORE_REMOVAL)
        atomic.remove(path)
    return decode(data)


def write(directory: Path | str, broker_epoch: int) -> None:
    """Write the marker, after all logs of the directory were closed and flushed. Raises MetadataIOError."""
    with atomic.io_errors(directory, f"writing {FILE}"):
        atomic.write_atomic(Path(directory) / FILE, encode(broker_epoch), _POINTS)
