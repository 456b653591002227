"""Error budgets and burn rates of SLOs, computed plainly, for the example of a site. Gold's `burn_rate` is the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor, sqrt
from typing import Any

DAY, MINUTE = 86_400, 60
#: Windows in minutes; the pairs whose burn rates raise an alarm, and the share of the budget that they spend.
WINDOWS = {"5m": 5, "30m": 30, "1h": 60, "6h": 360, "3d": 4320}
PAIRS = (("1h", "5m", 0.02, "page"), ("6h", "30m", 0.05, "page"), ("3d", "6h", 0.10, "ticket"))
FEWEST = 20
#: 97.5 % quantile of the normal distribution, for 95 % intervals.
Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Objective:
    """An SLO: what should be good, and how much of it."""

    name: str
    event: str
    objective: float
    window_days: int = 30
    weight: str = "moves"


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of an SLO: when it was decided, in epoch seconds."""

    slo: str
    at: float
    good: bool
    weight: float = 1.0


def budgets(objectives: Sequence[Objective], events: Iterable[Happened], as_of: float) -> Iterator[dict[str, Any]]:
    """Yield a row per SLO and day, from the day of the first event to that of `as_of`, in epoch seconds."""
    every = sorted(events, key=lambda event: event.at)
    first = floor((every[0].at if every else as_of) / DAY)
    for day in range(first, floor(as_of / DAY) + 1):
        last = floor(min(as_of, (day + 1) * DAY - MINUTE) / MINUTE)
        for slo in objectives:
            mine = [(last - floor(event.at / MINUTE), event) for event in every if event.slo == slo.name]
            yield {"day": day, **_row(slo, [(ago, event) for ago, event in mine if ago >= 0]), "until": last * MINUTE}


def _row(slo: Objective, mine: Sequence[tuple[int, Happened]]) -> dict[str, Any]:
    allowed = 1 - slo.objective

    def within(minutes: int) -> list[Happened]:
        return [event for ago, event in mine if ago < minutes]

    def burn(found: Sequence[Happened]) -> float | None:
        whole = sum(event.weight for event in found)
        bad = sum(event.weight for event in found if not event.good)
        return bad / whole / allowed if len(found) >= FEWEST and whole else None

    of = within(slo.window_days * DAY // MINUTE)
    whole, squares = sum(event.weight for event in of), sum(event.weight**2 for event in of)
    share = sum(event.weight for event in of if event.good) / whole if whole else None
    low, high = wilson(share, whole * whole / squares) if share is not None else (None, None)
    spent, burns = burn(of), {name: burn(within(minutes)) for name, minutes in WINDOWS.items()}
    return {
        **{"slo": slo.name, "event": slo.event, "objective": slo.objective, "window_days": slo.window_days},
        **{"weight": slo.weight, "good": sum(event.good for event in of), "bad": sum(not event.good for event in of)},
        **{"share": share, "low": low, "high": high, "left": None if spent is None else 1 - spent},
        **{f"burn_{name}": value for name, value in burns.items()},
        "alarm": next((word for one, two, part, word in PAIRS if _fast(burns, one, two, part, slo.window_days)), None),
    }


def _fast(burns: Mapping[str, float | None], long: str, short: str, part: float, days: int) -> bool:
    most = max(1.0, part * days * DAY / MINUTE / WINDOWS[long])
    return (burns[long] or 0.0) > most and (burns[short] or 0.0) > most


def wilson(share: float, total: float) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share of `total` events of equal weight."""
    total = max(total, 1.0)
    middle = (share + Z * Z / (2 * total)) / (1 + Z * Z / total)
    half = Z / (1 + Z * Z / total) * sqrt(share * (1 - share) / total + Z * Z / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)
