"""Removes the remains of aborted exports from an export folder, and, if the operator has requested it, old exports."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from activities.history.files import write_whole
from activities.history.manifest import FOLDER, PRUNED, Manifest, from_iso, pruned, to_iso


def remove_orphans(directory: Path, manifests: Sequence[Manifest]) -> None:
    """Remove the remains of aborted exports: folders that no manifest names. The lock must be held."""
    ids = {manifest.export_id for manifest in manifests}
    for folder in directory.glob("dt=*/run=*"):
        if folder.name.removeprefix("run=") not in ids and folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
    for leftover in (directory / FOLDER).glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def prune(
    directory: Path, manifests: tuple[Manifest, ...], before: datetime, overlap: timedelta
) -> tuple[Manifest, ...]:
    """Remove the oldest exports, those taken before a time; return the remaining ones. The lock must be held.

    The newest export stays, that of each other query that was used since that time, and so do all with runs that the
    next export of these would list again. The next export removes what a crash leaves. Raises OSError.
    """
    last = len(manifests) - 1
    newest = {(one.namespace, one.query): number for number, one in enumerate(manifests)}
    # A query that is used no more would keep all exports after its last one for ever.
    newest = {key: at for key, at in newest.items() if at == last or manifests[at].taken_at >= to_iso(before)}
    marks = {query: manifests[number].watermark for query, number in newest.items()}
    gone = 0
    for number, one in enumerate(manifests):
        query = one.namespace, one.query
        mark = marks.get(query)
        again = one.watermark and mark and one.watermark >= to_iso(from_iso(mark) - overlap)
        if one.taken_at >= to_iso(before) or newest.get(query) == number or again:
            break
        gone = number + 1
    if gone:
        write_whole(directory / FOLDER / PRUNED, manifests[gone - 1].name.encode() + b"\n")
    through = pruned(directory)
    for path in (directory / FOLDER).glob("[!.]*.json"):
        if path.name <= through:
            path.unlink()
    remove_orphans(directory, manifests[gone:])
    return manifests[gone:]
