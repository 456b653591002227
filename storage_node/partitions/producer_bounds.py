"""Bound the memory for idempotent producers, over all logs of a node.

A client may append with a producer id of its own each time, to each of thousands of partitions, so a bound for each log
does not bound the memory. Beyond the node's bound the logs with the most producers forget the least recently used ones;
a log with fewer than its share keeps all of them.

A log accepts any sequence of a producer id that it does not know, as Apache Kafka does (the records that it knew the id
by may have been deleted, or producer.id.expiration.ms has passed): a batch that a forgotten producer sends again is
appended again. Apache Kafka forgets producers by time alone, and its memory has no bound.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from storage_node.errors import RequestRefused
from storage_node.log import Log
from storage_node.partitions.partition import Partition

log = logging.getLogger(__name__)

#: Producers in all logs of a node, of about 500 bytes each.
MOST_PRODUCERS = 50_000
#: Rejected first batches in all replicas of a node, of about 300 bytes each.
MOST_REJECTED = 25_000


def share(counts: Collection[int], most: int) -> int | None:
    """Return how many each may keep, at least one, so that all keep at most `most` together; None if they do."""
    if sum(counts) <= most:
        return None
    rising, left = sorted(counts), most
    for number, count in enumerate(rising):
        equal = left // (len(rising) - number)
        if count > equal:
            return max(1, equal)
        left -= count
    return None


def bound(partitions: Collection[Partition]) -> Callable[[Partition], None] | None:
    """Return a function that makes a replica forget what exceeds its share; None if the node is within its bounds."""
    producers = share([len(each.log.producers) for each in partitions], MOST_PRODUCERS)
    rejected = share([len(each.rejections) for each in partitions], MOST_REJECTED)
    if producers is None and rejected is None:
        return None

    def forget(partition: Partition) -> None:
        try:
            forgotten = partition.forget_producers(producers, rejected)
        except RequestRefused:
            return  # a swap holds the log: the next call does it
        if forgotten:
            log.warning(
                "%s forgets the %d least recently used idempotent producers: all logs of this node knew more than "
                "%d. Batches that these producers send again are appended again",
                partition.tp,
                forgotten,
                MOST_PRODUCERS,
            )

    return forget


class OpenedLogs:
    """The bound on the producers of logs that are opened at a start, over all of them: none is served yet."""

    def __init__(self, logs: int) -> None:
        """Create it; `logs` is how many logs are opened at most."""
        self._each = max(1, MOST_PRODUCERS // max(1, logs))
        self._known = 0
        self._mutex = threading.Lock()

    def add(self, opened: Log) -> None:
        """Count a log; if the node has enough producers already, reduce the log to its share of the bound."""
        with self._mutex:
            if self._known + len(opened.producers) > MOST_PRODUCERS:
                opened.forget_producers(self._each)
            self._known += len(opened.producers)
