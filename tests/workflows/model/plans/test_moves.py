"""A plan beside the cluster: the moves that are left, and the sentences about what cannot be done."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
from workflows.model.move.parameter import ANY
from workflows.model.plans.document import PlanDocument, PlannedPartition
from workflows.model.plans.moves import changed_replicas, rollback_of, total_bytes, work_of
from workflows.model.plans.values import ClusterView, MoveKind

VIEW = cluster({"t-0": ["1:/a", "2:/a"], "t-1": ["2:/b", "3:/b"]}, sizes={"t-0": 5 * MB})


def plan(*rows: tuple[str, str]) -> PlanDocument:
    """Return a document: ("t-0", "1:/a 3") has "any" for 3."""
    found = []
    for name, where in rows:
        held = [(int(each.partition(":")[0]), each.partition(":")[2] or ANY) for each in where.split()]
        found.append(PlannedPartition(tp(name).topic, tp(name).partition, *zip(*held, strict=True)))
    return PlanDocument(tuple(found))


def test_partition_in_place_needs_no_move() -> None:
    work = work_of(plan(("t-0", "1:/a 2"), ("t-1", "2:/b 3:/b")), VIEW)
    assert (work.moves, work.in_place, work.problems, work.nothing_to_do) == ((), 2, (), True)


def test_added_replica_is_read_from_the_leader_and_written_to_the_named_directory() -> None:
    (move,) = work_of(plan(("t-0", "1 3:/b")), VIEW).moves
    assert (move.kind, move.key, move.before, move.after) == (MoveKind.REPLICAS, "t-0", (1, 2), (1, 3))
    assert (move.size, move.reads, move.writes) == (5 * MB, (disk("1:/a"),), (disk("3:/b"),))
    assert move.directories == {3: "/b"} and total_bytes([move]) == 5 * MB


def test_added_replica_without_directory_is_written_where_the_broker_chooses() -> None:
    (move,) = work_of(plan(("t-1", "1 2 3")), VIEW).moves
    assert move.writes == (disk(f"1:{ANY}"),) and move.directories == {}


def test_another_order_and_fewer_replicas_copy_nothing() -> None:
    for where, after in (("2 1", (2, 1)), ("1", (1,))):
        (move,) = work_of(plan(("t-0", where)), VIEW).moves
        assert (move.after, move.reads, move.writes, total_bytes([move])) == (after, (), (), 0)


def test_staying_replica_moves_between_directories_beside_the_change_of_replicas() -> None:
    replicas, moved = work_of(plan(("t-0", "1:/b 3:/a")), VIEW).moves
    assert (replicas.kind, replicas.writes) == (MoveKind.REPLICAS, (disk("3:/a"),))
    assert (moved.key, moved.source, moved.target) == ("t-0@1", "/a", "/b")
    assert (moved.reads, moved.writes) == ((disk("1:/a"),), (disk("1:/b"),))


def test_what_an_earlier_run_has_begun_is_still_a_move() -> None:
    under_way = with_state(VIEW, "t-0", replicas=(1, 3, 2), adding=(3,), removing=(2,))
    (move,) = work_of(plan(("t-0", "1 3:/a")), under_way).moves
    assert (move.before, move.after, move.writes) == ((1, 2), (1, 3), (disk("3:/a"),))
    (move,) = work_of(plan(("t-0", "1:/b 2")), with_future(VIEW, 1, "t-0", "/b")).moves
    assert (move.source, move.target) == ("/a", "/b")


@pytest.mark.parametrize(
    ("view", "row", "words"),
    [
        (VIEW, ("t-7", "1"), ("t-7 does not exist", "partitions 0 to 1", "remove it")),
        (VIEW, ("u-0", "1"), ("topic u does not exist", "1 partition of")),
        (VIEW, ("t-0", "1 8 9"), ("t-0", "broker 8, 9 is not registered", "has 1, 2, 3")),
        (VIEW, ("t-0", "1:/c 2"), ("'/c' is not one of the log.dirs of broker 1", "/a, /b")),
        (with_directory(VIEW, "3:/a", error="KAFKA_STORAGE_ERROR"), ("t-0", "1 3:/a"), ("/a of broker 3 is offline",)),
        (with_directory(VIEW, "1:/a", error="KAFKA_STORAGE_ERROR"), ("t-0", "1:/b 2"), ("cannot be copied to /b",)),
        (with_node(VIEW, 3, responds=False), ("t-0", "1 3"), ("broker 3 did not return", "start it")),
        (with_node(VIEW, 2, responds=False), ("t-0", "1 2:/b"), ("broker 2 did not return",)),
        (
            with_state(VIEW, "t-0", replicas=(1, 3, 2), adding=(3,), removing=(2,)),
            ("t-0", "1 2"),
            ("reassignment to 1, 3 is in progress", "the plan has 1, 2", "--cancel"),
        ),
        (with_state(VIEW, "t-0", leader=-1), ("t-0", "1 3"), ("it has no leader", "kafka-leader-election")),
        (with_future(VIEW, 1, "t-0", "/b"), ("t-0", "1 2"), ("already moves its replica to /b",)),
        (replace(VIEW, replicas={}), ("t-0", "1:/b 2"), ("does not report the directory",)),
    ],
)  # fmt: skip
def test_problem_names_what_where_and_what_next(
    view: ClusterView, row: tuple[str, str], words: tuple[str, ...]
) -> None:
    work = work_of(plan(row), view)
    assert work.moves == () and len(work.problems) == 1 and not work.nothing_to_do
    for each in words:
        assert each in work.problems[0]


def test_dead_broker_may_be_left() -> None:
    dead = with_node(VIEW, 2, responds=False)
    assert [move.after for move in work_of(plan(("t-0", "1 3")), dead).moves] == [(1, 3)]


def test_missing_topic_is_one_sentence_for_all_its_partitions() -> None:
    (problem,) = work_of(plan(*((f"u-{number}", "1") for number in range(50))), VIEW).problems
    assert "50 partitions of the plan name it" in problem


def test_rollback_restores_replicas_and_directories() -> None:
    forward = plan(("t-0", "3:/b 1:/b"), ("t-1", "2:/a 3"))
    back = rollback_of(work_of(forward, VIEW).moves, VIEW)
    assert back == plan(("t-0", "1:/a 2:/a"), ("t-1", "2:/b 3:/b"))
    assert work_of(back, VIEW).nothing_to_do


@pytest.mark.parametrize(
    ("where", "changes"),
    [("1:/b 2:/b", False), ("1 2", False), ("2:/b 1", True), ("1:/b", True), ("1:/b 3", True)],
)
def test_plan_of_directories_alone_may_not_change_replicas_or_their_order(where: str, changes: bool) -> None:
    found = changed_replicas(work_of(plan(("t-0", where)), VIEW))
    assert [each.partition(":")[0] for each in found] == (["t-0"] if changes else [])
    assert all("the cluster 1, 2, and this plan changes directories alone" in each for each in found)
