"""The paths of log.dirs: absolute, all different, none inside another, none led elsewhere by a symlink."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_node.directories.errors import StartRefused

__all__ = ["PathFacts", "check", "look", "normalise"]


@dataclass(frozen=True, slots=True)
class PathFacts:
    """A path of log.dirs.

    `path` as configured (made absolute), `real` where it leads; `leaves`: it is itself a symlink, out of its folder.
    """

    path: str
    real: str
    leaves: bool = False


def normalise(path: str | Path) -> str:
    """The absolute path without a trailing slash, `.` or `..`; symlinks are kept. This is how directories are named."""
    return os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps `..`


def look(paths: Sequence[str | Path]) -> list[PathFacts]:
    """Look at the paths on disk; one that is not there leads to itself."""
    facts = []
    for path in paths:
        absolute = normalise(path)
        real = os.path.realpath(absolute)
        folder = os.path.realpath(Path(absolute).parent)
        facts.append(PathFacts(absolute, real, _is_symlink(absolute) and not _inside(real, folder)))
    return facts


def _is_symlink(path: str) -> bool:
    try:
        return Path(path).is_symlink()
    except OSError:
        return False  # a disk that does not even answer this is found out, and taken offline, when it is locked


def check(facts: Sequence[PathFacts], what: str) -> None:
    """Raise StartRefused, beginning with `what`, when the paths cannot be used together."""
    if not facts:
        raise StartRefused(f"{what}: log.dirs names no directory; name at least one")
    for fact in facts:
        if fact.leaves:
            raise StartRefused(
                f"{what}: {fact.path} (log.dirs) is a symlink that leads out of its folder, to {fact.real}, and "
                f"could be turned elsewhere under a running node; write {fact.real} into log.dirs"
            )
    for index, one in enumerate(facts):
        for other in facts[:index]:
            if one.real == other.real:
                raise StartRefused(
                    f"{what}: {other.path} and {one.path} in log.dirs are the same directory {one.real}; remove one"
                )
            for outer, inner in ((one, other), (other, one)):
                if _inside(inner.real, outer.real):
                    raise StartRefused(
                        f"{what}: {inner.path} (log.dirs) lies inside the log directory {outer.path}; "
                        f"use directories beside each other"
                    )


def _inside(path: str, folder: str) -> bool:
    return path != folder and Path(folder) in Path(path).parents
