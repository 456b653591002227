"""The report again and again: a round for each new export."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from ops.analytics.errors import AnalyticsError

if TYPE_CHECKING:
    from ops.analytics.job import Summary

#: Bounds of the seconds between two looks.
SHORTEST, LONGEST = 1.0, 86_400.0


def follow(
    newest: Callable[[], int],
    every: float,
    report: Callable[[], Summary],
    told: Callable[[Summary | str], None],
    wait: Callable[[float], None] = time.sleep,
) -> NoReturn:
    """Call `report` once `newest`, the number of the newest export, has grown, looking every so many seconds.

    `told` gets each summary, and why a round failed, once as long as the reason is the same: the next round tries
    again. Py4J's network errors are raised: without its Java process there is no next round.
    """
    done, problem = 0, ""
    while True:
        try:
            number = newest()
            if problem or number > done or not done:
                told(report())
                done, problem = number, ""
        except (AnalyticsError, OSError) as error:
            if str(error) != problem:
                problem = str(error)
                told(problem)
        wait(every)
