"""A Spark data source of an export folder: `spark.readStream.format("temporal_history").load(FOLDER)`.

The offset of the stream is the number of the newest manifest, so that a batch is a range of exports, and the same range
after a crash. Options: `after`, up to which number nothing is read; `base`, which is added to the numbers of a folder
whose exports began again at 1; `files`, the only ones to read, as JSON of `files_of`. `spark.read` reads the same
records at once.
The source is a plain value that Spark sends to its Python workers, which read the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from activities.history.manifest import FOLDER, ExportCorrupt, Manifest, decode, from_iso, manifest_name, pruned
from ops.analytics.lake.decode import MANIFEST, QUARANTINE, UNKNOWN_MANIFEST, Bad, Record, checked, read_file
from ops.analytics.schema.ledger import RECORDS

NAME = "temporal_history"
#: The reason of quarantine of exports that were removed before they were read.
PRUNED = "pruned"

#: Records per Arrow batch.
BATCH = 4096
#: Bytes of files per task.
TASK_BYTES = 8 * 1024 * 1024

_ARROW = pa.schema(
    [
        pa.field(field.name, {"bigint": pa.int64(), "timestamp": pa.timestamp("us", tz="UTC")}.get(kind, pa.string()))
        for field in RECORDS.fields
        for kind in [field.dataType.simpleString()]
    ]
)
File = dict[str, Any]


@dataclass
class Files(InputPartition):  # type: ignore[misc]
    """Files that one task reads, as `files_of` returns them."""

    files: list[File]

    def __init__(self, files: list[File]) -> None:
        self.files = files


class TemporalHistory(DataSource):  # type: ignore[misc]
    """Exports of histories in Temporal's export protobuf, from rehome's exporter or another with its manifests."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> Any:
        """Return the schema of the records."""
        return RECORDS

    def reader(self, schema: Any) -> DataSourceReader:
        """Return a reader of all exports."""
        return HistoryReader(
            self.options["path"],
            int(self.options.get("after", "0")),
            int(self.options.get("base", "0")),
            self.options.get("files", ""),
        )

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return a reader of exports as they come."""
        base = int(self.options.get("base", "0"))
        return HistoryStream(self.options["path"], int(self.options.get("after", "0")), base)


class HistoryReader(DataSourceReader):  # type: ignore[misc]
    """Reads the exports after a manifest's number, or some files."""

    def __init__(self, folder: str, after: int, base: int = 0, files: str = "") -> None:
        self._folder, self._after, self._base, self._files = Path(folder), after, base, files

    def partitions(self) -> Sequence[InputPartition]:
        """Return the files, spread over tasks."""
        if self._files:
            return spread(json.loads(self._files))
        return spread(files_of(self._folder, self._after, newest(self._folder) + self._base, self._base))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of the partition's files."""
        return _read(partition)


class HistoryStream(DataSourceStreamReader):  # type: ignore[misc]
    """Reads ranges of exports; the offset is {"sequence": the newest manifest's number}."""

    def __init__(self, folder: str, after: int, base: int = 0) -> None:
        self._folder, self._after, self._base = Path(folder), after, base

    def initialOffset(self) -> dict[str, int]:
        """Return the offset before the first batch."""
        return {"sequence": self._after}

    def latestOffset(self) -> dict[str, int]:
        """Return the newest manifest's number."""
        return {"sequence": max(self._after, newest(self._folder) + self._base)}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        """Return the files of the manifests after `start` up to `end`, spread over tasks."""
        return spread(files_of(self._folder, start["sequence"], end["sequence"], self._base))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of the partition's files."""
        return _read(partition)


def numbers(folder: Path) -> dict[int, Path]:
    """Return the manifests in an export folder by number. Raises OSError."""
    found: dict[int, Path] = {}
    for path in sorted((folder / FOLDER).glob("[!.]*.json")):
        if re.fullmatch(r"\d{8,}", path.stem):
            found[int(path.stem)] = path
    return found


def newest(folder: Path) -> int:
    """Return the newest manifest's number; 0 without any."""
    return max(numbers(folder), default=0)


def numbered_again(folder: Path, number: int, export_id: str) -> bool:
    """Return whether the exports of a folder began again at 1 since its manifest of this number was read.

    An operator has emptied the folder, because a manifest was damaged for example.
    """
    present = numbers(folder)
    if number not in present:
        return bool(present) and 1 in present and manifest_name(number) > pruned(folder)
    try:
        return decode(present[number].read_bytes(), str(present[number])).export_id != export_id
    except (ExportCorrupt, OSError):
        return False


