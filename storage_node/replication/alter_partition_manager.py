"""Sends the ISR changes of all partitions that a node leads to the controller (Kafka: AlterPartitionManager).

At most one batch is in flight. Only partitions whose ISR may change with time are checked, each when it is due
(`LeaderState.due`); when brokers register or leave, all of them are.

While the controller is unavailable changes wait, and are computed again for the next attempt. The high watermark waits
for every replica that may have been added to an ISR, so that an unknown outcome loses nothing.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time

from storage_node.asking import ASK_TIMEOUT, LONGEST_PAUSE, Backoff, ReportingThread
from storage_node.config.values import BrokerValues
from storage_node.errors import RequestRefused, RequestTimedOut
from storage_node.model.commands import IsrChange
from storage_node.model.image import ClusterImage
from storage_node.ports import ChangeResult
from storage_node.replication.host import AlterPartitionHost
from storage_node.replication.leading import LeaderState

log = logging.getLogger(__name__)

LAG = "replica.lag.time.max.ms"

#: Seconds; partitions due within this time are checked together.
TOGETHER = 0.02
#: Seconds to collect changes for a batch.
LINGER = 0.01
#: Maximum number of partitions in a batch.
BATCH = 2000


class AlterPartitionManager:
    """The `LeaderHost` of a node, with a thread of its own."""

    def __init__(self, node: AlterPartitionHost) -> None:
        self._node = node
        self.lag = BrokerValues({}, {}, node.config.values).number(LAG) / 1000
        self.brokers: dict[int, int] = {}
        self._wanted: dict[LeaderState, None] = {}
        self._due: list[tuple[float, int, LeaderState]] = []
        """A heap of times and partitions to check. A check that was postponed leaves its earlier entry behind."""
        self._count = itertools.count()
        self._all = False
        """Whether the brokers have changed, which may affect every partition."""
        self._lock = threading.Lock()
        self.thread = ReportingThread(node, f"isr-{node.id}", self._look)
        self._backoff = Backoff()
        self._not_before = 0.0
        """When changes may be sent again, after the controller has not responded."""

    def brokers_are(self, image: ClusterImage) -> None:
        """Take over the brokers that are not fenced, in place, since partitions read them at every fetch."""
        live = {row.node: row.broker_epoch for row in image.nodes.values() if not row.fenced}
        if live == self.brokers:
            return
        for gone in self.brokers.keys() - live.keys():
            del self.brokers[gone]
        self.brokers.update(live)
        self._all = True
        self.thread.wake()

    def under_replicated(self) -> int:
        """Return how many partitions led by this node are under-replicated."""
        states = [partition.leading for partition in self._node.replicas.served.values()]
        return sum(state is not None and state.under_replicated for state in states)

    def wants_change(self, state: LeaderState) -> None:
        """Schedule a request for the partition's ISR."""
        with self._lock:
            self._wanted[state] = None
        self.thread.wake()

    def watch(self, state: LeaderState, due: float) -> None:
        """Check a partition at this time."""
        with self._lock:
            first = not self._due or due < self._due[0][0]
            heapq.heappush(self._due, (due, next(self._count), state))
        if first:
            self.thread.wake()

    def _look(self) -> float:
        """Check what is due and send what is scheduled; return the seconds until the next check."""
        self._check_due(time.monotonic())
        while self._wanted and time.monotonic() >= self._not_before and not self.thread.stopping:
            self.thread.linger(LINGER)
            if self._send():
                self._backoff.succeeded()
            else:
                self._not_before = time.monotonic() + self._backoff.failed()
            self._check_due(time.monotonic())
        now = time.monotonic()
        due = self._due[0][0] + TOGETHER if self._due else now + LONGEST_PAUSE
        until = min(due, self._not_before) if self._wanted else due
        return min(max(0.0, until - now), LONGEST_PAUSE)

    def _check_due(self, now: float) -> None:
        """Check the partitions that are due, or all of them after a change of the brokers."""
        due = []
        with self._lock:
            everything, self._all = self._all, False
            while self._due and self._due[0][0] <= now:
                when, _, state = heapq.heappop(self._due)
                if state.due == when:
                    due.append(state)
        if everything:
            led = [partition.leading for partition in self._node.replicas.served.values()]
            due = [state for state in led if state is not None]
        wants = [state for state in due if state.look(now)]
        with self._lock:
            self._wanted.update(dict.fromkeys(wants))

    def _send(self) -> bool:
        """Send the scheduled changes; return False if the controller did not respond."""
        with self._lock:
            states = list(self._wanted)[:BATCH]
            for state in states:
                del self._wanted[state]
        now = time.monotonic()
        requested = [(state, change) for state in states if (change := state.change(now)) is not None]
        if not requested:
            return True
        try:
            results = self._request([change for _, change in requested])
        except (RequestRefused, TimeoutError) as error:
            log.info("the ISR changes of %d partitions wait for the controller: %s", len(requested), error)
            results = None
        except Exception:
            log.exception("sending ISR changes failed")
            results = None
        if results is None or len(results) != len(requested):
            for state, _ in requested:
                self.wants_change(state)
            return False
        for (state, change), result in zip(requested, results, strict=True):
            _note(change, result)
            state.answered(change, result)
        return True

    def _request(self, changes: list[IsrChange]) -> list[ChangeResult]:
        results = self.thread.ask(lambda controller: controller.alter_partitions(changes, timeout=ASK_TIMEOUT))
        if results is None:
            raise RequestTimedOut("this node has no controller")
        return results


def _note(change: IsrChange, result: ChangeResult) -> None:
    members = [number for number, _ in change.isr]
    if result.error:
        log.info("%s: the controller rejected ISR %s: %d %s", change.partition, members, result.error, result.message)
    else:
        log.info("%s: the ISR is %s", change.partition, members)
