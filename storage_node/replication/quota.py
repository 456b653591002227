"""How fast throttled replicas are replicated (KIP-73): a rate for what this node sends as leader, one for what it
fetches as follower, for the replicas that topics list and that are not in sync.

The buckets are those of moves (`storage_node.buckets`), but nobody sleeps in them: who fetches asks how much he may
take now and comes back. The mean is exact from one idle time to the next, whatever the size of single fetches: what a
grant did not use comes back, what a batch took beyond it is a debt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from storage_node.buckets import TOLERANCE, Buckets
from storage_node.config_values import BrokerValues
from storage_node.metadata import ClusterImage
from storage_node.types import TopicPartition

PEAK = 1.01  # times the rate, while catching up
BURST = 0.1  # seconds' worth of bytes that may go at once while catching up: as long as an answer may take
LEAST = 16 << 10  # bytes that are granted at once
STEP = 0.01  # seconds' worth of bytes that are granted at once
UNLIMITED = 2**63 - 1

_LEADER_RATE, _FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
_LEADER_LIST, _FOLLOWER_LIST = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"


class Rate(Buckets):
    """At most `rate` bytes per second over all who ask; None is unlimited. Thread-safe."""

    def __init__(self, rate: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(rate, clock, PEAK)

    def set_rate(self, rate: int | None) -> None:
        """Change the rate from now on."""
        with self._lock:
            if rate == self._rate:
                return
            self._drain()
            self._rate = rate
            # What a lower rate left as a debt is not paid at the new one's pace, and the other way round.
            self._charged = self._drained = self._peak_charged = self._peak_drained = 0.0

    def grant(self, wanted: int) -> int:
        """How many of `wanted` bytes may be taken now, 0 for none; they count as taken at once."""
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
        """So many bytes of a grant were not taken; a negative number: so many were taken beyond it."""
        if self._rate is None or not count:
            return
        with self._lock:
            self._drain()
            self._charge(-count)

    def wait_seconds(self) -> float:
        """How long until something is granted again; 0.0 for now."""
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
    """The partitions of a topic whose replica on `node` a list names (`p:b,p:b`); None for all (`*`)."""
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

    def take_over(self, listed: Mapping[str, frozenset[int] | None], image: ClusterImage) -> None:
        """The lists of all topics that have one, and who is in sync."""
        self._listed, self._image = listed, image

    def listed(self, tp: TopicPartition) -> bool:
        """Whether this node's replica stands in the topic's list."""
        if not self._listed or tp.topic not in self._listed:
            return False
        partitions = self._listed[tp.topic]
        return partitions is None or tp.partition in partitions

    def throttled(self, tp: TopicPartition, follower: int) -> bool:
        """Whether bytes for this follower count: there is a rate, the replica is listed, the follower not in sync."""
        if self._rate is None or not self.listed(tp):
            return False
        row = self._image.partition(tp)
        return row is not None and follower not in row.isr


class Quotas:
    """Both throttles of a node; what an image says holds at once."""

    def __init__(self, node: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self.leader = Side(clock)
        self.follower = Side(clock)
        self._parsed: dict[str, frozenset[int] | None] = {}

    def configure(self, image: ClusterImage, values: BrokerValues) -> None:
        """Take over rates, lists and in-sync replicas."""
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
            side.take_over(listed, image)
            side.set_rate(_rate(effective.get(rate)))

    def _parse(self, value: str) -> frozenset[int] | None:
        if value not in self._parsed:
            if len(self._parsed) > 1000:
                self._parsed.clear()
            self._parsed[value] = parse_replicas(value, self._node)
        return self._parsed[value]


def _rate(text: str | None) -> int | None:
    """Bytes per second; None without a limit. Kafka's 0 holds replicas still, as 1 does."""
    rate = int(text) if text is not None else UNLIMITED
    return None if rate >= UNLIMITED else max(1, rate)
