"""The report again and again: a round for each new export."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ops.analytics.errors import AnalyticsError
from ops.analytics.job import Summary
from ops.analytics.lake.ingest import newest_export


def follow(
    export_dir: Path,
    every: float,
    report: Callable[[], Summary],
    told: Callable[[Summary | str], None],
    wait: Callable[[float], None] = time.sleep,
) -> NoReturn:
    """Call `report` once the folder has a newer export than before, looking every so many seconds.

    `told` gets each summary, and why a round failed, once as long as the reason is the same: the next round tries
    again. Py4J's errors are raised: without its Java process there is no next round.
    """
    done, problem = 0, ""
    while True:
        try:
            newest = newest_export(export_dir)
            if problem or newest > done or not done:
                told(report())
                done, problem = newest, ""
        except (AnalyticsError, OSError) as error:
            if str(error) != problem:
                problem = str(error)
                told(problem)
        wait(every)
