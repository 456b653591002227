"""Watches a run from beside: swaps as the disks show them, and how fast copies are written."""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path

from ops.stack.errors import OpsError
from ops.torture import disk
from ops.torture.checks_moves import compare
from ops.torture.facts import RateSample, SwapFact
from ops.torture.history import now
from ops.torture.roles import Roles
from ops.torture.topics import IDLE
from ops.torture.watching import Watch
from storage_node.errors import StorageError
from storage_node.move import marker as markers
from storage_node.move.marker import Marker, MarkerCorrupt, Reason, State

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
#: How long a sealed source is looked at for its copy: a crash may come between the renames.
PATIENCE_SECONDS = 60.0


class SwapWatch(Watch):
    """Compares every sealed source with its copy before the source is removed; idle topics have nothing to compare."""

    def __init__(self, roles: Roles) -> None:
        super().__init__({"swap watch": self._look}, LOOK_SECONDS)
        self._roles = roles
        self._seen: dict[tuple[int, str, str], float] = {}
        self._done: set[tuple[int, str, str]] = set()
        self.swaps: list[SwapFact] = []
        self.missed: list[str] = []
        """Folders that were gone before they could be compared."""

    def _look(self) -> None:
        try:
            self._compare_all()
        except OSError as error:  # a folder that is renamed or removed under our eyes
            log.debug("a look at the swaps: %s", error)

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
        """Whether nothing more is to be done about this `.delete`."""
        match = disk.SWAPPED_AWAY.fullmatch(folder)
        place = disk.place_of(match["replica"]) if match else None
        path = self._roles.disk(node, directory) / folder
        try:
            gone = markers.read(path)
        except (MarkerCorrupt, StorageError):
            return False
        if gone is None or place is None:
            return place is None
        # Why it was renamed is written into the source of a swap a moment later; until then it gives no reason. (Nor
        # does a copy, which has such a name while it is being made.)
        if gone.reason not in ("", Reason.SWAP, Reason.REMOVING) or gone.state is State.COPYING:
            return True
        for target in self._roles.log_dirs(node):
            copy = self._roles.disk(node, target) / f"{place[0]}-{place[1]}"
            try:
                marker = markers.read(copy) if copy.is_dir() else None
            except (MarkerCorrupt, StorageError):
                continue
            if marker is not None and marker.generation == gone.generation + 1 and marker.seal_leo >= 0:
                fact = self._fact(node, place, directory, target, path, copy, marker)
                if fact is None:
                    return False
                self.swaps.append(fact)
                return True
        return False

    def _fact(
        self, node: int, place: tuple[str, int], source: str, target: str, path: Path, copy: Path, marker: Marker
    ) -> SwapFact | None:
        """None when the source was being removed meanwhile: what was read of it says nothing."""
        try:
            theirs, first, end = disk.live_end(copy)
            ours, _, our_end = disk.live_end(path)
            whole = markers.read(path)
        except (OSError, MarkerCorrupt, StorageError):
            return None
        if whole is None or whole.reason == Reason.REMOVING or (our_end < marker.seal_leo and not path.exists()):
            return None
        start = max(marker.log_start, first)
        compared, differences = compare(ours, theirs, start, min(marker.seal_leo, max(end, start)))
        return SwapFact(
            now(), node, place, source, target, marker.generation, marker.log_start, marker.seal_leo, marker.seal_hw,
            first, end, compared, differences,
        )  # fmt: skip


class RateWatch(Watch):
    """Asks every node again and again how much its copies have written."""

    def __init__(self, roles: Roles) -> None:
        super().__init__({f"rates of node {node}": partial(self._look, node) for node in roles.nodes}, LOOK_SECONDS)
        self._roles = roles
        self.samples: list[RateSample] = []

    def _look(self, node: int) -> None:
        invoked = now()
        try:
            answer = self._roles.call(node, "moves")
        except OpsError:
            return
        rows = answer.get("moves", [])
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
