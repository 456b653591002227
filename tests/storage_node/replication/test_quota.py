"""KIP-73's throttles: the replicas to which they apply, and the accuracy of the rate, by a clock set by the test."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from storage_node.buckets import CATCH_UP
from storage_node.config.values import BrokerValues
from storage_node.model.ids import TopicPartition
from storage_node.replication.quota import LEAST, PEAK, Quotas, Rate, parse_replicas
from tests.support.nodes.static_image import image, row

MB = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def take(quota: Rate, clock: Clock, seconds: float, batch: int, delay: float = 0.0, most: int = 10 << 20) -> int:
    """Fetch as a follower: at least one whole batch per response, which takes `delay` seconds; return the bytes."""
    until, got = clock.now + seconds, 0
    while clock.now < until:
        granted = quota.grant(most)
        if not granted:
            clock.now += quota.wait_seconds() + 0.0005
            continue
        used = max(1, granted // batch) * batch
        clock.now += delay
        quota.give_back(granted - used)
        got += used
    return got


@pytest.mark.conformance(196)
@pytest.mark.parametrize("rate", [MB, 20 * MB, 200 * MB])
@pytest.mark.parametrize("batch", [100, 16_384, 60_000])
@pytest.mark.parametrize("delay", [0.0, 0.004, 0.03])
def test_ten_seconds_transfer_at_the_rate(rate: int, batch: int, delay: float) -> None:
    clock = Clock()
    quota = Rate(rate, clock)
    got = take(quota, clock, 10, batch, delay)
    assert got / (10 * rate) == pytest.approx(1, abs=0.01)
    # Idle time does not allow more either.
    clock.now += 7
    assert take(quota, clock, 10, batch, delay) / (10 * rate) == pytest.approx(1, abs=0.01)


def test_late_responses_are_made_up_for_slowly_and_idle_time_is_not() -> None:
    rate, clock, dice = 10 * MB, Clock(), random.Random(7)
    quota = Rate(rate, clock)
    began, got = clock.now, 0
    for _ in range(40):
        got += take(quota, clock, 0.5, 1000, 0.002)
        clock.now += dice.uniform(0, CATCH_UP / 3)
    assert got / rate / (clock.now - began) == pytest.approx(1, abs=0.01)
    clock.now += CATCH_UP * 0.9
    assert take(quota, clock, 1, 1000) / rate < PEAK + 0.12
    clock.now += 60
    assert take(quota, clock, 1, 1000) / rate == pytest.approx(1, abs=0.03)


def test_changed_rate_takes_effect_at_once() -> None:
    clock = Clock()
    quota = Rate(1, clock)
    assert take(quota, clock, 10, 1000) <= LEAST
    quota.set_rate(5 * MB)
    assert take(quota, clock, 10, 1000) / (50 * MB) == pytest.approx(1, abs=0.01)
    quota.set_rate(2 * MB)
    assert take(quota, clock, 10, 1000) / (20 * MB) == pytest.approx(1, abs=0.01)
    quota.set_rate(None)
    assert quota.grant(1 << 40) == 1 << 40 and quota.wait_seconds() == 0


def test_batch_beyond_a_grant_is_paid_for() -> None:
    clock = Clock()
    quota = Rate(100_000, clock)
    assert take(quota, clock, 100, 1_000_000) / (100 * 100_000) == pytest.approx(1, abs=0.11)


def test_two_fetchers_share_a_rate() -> None:
    clock, got = Clock(), 0
    quota = Rate(4 * MB, clock)
    until = clock.now + 10
    while clock.now < until:
        for _ in range(2):
            granted = quota.grant(64_000)
            used = granted // 2000 * 2000
            quota.give_back(granted - used)
            got += used
        clock.now += 0.001
    assert got / (40 * MB) == pytest.approx(1, abs=0.01)


@pytest.mark.conformance(197)
@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("0:1,1:1,2:2", {0, 1}),
        (" 3:1 , 4:2,5:1 ", {3, 5}),
        ("*", None),
        (" * ", None),
        ("", set()),
        ("0:2", set()),
    ],
)
def test_lists_name_this_nodes_replicas(value: str, found: set[int] | None) -> None:
    assert parse_replicas(value, 1) == found


@pytest.mark.conformance(195)
def test_only_what_is_listed_and_not_in_sync_is_throttled() -> None:
    quotas, ports = Quotas(1), {1: 9, 2: 9}
    rates = {"leader.replication.throttled.rate": "1000", "follower.replication.throttled.rate": "0"}
    rows = [
        row([1, 2], leader=1, isr=[1], partition=0),
        row([1, 2], leader=1, isr=[1], partition=1),
        row([1, 2], leader=1, partition=2),
    ]
    listed = {"leader.replication.throttled.replicas": "0:1,2:1,1:2", "follower.replication.throttled.replicas": "*"}
    quotas.configure(image(1, rows, ports, configs=listed), BrokerValues({}, {}, rates))
    assert [quotas.leader.throttled(TopicPartition("t", each), 2) for each in range(4)] == [True, False, False, False]
    assert [quotas.follower.listed(TopicPartition("t", each)) for each in range(3)] == [True] * 3
    assert not quotas.follower.listed(TopicPartition("u", 0))
    assert (quotas.leader.rate, quotas.follower.rate) == (1000, 1)
    # The follower joins the ISR; the lists and the rates are removed.
    quotas.configure(image(2, [replace(rows[0], isr=(1, 2))], ports, configs=listed), BrokerValues({}, {}, rates))
    assert not quotas.leader.throttled(TopicPartition("t", 0), 2)
    quotas.configure(image(3, rows, ports), BrokerValues({}, {}, rates))
    assert not quotas.leader.throttled(TopicPartition("t", 0), 2)
    quotas.configure(image(4, rows, ports, configs=listed), BrokerValues({}, {}, {}))
    assert not quotas.leader.throttled(TopicPartition("t", 0), 2) and quotas.leader.rate is None


def test_lowest_rate_holds_a_replica_and_a_higher_one_lets_it_go_on_at_once() -> None:
    clock = Clock()
    quota = Rate(1, clock)
    assert quota.grant(10 * MB) == 16 << 10, "one fetch"
    assert quota.grant(10 * MB) == 0 and quota.wait_seconds() > 3 * 3600
    quota.set_rate(MB)
    assert quota.grant(10 * MB) > 0
