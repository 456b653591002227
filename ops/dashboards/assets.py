"""What all pages of the dashboards share: colours, type and the parts that look alike."""

from __future__ import annotations

from pathlib import Path

_STATIC = Path(__file__).with_name("static")


def css() -> str:
    """Return the shared styles."""
    return (_STATIC / "theme.css").read_text()
