"""Rewrite log.dirs in a server.properties file, and nothing else of it."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

import javaproperties

from storage_node.directories import atomic
from storage_node.directories.atomic import make_directory

__all__ = ["line_of", "set_log_dirs", "with_log_dirs"]

_KEY = re.compile(r"\s*(log\.dirs?)\s*[=:\s]")
#: The ends of lines of a properties file; `str.splitlines` knows others.
_END = re.compile(r"\r\n|\r|\n")
#: Properties files are read as Latin-1, in which every byte stays what it is.
_ENCODING = "latin-1"


def set_log_dirs(file: Path, log_dirs: str) -> None:
    """Replace the file: after a crash it has the old content or the new one. It keeps its owner and permissions.

    Raises OSError.
    """
    make_directory(file.parent)
    before = file.stat() if file.exists() else None
    text = file.read_bytes().removeprefix(codecs.BOM_UTF8).decode(_ENCODING) if before else ""
    changed = with_log_dirs(text, log_dirs)
    if changed != text:
        atomic.write_atomic(file, changed.encode(_ENCODING), like=before)


def line_of(log_dirs: str) -> str:
    """Return the line of a properties file, in which other letters than ASCII's are escaped."""
    return str(javaproperties.join_key_value("log.dirs", log_dirs))


def with_log_dirs(text: str, log_dirs: str) -> str:
    """Return a file's text with this log.dirs in the place of the first one, and without log.dir; comments stay."""
    lines: list[str] = []
    place: int | None = None
    found = _END.split(text)
    pieces = iter(found if found[-1] else found[:-1])
    for line in pieces:
        if not _KEY.match(line):
            lines.append(line)
            continue
        while _continues(line):
            line = next(pieces, "")
        if place is None:
            place = len(lines)
            lines.append("")
    if place is None:
        lines.append(line_of(log_dirs))
    else:
        lines[place] = line_of(log_dirs)
    return "\n".join(lines) + "\n"


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1
