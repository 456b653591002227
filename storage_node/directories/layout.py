"""The paths of log.dirs: absolute, all different, none inside another, none redirected by a symlink."""

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

    `path` as configured (made absolute), `real` resolved; `leaves`: it is itself a symlink out of its parent directory.
    """

    path: str
    real: str
    leaves: bool = False


def normalise(path: str | Path) -> str:
    """Return the absolute path without trailing slash, `.` and `..`, symlinks kept: the name of a log directory."""
    return os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps `..`


def look(paths: Sequence[str | Path]) -> list[PathFacts]:
    """Resolve the paths on disk; a path that does not exist resolves to itself."""
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
        return False  # locking the directory will fail as well and take it offline


def check(facts: Sequence[PathFacts], what: str) -> None:
    """Raise StartRefused, beginning with `what`, if the paths cannot be used together."""
    if not facts:
        raise StartRefused(f"{what}: log.dirs is empty; configure at least one directory")
    for fact in facts:
        if fact.leaves:
            raise StartRefused(
                f"{what}: {fact.path} (log.dirs) is a symlink out of its parent directory, to {fact.real}, and could "
                f"be redirected under a running node; configure {fact.real} in log.dirs"
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
                        f"configure directories that do not contain each other"
                    )


def _inside(path: str, folder: str) -> bool:
    return path != folder and Path(folder) in Path(path).parents
