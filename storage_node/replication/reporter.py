"""The ISR changes of all partitions that a node leads, brought to the controller: one batch at a time.

Only partitions at which time alone may change something are looked at, each when it is due (`LeaderState.due`); when
brokers come or go, all are.

While the controller is away changes wait, and are asked for again as they are then. The high watermark waits for
everybody who may have been taken into an ISR, so that nothing is lost by not knowing.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING

from storage_node.asking import ASK_TIMEOUT, ask_controller
from storage_node.config_values import BrokerValues
from storage_node.errors import RequestRefused, RequestTimedOut
from storage_node.metadata import ClusterImage
from storage_node.ports import ChangeResult, IsrChange
from storage_node.replication.leading import LeaderState

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

LAG = "replica.lag.time.max.ms"

#: What is due within so many seconds is looked at together.
TOGETHER = 0.02
#: What comes within this time goes with the same batch.
LINGER = 0.01
#: Partitions of one batch at most.
BATCH = 2000
#: Between attempts while the controller does not answer.
SHORTEST_PAUSE = 0.2
LONGEST_PAUSE = 2.0


class IsrReporter:
    """The `LeaderHost` of a node, with a thread of its own from `start` to `stop`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.lag = BrokerValues({}, {}, node.config.values).number(LAG) / 1000
        self.brokers: dict[int, int] = {}
        self._wanted: dict[LeaderState, None] = {}
        self._due: list[tuple[float, int, LeaderState]] = []
        """A heap: when which partition is to be looked at. One that was put off leaves its earlier entry behind."""
        self._count = itertools.count()
        self._all = False
        """Whether the brokers have changed, which may concern every partition."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"isr-{self._node.id}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(ASK_TIMEOUT + 5)
            self._thread = None

    def brokers_are(self, image: ClusterImage) -> None:
        """Take over who is registered and not fenced, in place: partitions look at it with every fetch."""
        live = {row.node: row.broker_epoch for row in image.nodes.values() if not row.fenced}
        if live == self.brokers:
            return
        for gone in self.brokers.keys() - live.keys():
            del self.brokers[gone]
        self.brokers.update(live)
        self._all = True
        self._wake.set()

    def under_replicated(self) -> int:
        """How many partitions that this node leads have replicas that are not in sync."""
        states = [partition.leading for partition in self._node.replicas.served.values()]
        return sum(state is not None and state.under_replicated for state in states)

    def wants_change(self, state: LeaderState) -> None:
        """An ISR is to be asked for."""
        with self._lock:
            self._wanted[state] = None
        self._wake.set()

    def watch(self, state: LeaderState, due: float) -> None:
        """Look at a partition at this time."""
        with self._lock:
            first = not self._due or due < self._due[0][0]
            heapq.heappush(self._due, (due, next(self._count), state))
        if first:
            self._wake.set()

    def _run(self) -> None:
        pause, not_before = 0.0, 0.0
        while not self._stopping.is_set():
            now = time.monotonic()
            self._look(now)
            if self._wanted and now >= not_before:
                self._stopping.wait(LINGER)
                pause = 0.0 if self._send() else min(max(2 * pause, SHORTEST_PAUSE), LONGEST_PAUSE)
                not_before = time.monotonic() + pause
                continue
            due = self._due[0][0] + TOGETHER if self._due else now + LONGEST_PAUSE
            until = min(due, not_before) if self._wanted else due
            self._wake.wait(min(max(0.0, until - time.monotonic()), LONGEST_PAUSE))
            self._wake.clear()

    def _look(self, now: float) -> None:
        """Look at the partitions that are due, or at all of them after the brokers have changed."""
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
        """Ask for what is wanted now; False when nobody answered. What is wanted still is found by the next look."""
        with self._lock:
            states = list(self._wanted)[:BATCH]
            for state in states:
                del self._wanted[state]
        now = time.monotonic()
        asked = [(state, change) for state in states if (change := state.change(now)) is not None]
        if not asked:
            return True
        try:
            results = self._ask([change for _, change in asked])
        except (RequestRefused, TimeoutError) as error:
            log.info("the in-sync replicas of %d partitions wait for the controller: %s", len(asked), error)
            results = None
        except Exception:
            log.exception("asking for in-sync replicas")
            results = None
        if results is None or len(results) != len(asked):
            for state, _ in asked:
                self.wants_change(state)
            return False
        for (state, change), result in zip(asked, results, strict=True):
            _note(change, result)
            state.answered(change, result)
        return True

    def _ask(self, changes: list[IsrChange]) -> list[ChangeResult]:
        results = ask_controller(
            self._node, lambda controller: controller.alter_partitions(changes, timeout=ASK_TIMEOUT), self._stopping
        )
        if results is None:
            raise RequestTimedOut("this node has no controller")
        return results


def _note(change: IsrChange, result: ChangeResult) -> None:
    members = [number for number, _ in change.isr]
    if result.error:
        log.info("%s: in-sync replicas %s were refused: %d %s", change.partition, members, result.error, result.message)
    else:
        log.info("%s: in-sync replicas are %s", change.partition, members)
