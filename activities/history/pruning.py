"""What leaves an export folder: what a broken-off export left, and, where somebody wants that, old exports."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from activities.history.files import write_whole
from activities.history.manifest import FOLDER, PRUNED, Manifest, from_iso, pruned, to_iso


def remove_orphans(directory: Path, manifests: Sequence[Manifest]) -> None:
    """Remove what a broken-off export left: folders of exports that no manifest names. The lock must be held."""
    ids = {manifest.export_id for manifest in manifests}
    for folder in directory.glob("dt=*/run=*"):
        if folder.name.removeprefix("run=") not in ids and folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
    for leftover in (directory / FOLDER).glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def prune(
    directory: Path, manifests: tuple[Manifest, ...], before: datetime, overlap: timedelta
) -> tuple[Manifest, ...]:
    """Remove the oldest exports, those taken before a time; answers those that are left. The lock must be held.

    The newest answer to each question stays, and so do all that hold runs which the next export would find again. What
    a crash leaves is removed by the next export. Raises OSError.
    """
    newest = {(one.namespace, one.query): number for number, one in enumerate(manifests)}
    marks = {question: manifests[number].watermark for question, number in newest.items()}
    gone = 0
    for number, one in enumerate(manifests):
        question = one.namespace, one.query
        again = one.watermark and one.watermark >= to_iso(from_iso(marks[question]) - overlap)
        if one.taken_at >= to_iso(before) or newest[question] == number or again:
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
