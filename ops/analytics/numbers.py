"""Arithmetic and wording of the report: intervals, bytes, rates, durations. Plain functions without Spark."""

from __future__ import annotations

import math

from ops.dashboards.site import budgets
from ops.dashboards.site.pack import millionths

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
Z = budgets.Z
#: Fewer deadlines than this have no share: one of one is not 100 %. The site has the same number (static/lib.js).
FEWEST = 20
TOO_FEW = "too few to say"


def wilson(good: int, total: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of the share good/total; (0, 1) if total is 0."""
    if total == 0:
        return 0.0, 1.0
    return budgets.wilson(good / total, total)


def size(count: float | None) -> str:
    """Format bytes in decimal units with three digits, such as "12.3 MB"; a dash for unknown."""
    if count is None:
        return "–"
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    digits = 0 if unit == "B" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {unit}"


def rate(per_second: float | None) -> str:
    """Format bytes per second, such as "19.8 MB/s"; a dash for unknown."""
    return "–" if per_second is None else f"{size(per_second)}/s"


def duration(seconds: float | None) -> str:
    """Format a duration: "38 ms", "4.2 s", "3 min 07 s", "2 h 05 min"; a dash for unknown."""
    if seconds is None:
        return "–"
    if seconds < 0.0005:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.{0 if seconds >= 0.00995 else 1}f} ms"
    if seconds < 59.95:
        return f"{seconds:.{1 if seconds >= 9.995 else 2}f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{seconds / 86400:.1f} days"


def percent(share: float | None) -> str:
    """Format a share from 0 to 1 as a percentage that never rounds up to 100 %."""
    if share is None:
        return "–"
    if share >= 1.0:
        return "100 %"
    return f"{math.floor(share * 1000) / 10:.1f} %"


def attainment(met: int, counted: int) -> str:
    """Format the share of deadlines met: a percentage, "too few to say" below `FEWEST`, a dash without any."""
    return percent(None) if not counted else TOO_FEW if counted < FEWEST else percent(met / counted)


def fraction(value: float | None) -> str:
    """Format a share, or what is left of a budget, such as "99.2 %" or "−31.0 %"; it never rounds up to 100 %.

    None are too few events. The site writes the same (static/pages.js).
    """
    whole = millionths(value)
    return TOO_FEW if whole is None else f"{'−' if whole < 0 else ''}{abs(whole) // 1000 / 10:.1f} %"


def burn(value: float | None) -> str:
    """Format a burn rate, such as "14.4 ×"; None are too few events."""
    whole = millionths(value)
    return TOO_FEW if whole is None else f"{whole // 100_000 / 10:.1f} ×"


def shortened(text: str, most: int = 34) -> str:
    """Shorten a long name in its middle: both ends together identify more than either alone."""
    return text if len(text) <= most else f"{text[: most - 13]}…{text[-12:]}"
