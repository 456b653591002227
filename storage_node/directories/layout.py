"""The paths of log.dirs: absolute, all different, none inside another, whatever symlinks lead to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_node.directories.errors import StartRefused

__all__ = ["PathFacts", "check", "linked", "look", "normalise"]


@dataclass(frozen=True, slots=True)
class PathFacts:
    """A path of log.dirs: `path` as configured (made absolute), and `real`, where its symlinks lead."""

    path: str
    real: str


def normalise(path: str | Path) -> str:
    """Return the absolute path without trailing slash, `.` and `..`, symlinks kept: the name of a log directory."""
    return os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps `..`


def look(paths: Sequence[str | Path]) -> list[PathFacts]:
    """Resolve the paths on disk; a path that does not exist resolves to itself."""
    return [PathFacts(path, os.path.realpath(path)) for path in map(normalise, paths)]


def linked(path: Path) -> str:
    """Return a clause that says where a replica's folder leads if it is a symlink, which is not followed; else ""."""
    try:
        target = path.readlink()
    except OSError:
        return ""
    return (
        f"{path} is a symlink to {target}, and a replica's folder that is one is never followed, since it could lead "
        f"out of its log directory; put the folder itself into its place"
    )


def check(facts: Sequence[PathFacts], what: str) -> None:
    """Raise StartRefused, beginning with `what`, if the paths cannot be used together."""
    if not facts:
        raise StartRefused(f"{what}: log.dirs is empty; configure at least one directory")
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
