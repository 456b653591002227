"""Replication throttles (KIP-73): a rate for what this node sends as leader and one for what it fetches as follower.

They apply to the replicas that the topic configs list and that are not in sync, and the follower's also to those that
the node makes again itself (`storage_node.replication.healing`). The buckets are those of moves
(`storage_node.buckets`), but callers do not sleep in them: a fetcher requests a grant and retries later. The mean is
exact from one idle time to the next, whatever the size of single fetches: unused bytes of a grant are returned, and
bytes beyond it are a debt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from storage_node.buckets import TOLERANCE, Buckets
from storage_node.config import changes
from storage_node.config.values import BrokerValues
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage

PEAK = 1.01  # times the rate, while catching up
BURST = 0.1  # seconds' worth of bytes in one burst while catching up: as long as a response may take
LEAST = 16 << 10  # minimum bytes of a grant
STEP = 0.01  # seconds' worth of bytes of a grant

_LEADER_RATE, _FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
_LEADER_LIST, _FOLLOWER_LIST = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"


class Rate(Buckets):
    """At most `rate` bytes per second over all callers; None is unlimited. Thread-safe."""

    def __init__(self, rate: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(rate, clock, PEAK)

    def set_rate(self, rate: int | None) -> None:
        """Change the rate."""
        with self._lock:
            if rate == self._rate:
                return
            self._drain()
            self._rate = rate
            # A debt under the old rate is not paid at the pace of the new one.
            self._charged = self._drained = self._peak_charged = self._peak_drained = 0.0

    def grant(self, wanted: int) -> int:
        """Return how many of `wanted` bytes are granted now; they count as used at once."""
        with self._lock:
            rate = self._rate
            if rate is None:
                return wanted
            self._drain()
            available = self._available(rate)
            if available <= 0:
                return 0
            granted = min(wanted, max(int(available), LEAST, int(STEP * rate)))
            self._charge(granted)
            return granted

    def give_back(self, count: int) -> None:
        """Return `count` unused bytes of a grant; a negative number: so many bytes were used beyond it."""
        if self._rate is None or not count:
            return
        with self._lock:
            self._drain()
            self._charge(-count)

    def wait_seconds(self) -> float:
        """Return the seconds until the next grant; 0.0 if one is possible now."""
        with self._lock:
            rate = self._rate
            if rate is None:
                return 0.0
            self._drain()
            mean = self._charged - self._drained - TOLERANCE * rate
            peak = (self._peak_charged - self._peak_drained - BURST * rate) / PEAK
            return max(0.0, mean, peak) / rate

    def _available(self, rate: int) -> float:
        mean = self._drained - self._charged + TOLERANCE * rate
        return min(mean, self._peak_drained - self._peak_charged + BURST * rate)


def parse_replicas(value: str, node: int) -> frozenset[int] | None:
    """Return a topic's partitions whose replica on `node` is in a list (`p:b,p:b`); None for all of them (`*`)."""
    if value.strip() == "*":
        return None
    pairs = (item.strip().split(":") for item in value.split(",") if item.strip())
    return frozenset(int(pair[0]) for pair in pairs if len(pair) == 2 and int(pair[1]) == node)


class Side(Rate):
    """One of the two throttles: its rate, and which replicas of this node it applies to."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(None, clock)
        self._listed: Mapping[str, frozenset[int] | None] = {}
        self._image = ClusterImage()
        self.healing: frozenset[TopicPartition] = frozenset()
        """Replicas of this node that count as listed: they are made again after a directory has failed, and no
        operator listed them.
        """

    def update(self, listed: Mapping[str, frozenset[int] | None], image: ClusterImage) -> None:
        """Replace the lists of all topics that have one, and the image with their ISRs."""
        self._listed, self._image = listed, image

    def listed(self, tp: TopicPartition) -> bool:
        """Return whether this node's replica is in the topic's list."""
        if tp in self.healing:
            return True
        if not self._listed or tp.topic not in self._listed:
            return False
        partitions = self._listed[tp.topic]
        return partitions is None or tp.partition in partitions

    def throttled(self, tp: TopicPartition, follower: int) -> bool:
        """Return whether bytes for this follower count: a rate is set, its replica is listed and not in sync."""
        if self._rate is None or not self.listed(tp):
            return False
        row = self._image.partition(tp)
        return row is not None and follower not in row.isr


class Quotas:
    """Both throttles of a node; an image takes effect at once."""

    def __init__(self, node: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self.leader = Side(clock)
        self.follower = Side(clock)
        self._parsed: dict[str, frozenset[int] | None] = {}

    def configure(self, image: ClusterImage, values: BrokerValues) -> None:
        """Apply the rates, lists and ISRs of an image."""
        effective = values.effective()
        for side, rate, name in (
            (self.leader, _LEADER_RATE, _LEADER_LIST),
            (self.follower, _FOLLOWER_RATE, _FOLLOWER_LIST),
        ):
            listed = {
                topic.name: self._parse(topic.configs[name])
                for topic in image.topics.values()
                if topic.configs.get(name)
            }
            side.update(listed, image)
            side.set_rate(changes.rate(effective.get(rate)))

    def _parse(self, value: str) -> frozenset[int] | None:
        if value not in self._parsed:
            if len(self._parsed) > 1000:
                self._parsed.clear()
            self._parsed[value] = parse_replicas(value, self._node)
        return self._parsed[value]
