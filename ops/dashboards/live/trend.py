"""The trend beneath the live page: the days of the newest site, read from its data files, without Spark."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from ops.dashboards.site.pack import unpack

#: The days that are shown, and the bytes of a data file that is read.
DAYS, LARGEST = 30, 5_000_000
_COUNTS = ("moves", "moved", "failed", "met", "missed")


def trend(folder: Path) -> dict[str, Any] | None:
    """Return the moves of the newest days by day; None without a site, or if its files cannot be read.

    Days without moves are left out.
    """
    try:
        about, days = (_read(folder / "data" / f"{name}.js") for name in ("about", "days"))
        columns = {name: _values(days["columns"][name]) for name in ("day", "scope", *_COUNTS)}
        rows = [row for row, scope in enumerate(columns["scope"]) if scope == "all"][-DAYS:]
        return {
            "as_of": float(about["as_of"]),
            "days": [columns["day"][row] for row in rows],
            **{name: [columns[name][row] for row in rows] for name in _COUNTS},
        }
    except (OSError, ValueError, KeyError, IndexError, TypeError, zlib.error):
        return None


def _read(path: Path) -> Any:
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} is larger than {LARGEST} bytes")
    return unpack(path.read_text(encoding="ascii"))


def _values(column: dict[str, Any]) -> list[Any]:
    """Return the values of a packed column."""
    if "of" in column:
        return [None if at < 0 else column["of"][at] for at in column["at"]]
    if "is" in column:
        return list(column["is"])
    total, found = 0, []
    for plus in column["plus"]:
        total += plus
        found.append(total)
    return found
