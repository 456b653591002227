"""Directories as a node finds them: made once by real lives (some of them killed), copied for every case."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.crash import driver
from tests.crash.driver import Life
from tests.crash.subject import directories

#: State -> the state before it, the act, and where that life was killed ("": it came to its end).
MAKING = {
    "nothing": ("", "", ""),
    "loaded": ("nothing", "fresh", ""),
    "made": ("loaded", "move", "create.after_marker"),
    "copying": ("loaded", "move", "copy.after_chunk"),
    "sealed": ("loaded", "move", "swap.after_seal"),
    "between": ("loaded", "move", "swap.after_source_flushed"),
    "swapped": ("loaded", "move", "swap.after_target_flushed"),
    "removing": ("loaded", "move", "delete.after_files"),
    "cancelling": ("loaded", "cancel", "cancel.after_marker"),
    "deleting": ("loaded", "delete", "discard.after_marker"),
    "taken back": ("loaded", "undo", "undo.after_renamed"),
}

#: What is done with which state: all acts from a good one, and going on after every crash (which is crashed again).
SCENARIOS = [
    ("nothing", "fresh"),
    *(
        ("loaded", act)
        for act in ("move", "shorten", "cancel", "retarget", "delete", "stop", "undo", "full", "commit", "doubt")
    ),
    *((state, "finish") for state in list(MAKING)[2:]),
]


@dataclass(slots=True)
class Case:
    """A copy of a state, to be crashed."""

    root: Path

    @property
    def disks(self) -> Path:
        return self.root / "disks"

    @property
    def folder(self) -> Path:
        return self.root / "out"

    @property
    def paths(self) -> list[str]:
        return directories(self.disks)

    def life(self, act: str, points: str = "") -> Life:
        return Life(self.paths, self.folder, act, points)


class States:
    """Makes states when they are first asked for. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[str, Path] = {}
        self._making = threading.RLock()

    def path(self, name: str) -> Path:
        """Where a state is; not to be changed."""
        with self._making:
            return self._path(name)

    def _path(self, name: str) -> Path:
        if name in self._made:
            return self._made[name]
        before, act, point = MAKING[name]
        target = self._root / name.replace(" ", "-")
        if before:
            shutil.copytree(self._path(before), target)
            process = driver.start(Case(target).life(act, f"{point}=kill" if point else ""))
            process.join(120)
            assert process.exitcode == (-signal.SIGKILL if point else 0), f"{name}: {act} ended {process.exitcode}"
        else:
            (target / "disks").mkdir(parents=True)
        self._made[name] = target
        return target

    @contextmanager
    def case(self, name: str, root: Path) -> Iterator[Case]:
        """A copy of a state at `root`; it is kept for a look when the block fails."""
        shutil.copytree(self.path(name), root)
        yield Case(root)
        shutil.rmtree(root)
