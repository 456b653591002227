"""Where exports and tables are: a plain path, or a URI of Hadoop's file systems."""

from __future__ import annotations

import re
from pathlib import Path

#: The file beside the page with the summary and the moves as JSON.
SUMMARY = "report.json"


def is_uri(location: str) -> bool:
    """Return whether a location is a URI, such as hdfs://name/path, and not a plain path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", location) is not None


def export_folder(location: str) -> Path:
    """Return the folder of exports of a path or a file:/// URI.

    Spark's Python workers read exports, and have no Hadoop. Raises ValueError for a URI of another file system.
    """
    path = re.sub(r"^file:(//(localhost)?)?(?=/)", "", location)
    if is_uri(path):
        raise ValueError(
            f"{location} is not a folder: exports are read from a path that all of Spark's workers have; "
            "mount it there, and pass the path"
        )
    return Path(path)


def tables_root(location: str) -> str:
    """Return the location of tables as Spark takes it: a URI as it is, an absolute path."""
    return location.rstrip("/") if is_uri(location) else str(Path(location).absolute())
