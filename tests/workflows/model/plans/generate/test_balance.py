"""Balanced directories and brokers: level, with hardly more bytes than any plan must move, and nothing broken."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.model.ids import TopicPartition
from tests.workflows.model.plans.generate.scenes import check, placed_by, random_cluster, shuffled, used_after
from tests.workflows.model.plans.support import MB, cluster, tp, with_directory, with_future, with_node, with_state
from workflows.model.plans.generate.balance import add_broker, balance_brokers, balance_directories
from workflows.model.plans.generate.layout import Limits, PlanRefused
from workflows.model.plans.values import ClusterView, Disk

EXACT = Limits(min_benefit=0, min_density=0, tolerance=0, keep_free=0)
chances = st.randoms(use_true_random=False)


def misplaced(used: Iterable[int]) -> int:
    """Return the bytes above an even share of bins of one capacity."""
    held = list(used)
    return sum(max(0, each - sum(held) // len(held)) for each in held)


@settings(max_examples=80, deadline=None)
@given(chances, st.integers(2, 3), st.integers(1, 6))
def test_directories_are_balanced_with_the_fewest_bytes_that_any_plan_needs(
    chance: random.Random, disks: int, partitions: int
) -> None:
    view = random_cluster(chance, 1, disks, partitions)
    plan = balance_directories(view, limits=EXACT)
    check(plan, view)
    names = sorted(view.partitions)
    sizes = [view.size_of(name) for name in names]
    before = [int(view.replicas[0, name].path[2:]) for name in names]
    reached = misplaced(used_after(plan, view).values())
    fewest = sum(sizes)
    for places in itertools.product(range(disks), repeat=partitions):
        used = [sum(size for size, at in zip(sizes, places, strict=True) if at == disk) for disk in range(disks)]
        if misplaced(used) <= reached:
            moved = sum(size for size, at, was in zip(sizes, places, before, strict=True) if at != was)
            fewest = min(fewest, moved)
    assert plan.bytes <= 1.1 * fewest


@settings(max_examples=40, deadline=None)
@given(chances, st.integers(2, 4), st.integers(1, 4), st.sampled_from([0, 2]))
def test_brokers_are_balanced_with_the_fewest_bytes_that_any_plan_needs(
    chance: random.Random, nodes: int, partitions: int, racks: int
) -> None:
    view = random_cluster(chance, nodes, 1, partitions, factor=2, racks=racks)
    plan = balance_brokers(view, EXACT)
    check(plan, view)
    names = sorted(view.partitions)
    reached = misplaced(used_after(plan, view).values())
    choices = [
        [
            nodes_
            for nodes_ in itertools.combinations(range(nodes), len(view.partitions[name].replicas))
            if not racks
            or len({each % racks for each in nodes_}) >= len({n % racks for n in view.partitions[name].replicas})
        ]
        for name in names
    ]
    fewest = sum(view.size_of(name) * len(view.partitions[name].replicas) for name in names)
    for held in itertools.product(*choices):
        used, moved = [0] * nodes, 0
        for name, nodes_ in zip(names, held, strict=True):
            for node in nodes_:
                used[node] += view.size_of(name)
                moved += view.size_of(name) * (node not in view.partitions[name].replicas)
        if misplaced(used) <= reached:
            fewest = min(fewest, moved)
    assert plan.bytes <= 1.1 * fewest


@pytest.mark.feature("113-47")
def test_directories_drift_apart_where_the_brokers_stay_level() -> None:
    """Every broker holds every partition: the brokers are level, their directories are not."""
    chance = random.Random(47)
    nodes, disks, partitions = 3, 4, 60
    held = {f"t-{at}": [f"{node}:/d{chance.randrange(disks)}" for node in range(nodes)] for at in range(partitions)}
    sizes = {name: chance.randint(1, 100) * MB for name in held}
    names = [f"{node}:/d{at}" for node in range(nodes) for at in range(disks)]
    view = cluster(held, sizes=sizes, disks=names, total=20 * sum(sizes.values()))
    limits = Limits(min_density=0)
    assert balance_brokers(view, limits).nothing_to_do
    inside = balance_directories(view, limits=limits)
    check(inside, view)
    assert not inside.nothing_to_do
    for entry in inside.document.partitions:
        assert entry.replicas == view.partitions[TopicPartition(entry.topic, entry.partition)].replicas
    used = used_after(inside, view)
    for node in range(nodes):
        of_node = [used[Disk(node, f"/d{at}")] for at in range(disks)]
        assert max(of_node) < 1.1 * sum(of_node) / disks


@settings(max_examples=40, deadline=None)
@given(chances, st.integers(2, 4), st.integers(1, 20))
def test_no_move_that_only_helps_is_left(chance: random.Random, disks: int, partitions: int) -> None:
    view = random_cluster(chance, 1, disks, partitions)
    plan = balance_directories(view, limits=EXACT)
    used = used_after(plan, view)
    share = sum(used.values()) // disks
    for (name, _), disk in placed_by(plan, view).items():
        if disk.path != view.replicas[0, name].path:
            continue
        for other in used:
            size = view.size_of(name)
            assert size == 0 or not size <= min(used[disk] - share, share - used[other])


@settings(max_examples=40, deadline=None)
@given(
    chances,
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(0, 60),
    st.integers(300, 6_000),
    st.sampled_from([0, 2, 3]),
)
def test_plans_keep_factor_racks_and_space_and_are_the_same_each_time(
    chance: random.Random, nodes: int, disks: int, partitions: int, total: int, racks: int
) -> None:
    view = random_cluster(chance, nodes, disks, partitions, total=total, racks=racks)
    limits = Limits(min_benefit=0, min_density=0, keep_free=10)
    for made in (
        lambda each: balance_directories(each, limits=limits),
        lambda each: balance_brokers(each, limits),
        lambda each: add_broker(each, [nodes - 1], limits),
    ):
        plan = made(view)
        check(plan, view, keep_free=10)
        assert plan.after <= plan.before
        assert made(shuffled(view, chance)) == plan


def test_large_cluster_is_balanced_within_the_tolerance() -> None:
    view = random_cluster(random.Random(4), 12, 6, 1_500, largest=1_000, racks=3)
    begin = time.process_time()
    plans = balance_directories(view, limits=Limits(min_density=0)), balance_brokers(view, Limits(min_density=0))
    assert time.process_time() - begin < 20
    for plan in plans:
        check(plan, view, keep_free=5)
        assert plan.before > 2 and plan.after < 1


def test_balance_by_fullness_and_not_by_bytes() -> None:
    view = cluster(
        {f"t-{n}": ["1:/a"] for n in range(30)}, sizes={f"t-{n}": MB for n in range(30)}, disks=["1:/a", "1:/b"]
    )
    view = with_directory(view, "1:/a", total=200 * MB, usable=170 * MB)
    view = with_directory(view, "1:/b", total=100 * MB, usable=100 * MB)
    plan = balance_directories(view, [1], EXACT)
    assert plan.bytes == 10 * MB, "the small disk gets a third"
    assert (round(plan.before), round(plan.after)) == (33, 0)


def test_leader_stays_first_and_the_directory_has_the_most_space() -> None:
    view = cluster({f"t-{n}": ["1:/a", "2:/a"] for n in range(4)}, disks=["1:/a", "2:/a", "3:/a", "3:/b"], total=9 * MB)
    view = with_directory(view, "3:/a", total=9 * MB, usable=8 * MB)
    plan = balance_brokers(view, replace(EXACT, tolerance=20))
    first = plan.document.partitions[0]
    assert first.log_dirs[first.replicas.index(3)] == "/b"
    check(plan, view)


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (cluster({}), "has no data"),
        (cluster({"t-0": ["1:/a"]}, disks=["1:/a"], total=5 * MB), "only one directory"),
        (cluster({"t-0": ["1:/a"]}), "uses 0.1% of its space, less than the 5% to begin at"),
        (with_directory(cluster({"t-0": ["1:/a"]}, total=5 * MB), "1:/b", error="KAFKA"), "offline directory"),
        (with_node(cluster({"t-0": ["1:/a"]}, total=5 * MB), 1, responds=False), "does not return its log directories"),
    ],
)  # fmt: skip
def test_broker_that_is_not_balanced_is_named_with_the_reason(view: ClusterView, words: str) -> None:
    plan = balance_directories(view, [1])
    assert plan.nothing_to_do and len(plan.skipped) == 1 and words in plan.skipped[0]


def test_plan_below_the_minimum_benefit_is_not_made() -> None:
    rows = {f"t-{n}": [f"1:/{'ab'[n % 2]}"] for n in range(102)} | {"t-200": ["1:/a"], "t-202": ["1:/a"]}
    view = cluster(rows, disks=["1:/a", "1:/b"], total=200 * MB)
    assert balance_directories(view, [1], replace(EXACT, min_benefit=0.5)).bytes == MB
    plan = balance_directories(view, [1], replace(EXACT, min_benefit=1.0))
    assert plan.nothing_to_do and plan.before == plan.after and "less than the minimum benefit of 1%" in plan.skipped[0]


def test_replicas_that_move_already_are_left_alone() -> None:
    rows = {f"t-{n}": ["1:/a"] for n in range(2)}
    view = with_future(cluster(rows, disks=["1:/a", "1:/b"], total=4 * MB), 1, "t-0", "/b")
    plan = balance_directories(view, [1], EXACT)
    assert [each.partition for each in plan.document.partitions] == [1]
    view = with_state(cluster(rows, disks=["1:/a", "2:/a"], total=4 * MB), "t-1", replicas=(1, 2), adding=(2,))
    assert [each.partition for each in balance_brokers(view, EXACT).document.partitions] == [0]


def test_new_broker_receives_its_share_and_the_others_exchange_nothing() -> None:
    view = random_cluster(random.Random(9), 4, 2, 200)
    view = replace(
        view,
        nodes={**view.nodes, 9: replace(view.nodes[0], node=9)},
        directories={
            **view.directories,
            Disk(9, "/d0"): replace(view.directories[Disk(0, "/d0")], disk=Disk(9, "/d0"), usable=40_000),
            Disk(9, "/d1"): replace(view.directories[Disk(0, "/d0")], disk=Disk(9, "/d1"), usable=40_000),
        },
    )
    plan = add_broker(view, [9], replace(EXACT, min_density=0))
    check(plan, view)
    used = used_after(plan, view)
    whole, received = sum(used.values()), used[Disk(9, "/d0")] + used[Disk(9, "/d1")]
    assert received == plan.bytes and abs(received - whole / 5) < 0.02 * whole
    assert abs(used[Disk(9, "/d0")] - used[Disk(9, "/d1")]) <= 100
    for entry in plan.document.partitions:
        before = view.partitions[tp(f"t-{entry.partition}")].replicas
        assert [(a, b) for a, b in zip(before, entry.replicas, strict=True) if a != b and b != 9] == []


def test_unknown_or_silent_broker_is_refused() -> None:
    view = with_node(cluster({"t-0": ["1:/a"]}), 2, responds=False)
    with pytest.raises(PlanRefused, match="broker 8 is not registered in the cluster, which has 1, 2, 3"):
        balance_directories(view, [1, 8])
    with pytest.raises(PlanRefused, match="broker 2 does not return its log directories"):
        add_broker(view, [2])
