"""What holds for a plan at one moment: its window, its throttles by the hour, and whether its deadline can be met.

Time zones come from the machine's database, which may differ between workers: an activity computes this, and its result
is in the plan's history. Pure apart from that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from workflows.model.plans import window
from workflows.model.plans.estimate import deadline_word
from workflows.model.plans.options import PlanOptions

#: Seconds after which a plan whose window never opens again is decided again: an operator may change it.
NEVER = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """`opens_in` are seconds until the window opens, None while it is open; `changes_in` until a throttle may change,
    None if it never does; throttles are in bytes/s. `warning`: the deadline will be missed; "" otherwise.
    """

    opens_in: float | None = None
    changes_in: float | None = None
    between_brokers: int | None = None
    between_directories: int | None = None
    warning: str = ""


def unknown_zones(options: PlanOptions) -> list[str]:
    """Return a sentence for each time zone of the options that this machine does not know."""
    texts = chain([options.window], (each.window.text for each in _calendars(options)))
    zones = {window.parse(text).zone for text in texts}
    return [
        f"'{zone}' is not a known time zone such as UTC or Europe/Berlin; correct the window or the calendar, or "
        "install the time zone database where the worker runs"
        for zone in sorted(zones)
        if not window.is_known(zone)
    ]


def conditions(options: PlanOptions, now: datetime, left: int = 0, rate: float = 0.0) -> Conditions:
    """Return what holds now; `left` bytes are still to be copied, which has gone at `rate` bytes/s so far (0: unknown).

    All time zones of the options are known.
    """
    open_at = window.parse(options.window)
    edge = None if open_at.is_open(now) else open_at.next_edge(now)
    closed = not open_at.is_open(now)
    changes = window.next_change(list(_calendars(options)), now)
    deadline = window.instant(options.deadline) if options.deadline else None
    late = deadline is not None and (rate > 0 or deadline <= now)
    return Conditions(
        None if not closed else NEVER if edge is None else max(1.0, (edge - now).total_seconds()),
        None if changes is None else max(1.0, (changes - now).total_seconds()),
        window.rate_at(options.calendar_between_brokers, now, options.throttle_between_brokers),
        window.rate_at(options.calendar_between_directories, now, options.throttle_between_directories),
        (deadline_word(now, deadline, left, rate, open_at) or "") if late else "",
    )


def _calendars(options: PlanOptions) -> Iterable[window.RateByHour]:
    return chain(options.calendar_between_brokers, options.calendar_between_directories)
