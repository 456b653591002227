"""What an export folder holds: one numbered manifest per export, each naming the files that belong to it.

A file counts only if a manifest names it. Manifests are written last and appear by one rename, so a reader sees an
export whole or not at all:

    <dir>/dt=2026-11-20/run=<export id>/part-00000.pb    histories of closed runs (temporal.api.export.v1)
    <dir>/dt=2026-11-20/run=<export id>/open-00000.pb    histories so far of runs still open
    <dir>/dt=2026-11-20/run=<export id>/open-00000.json  what only the server knows of those: pending activities
    <dir>/_manifest/00000001.json                        the manifest, naming its parent
    <dir>/_manifest/pruned                               which manifests were removed, where some were
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

#: Version of the manifest's format. A reader refuses what is newer.
FORMAT = 1
FOLDER = "_manifest"
#: Names the newest manifest that was removed since it was old; those up to it do not count, if there still are any.
PRUNED = "pruned"

CLOSED = "closed"
OPEN = "open"
PENDING = "pending"


class ExportCorrupt(Exception):
    """An export folder contradicts its manifests: a file is missing or altered, or a manifest cannot be read."""


def to_iso(at: datetime) -> str:
    """A UTC time stamp in ISO 8601 with microseconds, which sorts as text."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_iso(text: str) -> datetime:
    """The inverse of `to_iso`, lenient about offsets and missing fractions. Raises ValueError; a naive time is UTC."""
    at = datetime.fromisoformat(text)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run in a file, in the file's order. `digest` is set for open runs only: it changes when there is news."""

    workflow_id: str
    run_id: str
    workflow_type: str
    history_length: int
    close_time: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of an export; `name` is relative to the export folder, close times are "" where nothing closed."""

    name: str
    kind: str
    bytes: int
    sha256: str
    events: int = 0
    min_close_time: str = ""
    max_close_time: str = ""
    runs: tuple[RunEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """One export. `taken_at` is the time as of which it holds, `watermark` the newest close time exported so far."""

    sequence: int
    export_id: str
    parent: str
    namespace: str
    query: str
    taken_at: str
    watermark: str
    exporter: str
    files: tuple[FileEntry, ...] = ()
    format: int = FORMAT

    @property
    def name(self) -> str:
        """The manifest's file name, which its child records as `parent`."""
        return manifest_name(self.sequence)

    def encode(self) -> bytes:
        """The manifest as JSON, keys sorted, with a final line feed."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode() + b"\n"


def manifest_name(sequence: int) -> str:
    """The file name of the manifest with that number."""
    return f"{sequence:08d}.json"


def decode(data: bytes, where: str) -> Manifest:
    """A manifest from its file's bytes. Raises ExportCorrupt with `where` in its message."""
    try:
        value: dict[str, Any] = json.loads(data)
        if value["format"] > FORMAT:
            raise ExportCorrupt(
                f"{where} has format {value['format']}, this version reads up to {FORMAT}: upgrade rehome"
            )
        files = tuple(
            FileEntry(**{**entry, "runs": tuple(RunEntry(**run) for run in entry["runs"])}) for entry in value["files"]
        )
        return Manifest(**{**value, "files": files})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportCorrupt(f"{where} is not a manifest of an export ({error}): restore it or export again") from error


def read_manifests(directory: Path) -> tuple[Manifest, ...]:
    """All exports of a folder, oldest first; nothing where there is no export yet.

    Raises ExportCorrupt if a manifest is unreadable or one in the middle is missing, OSError if it cannot be read.
    """
    folder = directory / FOLDER
    if not folder.is_dir():
        return ()
    parent = pruned(directory)
    paths = sorted(path for path in folder.glob("[!.]*.json") if path.name > parent)
    manifests = tuple(decode(path.read_bytes(), str(path)) for path in paths)
    for path, manifest in zip(paths, manifests, strict=True):
        if path.name != manifest.name or manifest.parent != parent:
            raise ExportCorrupt(
                f"{path} names {manifest.parent or 'no manifest'} as its parent where {parent or 'none'} is expected: "
                "a manifest is missing or was renamed; restore it or export again into an empty folder"
            )
        parent = manifest.name
    return manifests


def pruned(directory: Path) -> str:
    """The name of the newest manifest that was removed, "" while all are kept. Raises OSError."""
    note = directory / FOLDER / PRUNED
    return note.read_text().strip() if note.exists() else ""


def close_bounds(runs: Iterable[RunEntry]) -> tuple[str, str]:
    """The smallest and largest close time among the runs, "" and "" if none is closed."""
    times = sorted(run.close_time for run in runs if run.close_time)
    return (times[0], times[-1]) if times else ("", "")
