"""Watches of a run: swaps on disk, and the rates of copies."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from functools import partial
from pathlib import Path

from ops.stack.errors import OpsError
from ops.torture import disk
from ops.torture.checks.facts import RateSample, SwapFact
from ops.torture.checks.moves import compare
from ops.torture.history import now
from ops.torture.observers.watching import Observers
from ops.torture.roles import Roles
from ops.torture.topics import IDLE
from storage_node.directories.errors import MalformedMetaProperties
from storage_node.directories.meta import properties as meta_properties
from storage_node.errors import StorageError
from storage_node.replicas import marker as markers
from storage_node.replicas.marker import Marker, MarkerCorrupt, Reason, State

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
#: Seconds for which a sealed source waits for its copy: a crash may happen between the renames.
PATIENCE_SECONDS = 60.0
#: The number of differing swaps of which the source's and the copy's folders are kept for examination.
KEPT = 5


class SwapWatch(Observers):
    """Compare every sealed source with its copy before the node deletes it; idle topics have no records to compare."""

    def __init__(self, roles: Roles, keep: Path | None = None) -> None:
        """`keep`: the target for the folders of differing swaps."""
        super().__init__({"swap watch": self._look}, LOOK_SECONDS)
        self._roles, self._keep = roles, keep
        self._seen: dict[tuple[int, str, str], float] = {}
        self._done: set[tuple[int, str, str]] = set()
        self._paired: set[tuple[object, ...]] = set()
        """Copies whose source was found: another `.delete` that fits is of an earlier life of the replica."""
        self.swaps: list[SwapFact] = []
        self.missed: list[str] = []
        """Sources that were deleted before they could be compared."""

    def _look(self) -> None:
        try:
            self._compare_all()
        except OSError as error:  # the node renamed or removed a folder meanwhile
            log.debug("cannot read a swap: %s", error)

    def _compare_all(self) -> None:
        present = set()
        for node in self._roles.nodes:
            for directory in self._roles.log_dirs(node):
                for folder in disk.folders(self._roles.disk(node, directory)):
                    if disk.SWAPPED_AWAY.fullmatch(folder) and not folder.startswith(IDLE):
                        present.add((node, directory, folder))
        for key in sorted(present - self._done):
            self._seen.setdefault(key, time.monotonic())
            if self._compared(*key) or time.monotonic() - self._seen[key] > PATIENCE_SECONDS:
                self._done.add(key)
        for key in set(self._seen) - present - self._done:
            self._done.add(key)
            self.missed.append(f"{key[2]} in {key[1]}")

    def _compared(self, node: int, directory: str, folder: str) -> bool:
        """Compare a `.delete` folder with its copy; return whether it is finished, compared or not a swap's source."""
        match = disk.SWAPPED_AWAY.fullmatch(folder)
        place = disk.place_of(match["replica"]) if match else None
        path = self._roles.disk(node, directory) / folder
        try:
            gone = markers.read(path)
        except (MarkerCorrupt, StorageError):
            return False
        if gone is None or place is None:
            return place is None
        # The node writes the reason into a swap's source shortly after the rename; until then it is empty. (It is also
        # empty in a copy, which has such a name while it is created.)
        if gone.reason not in ("", Reason.SWAP, Reason.REMOVING) or gone.state is State.COPYING:
            return True
        for target in self._roles.log_dirs(node):
            copy = self._roles.disk(node, target) / f"{place[0]}-{place[1]}"
            try:
                marker = markers.read(copy) if copy.is_dir() else None
            except (MarkerCorrupt, StorageError):
                continue
            if marker is None or not self._is_copy_of(marker, gone, self._roles.disk(node, directory)):
                continue
            pair = (node, place, target, marker.source_id, marker.seal_leo, marker.seal_hw, marker.generation)
            fact = self._fact(node, place, directory, target, path, copy, marker) if pair not in self._paired else None
            if fact is None or (fact.differences and self._rivals(path, gone)):
                return False
            if fact.differences:
                self._keep_folders(node, path, copy)
            self._paired.add(pair)
            self.swaps.append(fact)
            return True
        return False

    @staticmethod
    def _is_copy_of(marker: Marker, gone: Marker, directory: Path) -> bool:
        """Whether a replica's marker says that it was swapped in for this `.delete` of a log directory.

        A replica that was taken off a node and created there again counts its generations from the beginning, so a
        source that an earlier life left behind may have the right generation, in another directory.
        """
        if marker.generation != gone.generation + 1 or marker.seal_leo < 0:
            return False
        try:
            properties = meta_properties.read(directory)
        except (MalformedMetaProperties, StorageError):
            return False
        return properties is not None and properties.directory_id == marker.source_id

    @staticmethod
    def _rivals(path: Path, gone: Marker) -> bool:
        """Whether another `.delete` of the same directory may as well be the source: one of an earlier life, too."""
        match = disk.SWAPPED_AWAY.fullmatch(path.name)
        for folder in disk.folders(path.parent):
            other = disk.SWAPPED_AWAY.fullmatch(folder)
            if folder == path.name or match is None or other is None or other["replica"] != match["replica"]:
                continue
            try:
                found = markers.read(path.parent / folder)
            except (MarkerCorrupt, StorageError):
                return True
            if found is not None and found.generation == gone.generation:
                return True
        return False

    def _keep_folders(self, node: int, path: Path, copy: Path) -> None:
        if self._keep is None or len(list(self._keep.glob("*-source"))) >= KEPT:
            return
        for folder, kind in ((path, "source"), (copy, "copy")):
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(folder, self._keep / f"node-{node}-{path.name}-{kind}")

    def _fact(
        self, node: int, place: tuple[str, int], source: str, target: str, path: Path, copy: Path, marker: Marker
    ) -> SwapFact | None:
        """Return None if the node was deleting the source or renaming the copy: what was read is then incomplete."""
        try:
            theirs, first, end = disk.live_end(copy)
            ours, _, our_end = disk.live_end(path)
            whole, still = markers.read(path), markers.read(copy)
        except (OSError, MarkerCorrupt, StorageError):
            return None
        if still != marker:
            return None
        if whole is None or whole.reason == Reason.REMOVING or (our_end < marker.seal_leo and not path.exists()):
            return None
        start = max(marker.log_start, first)
        compared, differences = compare(ours, theirs, start, min(marker.seal_leo, max(end, start)))
        return SwapFact(
            now(), node, place, source, target, marker.generation, marker.log_start, marker.seal_leo, marker.seal_hw,
            first, end, compared, differences,
        )  # fmt: skip


class RateWatch(Observers):
    """Poll every node for the bytes that its copies have written."""

    def __init__(self, roles: Roles) -> None:
        super().__init__({f"rates of node {node}": partial(self._look, node) for node in roles.nodes}, LOOK_SECONDS)
        self._roles = roles
        self.samples: list[RateSample] = []

    def _look(self, node: int) -> None:
        invoked = now()
        try:
            response = self._roles.call(node, "moves")
        except OpsError:
            return
        rows = response.get("moves", [])
        copied = tuple(
            (
                (str(row["topic"]), int(row["partition"]), str(row["directory"]), int(row["claim"])),
                int(row["bytes_written"]),
                row.get("throttle"),
            )
            for row in rows
        )
        if copied:
            self.samples.append(RateSample(node, invoked, now(), copied))
