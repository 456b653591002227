"""Rewrite log.dirs in a server.properties file, and nothing else of it."""

from __future__ import annotations

import re
from pathlib import Path

from storage_node.directories import atomic
from storage_node.directories.atomic import make_directory

__all__ = ["set_log_dirs", "with_log_dirs"]

_KEY = re.compile(r"\s*(log\.dirs?)\s*[=:\s]")


def set_log_dirs(file: Path, log_dirs: str) -> None:
    """Replace the file: after a crash it has the old content or the new one. Raises OSError."""
    make_directory(file.parent)
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    changed = with_log_dirs(text, log_dirs)
    if changed != text:
        atomic.write_atomic(file, changed.encode())


def with_log_dirs(text: str, log_dirs: str) -> str:
    """Return a file's text with this log.dirs in the place of the first one, and without log.dir; comments stay."""
    lines: list[str] = []
    place: int | None = None
    pieces = iter(text.splitlines())
    for line in pieces:
        if not _KEY.match(line):
            lines.append(line)
            continue
        while _continues(line):
            line = next(pieces, "")
        if place is None:
            place = len(lines)
            lines.append("")
    escaped = log_dirs.replace("\\", "\\\\")
    if place is None:
        lines.append(f"log.dirs={escaped}")
    else:
        lines[place] = f"log.dirs={escaped}"
    return "\n".join(lines) + "\n"


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1
