"""Emptied directories and brokers: every replica finds a place, or the plan is refused with the numbers."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workflows.model.plans.generate.scenes import check, placed_by, random_cluster, shuffled
from tests.workflows.model.plans.support import (
    MB,
    cluster,
    disk,
    tp,
    with_directory,
    with_future,
    with_node,
    with_state,
)
from workflows.model.plans.generate.drain import drain, remove_broker
from workflows.model.plans.generate.layout import Limits, PlanRefused
from workflows.model.plans.values import ClusterView

BARE = Limits(keep_free=0)


def test_replicas_go_to_the_directories_of_the_broker_first_and_the_rest_to_others() -> None:
    sizes = {"t-0": 60 * MB, "t-1": 50 * MB, "t-2": 30 * MB}
    view = cluster({name: ["1:/a"] for name in sizes}, sizes=sizes, disks=["1:/a", "1:/b", "2:/a"], total=150 * MB)
    view = with_directory(view, "1:/b", total=150 * MB, usable=95 * MB)
    plan = drain(view, 1, "/a", BARE)
    check(plan, view)
    assert plan.bytes == 140 * MB, "each replica is copied once"
    assert {str(name): str(at) for (name, _), at in placed_by(plan, view).items()} == {
        "t-0": "1:/b",
        "t-1": "2:/a",
        "t-2": "1:/b",
    }


@settings(max_examples=40, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.integers(2, 5),
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(200, 4_000),
    st.sampled_from([0, 2]),
    st.booleans(),
)
def test_drained_disk_is_empty_or_the_plan_is_refused(
    chance: random.Random, nodes: int, disks: int, partitions: int, total: int, racks: int, whole: bool
) -> None:
    view = random_cluster(chance, nodes, disks, partitions, total=total, racks=racks)
    path = None if whole else "/d0"
    leaving = {
        name: placed.size for (node, name), placed in view.replicas.items() if node == 0 and path in (None, placed.path)
    }
    try:
        plan = drain(view, 0, path, Limits(keep_free=5))
    except PlanRefused as refused:
        with pytest.raises(PlanRefused) as again:
            drain(shuffled(view, chance), 0, path, Limits(keep_free=5))
        assert again.value.reasons == refused.reasons
        return
    check(plan, view, keep_free=5)
    assert plan.bytes == sum(leaving.values())
    assert not [at for at in placed_by(plan, view).values() if at.node == 0 and path in (None, at.path)]
    assert drain(shuffled(view, chance), 0, path, Limits(keep_free=5)) == plan


@pytest.mark.parametrize("path", ["/a", None])
def test_plan_is_refused_with_the_sum_that_has_no_space(path: str | None) -> None:
    sizes = {f"t-{number}": 30 * MB for number in range(3)}
    view = cluster({name: ["1:/a"] for name in sizes}, sizes=sizes, disks=["1:/a", "1:/b", "2:/a"], total=100 * MB)
    view = with_directory(view, "1:/b", total=100 * MB, usable=35 * MB)
    view = with_directory(view, "2:/a", total=100 * MB, usable=40 * MB)
    with pytest.raises(PlanRefused) as caught:
        drain(view, 1, path, BARE)
    words = str(caught.value)
    assert "90000000 bytes must leave" in words and "free space or add a broker" in words
    if path:
        assert "have 75000000" in words and "1 partition is without a place, 30000000 bytes, t-2" in words
    else:
        assert "have 40000000" in words and "2 partitions are without a place, 60000000 bytes, t-1, t-2" in words


def test_biggest_partition_is_checked_against_each_disk_and_not_only_the_sum() -> None:
    view = cluster({"t-0": ["1:/a"]}, sizes={"t-0": 80 * MB}, disks=["1:/a", "1:/b", "1:/c"], total=100 * MB)
    view = with_directory(with_directory(view, "1:/b", usable=50 * MB), "1:/c", usable=60 * MB)
    with pytest.raises(PlanRefused) as caught:
        drain(view, 1, "/a", BARE)
    words = str(caught.value)
    assert "t-0 has 80000000 bytes" in words and "1:/c, has 60000000" in words and "together have 110000000" in words


def test_tight_space_is_filled_where_even_filling_fails() -> None:
    sizes = {"t-0": 60, "t-1": 50, "t-2": 50}
    view = cluster({name: ["1:/a"] for name in sizes}, sizes=sizes, disks=["1:/a", "1:/b", "1:/c"], total=1_000)
    view = with_directory(with_directory(view, "1:/b", usable=100), "1:/c", usable=60)
    plan = drain(view, 1, "/a", BARE)
    check(plan, view)
    assert {str(name): at.path for (name, _), at in placed_by(plan, view).items()} == {
        "t-0": "/c",
        "t-1": "/b",
        "t-2": "/b",
    }


def test_broker_with_an_offline_directory_is_emptied_across_brokers() -> None:
    view = cluster({"t-0": ["2:/a", "1:/a"], "t-1": ["2:/a", "1:/b"]})
    dead = with_directory(view, "1:/a", error="KAFKA_STORAGE_ERROR", total=-1, usable=-1)
    dead = replace(dead, replicas={at: placed for at, placed in dead.replicas.items() if at != (1, tp("t-0"))})
    failed = drain(dead, 1, "/a", BARE)
    assert [(each.partition, each.replicas) for each in failed.document.partitions] == [(0, (2, 3))]
    beside = drain(dead, 1, "/b", BARE)
    assert [(each.partition, each.replicas) for each in beside.document.partitions] == [(1, (2, 3))]
    # A copy out of it that had begun does not go on.
    orphan = drain(with_future(dead, 1, "t-0", "/b"), 1, "/a", BARE)
    assert orphan.document == failed.document


def test_dead_broker_is_removed_with_the_sizes_of_the_leaders() -> None:
    view = cluster({"t-0": ["2:/a", "1:/a"], "t-1": ["1:/b", "3:/b"]}, sizes={"t-0": 7 * MB})
    dead = replace(view, replicas={at: placed for at, placed in view.replicas.items() if at[0] != 1})
    dead = replace(dead, directories={at: held for at, held in dead.directories.items() if at.node != 1})
    dead = with_state(with_node(dead, 1, responds=False), "t-1", leader=3, isr=(3,))
    plan = remove_broker(dead, 1, BARE)
    assert [each.replicas for each in plan.document.partitions] == [(2, 3), (2, 3)] and plan.bytes == 8 * MB
    assert placed_by(plan, dead)[tp("t-0"), 3] in (disk("3:/a"), disk("3:/b"))


@pytest.mark.parametrize(
    ("view", "node", "path", "words"),
    [
        (cluster({}), 7, None, ("broker 7 is not registered",)),
        (cluster({}), 1, "/z", ("'/z' is not one of the log.dirs of broker 1, which are /a, /b",)),
        (cluster({"t-0": ["1:/a", "2:/a", "3:/a"]}), 1, None, ("t-0 has no other broker to go to", "add a broker")),
        (
            cluster({"t-0": ["1:/a", "2:/a"]}, racks={1: "x", 2: "y", 3: "y"}),
            1,
            None,
            ("fewer racks; add a broker, or allow fewer racks",),
        ),
        (
            with_future(cluster({"t-0": ["1:/a"]}), 1, "t-0", "/b"),
            1,
            "/a",
            ("1 partition is being moved already, t-0",),
        ),
        (
            with_state(cluster({"t-0": ["1:/a"]}), "t-0", leader=-1),
            1,
            "/a",
            ("1 partition is without a leader, t-0", "no replica to copy from"),
        ),
        (
            with_node(replace(cluster({"t-0": ["1:/a"]}), replicas={}), 1, responds=False),
            1,
            None,
            ("1 partition is of unknown size, t-0", "only replica"),
        ),
    ],
)
def test_refusal_says_why(view: ClusterView, node: int, path: str | None, words: tuple[str, ...]) -> None:
    with pytest.raises(PlanRefused) as caught:
        drain(view, node, path)
    for each in words:
        assert each in str(caught.value)


def test_fewer_racks_must_be_allowed() -> None:
    view = cluster({"t-0": ["1:/a", "2:/a"]}, racks={1: "x", 2: "y", 3: "y"})
    assert [each.replicas for each in remove_broker(view, 1, Limits(fewer_racks=True)).document.partitions] == [(3, 2)]
