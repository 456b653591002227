"""What a peer has sent, as it may stand in a log or on a terminal."""

from __future__ import annotations

from typing import Final

#: Characters that are shown.
LONGEST: Final = 300


def printable(text: object) -> str:
    """The text without what would move a cursor or begin another line, and not longer than a line."""
    shown = str(text)
    cut = len(shown) > LONGEST
    shown = shown[:LONGEST]
    return (shown if shown.isprintable() else ascii(shown)[1:-1]) + ("..." if cut else "")
