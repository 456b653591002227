"""Independent parts of the job side by side: most of a small part's time is Spark's planning of it, on one core."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

#: Parts that run at once.
AT_ONCE = 2


def side_by_side(spark: SparkSession, *parts: Callable[[], Any]) -> list[Any]:
    """Call the parts in threads of the session, `AT_ONCE` at a time, and return their results in order.

    Once one has failed no further one begins; the first failure is raised when those that had begun have ended.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # (Each part has properties of its own: those of one wrapper would be shared.)
        running = [pool.submit(inheritable_thread_target(spark)(part)) for part in parts]
        try:
            for one in as_completed(running):
                one.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [one.result() for one in running]
