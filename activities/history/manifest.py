"""The contents of an export folder: one numbered manifest per export, each with the names of its files.

A file counts only if a manifest names it. Manifests are written last and appear by one rename, so that a reader sees an
export whole or not at all:

    <dir>/dt=2026-11-20/run=<export id>/part-00000.pb    histories of closed runs (temporal.api.export.v1)
    <dir>/dt=2026-11-20/run=<export id>/open-00000.pb    histories so far of runs still open
    <dir>/dt=2026-11-20/run=<export id>/open-00000.json  the pending activities of those, which histories lack
    <dir>/_manifest/00000001.json                        the manifest, which names its parent
    <dir>/_manifest/pruned                               the newest removed manifest, if any was removed
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

#: The version of the manifest's format. A reader rejects newer ones.
FORMAT = 2
FOLDER = "_manifest"
#: The file with the name of the newest pruned manifest; those up to it do not count, even if they still exist.
PRUNED = "pruned"

CLOSED = "closed"
OPEN = "open"
PENDING = "pending"


class ExportCorrupt(Exception):
    """An export folder contradicts its manifests: a file is missing or altered, or a manifest cannot be read."""


def to_iso(at: datetime) -> str:
    """Return a UTC time stamp in ISO 8601 with microseconds, which sorts as text."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_iso(text: str) -> datetime:
    """Parse a time stamp as of `to_iso`, or with an offset or no fraction; a naive one is UTC. Raises ValueError."""
    at = datetime.fromisoformat(text)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run in a file, in the file's order. `digest` is only set for open runs, and changes with them."""

    workflow_id: str
    run_id: str
    workflow_type: str
    history_length: int
    close_time: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of an export; `name` is relative to the export folder, close times are "" without closed runs."""

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
    """One export. `taken_at` is the time that it represents, `watermark` the newest close time listed so far.

    `oldest_closed` is the oldest close time of a run that no export had before this one, "" without such a run.
    `retention_seconds` is for how long the server kept closed runs then, 0 if unknown. Format 1 lacks both.
    """

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
    oldest_closed: str = ""
    retention_seconds: int = 0

    @property
    def name(self) -> str:
        """Return the manifest's file name, which its child records as `parent`."""
        return manifest_name(self.sequence)

    def encode(self) -> bytes:
        """Return the manifest as JSON, with sorted keys and a final line feed."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode() + b"\n"


def manifest_name(sequence: int) -> str:
    """Return the file name of the manifest with that number."""
    return f"{sequence:08d}.json"


def decode(data: bytes, where: str) -> Manifest:
    """Decode a manifest from its file's bytes. Raises ExportCorrupt with `where` in its message."""
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
    """Return the manifests of all exports in a folder, oldest first.

    Raises ExportCorrupt if a manifest is malformed or one in the middle is missing, OSError if it cannot be read.
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


def newest_manifest(directory: Path) -> Manifest | None:
    """Return the newest manifest of an export folder, None without one that can be read."""
    try:
        path = max((directory / FOLDER).glob("[!.]*.json"), default=None)
        return decode(path.read_bytes(), str(path)) if path else None
    except (ExportCorrupt, OSError):
        return None


def pruned(directory: Path) -> str:
    """Return the name of the newest manifest that was removed, "" while all are kept. Raises OSError."""
    note = directory / FOLDER / PRUNED
    return note.read_text().strip() if note.exists() else ""


def close_bounds(runs: Iterable[RunEntry]) -> tuple[str, str]:
    """Return the smallest and largest close time among the runs, "" and "" if none is closed."""
    times = sorted(run.close_time for run in runs if run.close_time)
    return (times[0], times[-1]) if times else ("", "")
