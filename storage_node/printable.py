"""Make what a peer has sent safe for a log or a terminal."""

from __future__ import annotations

from typing import Final

#: Characters that are shown.
LONGEST: Final = 300


def printable(text: object) -> str:
    """Return the text without what would move a cursor or begin another line, cut to the length of a line."""
    shown = str(text)
    cut = len(shown) > LONGEST
    shown = shown[:LONGEST]
    return (shown if shown.isprintable() else ascii(shown)[1:-1]) + ("..." if cut else "")