def manifests(folder: Path, after: int, through: int) -> Iterator[tuple[int, Manifest | str]]:
    """Yield each manifest of a range with its number; for one that is missing or malformed, why.

    Pruned manifests are left out, except for one sentence about those that no ingest has read.
    """
    present, gone = numbers(folder), pruned(folder)
    unread = [number for number in range(after + 1, through + 1) if manifest_name(number) <= gone]
    if after and unread:
        names = " to ".join(dict.fromkeys(manifest_name(number) for number in (unread[0], unread[-1])))
        yield (
            unread[0],
            f"the exports {names} were removed before they were read: ingest more often, or keep them longer",
        )
    for number in range(after + 1 + len(unread), through + 1):
        path = present.get(number)
        if path is None:
            yield number, f"the manifest {manifest_name(number)} does not exist: restore it or export again"
            continue
        try:
            yield number, decode(path.read_bytes(), str(path))
        except (ExportCorrupt, OSError) as error:
            yield number, str(error)


def files_of(folder: Path, after: int, through: int, base: int = 0) -> list[File]:
    """Return the files of a range of manifests, and what of them is to go to quarantine unread.

    `after` and `through` are sequence numbers: those of the manifests and `base`.
    """
    files: list[File] = []
    for number, manifest in manifests(folder, max(0, after - base), through - base):
        name = f"{FOLDER}/{manifest_name(number)}"
        if isinstance(manifest, str):
            reason = PRUNED if manifest_name(number) <= pruned(folder) else UNKNOWN_MANIFEST
            files.append(_unread(number + base, name, reason, manifest))
            continue
        taken = from_iso(manifest.taken_at)
        head = {
            "sequence": number + base,
            "export_id": manifest.export_id,
            "taken_at": round(taken.timestamp() * 1_000_000),
            "namespace": manifest.namespace,
        }
        files.append({**head, "path": "", "name": name, "kind": MANIFEST, "bytes": 0, "events": 0})
        for file in manifest.files:
            if not inside(folder, file.name):
                message = f"{manifest.name} names {file.name!r}, which is outside the export folder: it is not read"
                files.append(
                    {**head, **_unread(number + base, file.name, "foreign", message), "events": file.events, **head}
                )
                continue
            files.append(
                {
                    **head,
                    "path": str((folder / file.name).absolute()),
                    "name": file.name,
                    "kind": file.kind,
                    "bytes": file.bytes,
                    "sha256": file.sha256,
                    "events": file.events,
                    "runs": [[run.workflow_id, run.run_id, run.history_length] for run in file.runs],
                }
            )
        files += [
            {**_unread(number + base, name, "foreign", f"{name} is in no manifest: it is not read"), **head}
            for name in strangers(folder, manifest)
        ]
    return files


def restored(folder: Path, sequence: int, name: str, base: int = 0) -> list[File]:
    """Return what can be read now of a file, or of a manifest and its files, that went to quarantine."""
    if sequence <= base:
        return []  # of exports that are gone: those of this folder began again at 1
    files = files_of(folder, sequence - 1, sequence, base)
    if name == f"{FOLDER}/{manifest_name(sequence - base)}":
        return files if any(file["kind"] == MANIFEST for file in files) else []
    return [file for file in files if file["name"] == name and file["kind"] != QUARANTINE and _readable(file)]


def _readable(file: File) -> bool:
    try:
        checked(file)
    except Bad:
        return False
    return True


def _unread(number: int, name: str, reason: str, message: str) -> File:
    return {
        "sequence": number, "export_id": None, "taken_at": None, "namespace": None, "path": "", "name": name,
        "kind": QUARANTINE, "bytes": 0, "events": 0, "reason": reason, "message": message,
    }  # fmt: skip


def inside(folder: Path, name: str) -> bool:
    """Return whether a file of a manifest is in its export folder, without a link that leads out of it."""
    path = Path(name)
    return (
        not path.is_absolute() and ".." not in path.parts and (folder / path).resolve().is_relative_to(folder.resolve())
    )


def strangers(folder: Path, manifest: Manifest) -> list[str]:
    """Return the files in an export's folder that its manifest does not name."""
    known = {file.name for file in manifest.files}
    found = (path for path in folder.glob(f"dt=*/run={_literal(manifest.export_id)}/*") if path.is_file())
    return sorted(str(path.relative_to(folder)) for path in found if str(path.relative_to(folder)) not in known)


def _literal(text: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", text)


def spread(files: Sequence[File], task_bytes: int = TASK_BYTES) -> list[InputPartition]:
    """Return partitions of similar size, the largest files first."""
    tasks = max(1, min(len(files), sum(int(file["bytes"]) for file in files) // task_bytes))
    bins: list[list[File]] = [[] for _ in range(tasks)]
    sizes = [0] * tasks
    for file in sorted(files, key=lambda file: -int(file["bytes"])):
        smallest = sizes.index(min(sizes))
        bins[smallest].append(file)
        sizes[smallest] += int(file["bytes"])
    return [Files(files) for files in bins]


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    files = partition.files if isinstance(partition, Files) else []
    records = (record for file in files for record in read_file(file))
    while rows := list(islice(records, BATCH)):
        yield batch(rows)


def batch(rows: Sequence[Record]) -> pa.RecordBatch:
    """Return records as one Arrow batch."""
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), type=field.type) for column, field in zip(columns, _ARROW, strict=True)], schema=_ARROW
    )
