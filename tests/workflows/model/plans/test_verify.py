"""The certificate of a plan that has ended, and of a directory that was emptied."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.workflows.model.plans.support import cluster, disk, with_directory, with_future, with_node, with_state
from workflows.model.plans.document import PlanDocument, PlannedPartition
from workflows.model.plans.values import ClusterView
from workflows.model.plans.verify import certificate, drained

VIEW = cluster({"t-0": ["1:/a", "2:/b"], "t-1": ["2:/a", "3:/a"]})
PLAN = PlanDocument((PlannedPartition("t", 1, (2, 3), ("any", "any")), PlannedPartition("t", 0, (1, 2), ("/a", "any"))))


def test_plan_in_place_is_certified_with_the_disks_of_each_replica() -> None:
    proof = certificate(PLAN, VIEW)
    assert proof.ok and proof.problems == ()
    assert [(str(row.partition), row.replicas) for row in proof.rows] == [
        ("t-0", (disk("1:/a"), disk("2:/b"))),
        ("t-1", (disk("2:/a"), disk("3:/a"))),
    ]


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (cluster({"t-0": ["1:/a", "2:/b"]}), "t-1 does not exist"),
        (cluster({"t-0": ["1:/a", "2:/b"], "t-1": ["3:/a", "2:/a"]}), "its replicas are 3, 2, but the plan has 2, 3"),
        (with_state(VIEW, "t-1", replicas=(2, 3, 1), adding=(1,)), "a reassignment to 2, 3, 1 is in progress"),
        (with_state(VIEW, "t-1", isr=(2,)), "broker 3 is not in the ISR, which is 2"),
        (with_state(VIEW, "t-1", leader=-1), "it has no leader"),
        (cluster({"t-0": ["1:/b", "2:/b"], "t-1": ["2:/a", "3:/a"]}), "is in /b, but the plan has /a"),
        (with_future(VIEW, 2, "t-1", "/b"), "broker 2 still has a future replica in /b"),
        (replace(VIEW, replicas={at: r for at, r in VIEW.replicas.items() if at[0] != 3}), "does not report its"),
    ],
)  # fmt: skip
def test_what_differs_from_the_plan_is_a_problem_of_its_partition(view: ClusterView, words: str) -> None:
    proof = certificate(PLAN, view)
    assert not proof.ok and len(proof.problems) == 1 and words in proof.problems[0]
    assert [row.problems for row in proof.rows if row.problems] == [proof.problems]


def test_throttle_that_is_left_is_a_problem() -> None:
    proof = certificate(PLAN, VIEW, ["broker 1: leader.replication.throttled.rate"])
    assert not proof.ok and "broker 1: leader.replication.throttled.rate" in proof.problems[0]


@pytest.mark.parametrize(("skipped", "count"), [([], 2), (["t-1"], 1), (["t-0@1"], 1), (["t-0@1", "t-1"], 0)])
def test_skipped_moves_are_not_compared(skipped: list[str], count: int) -> None:
    proof = certificate(PLAN, cluster({"t-0": ["1:/b", "2:/b"], "t-1": ["3:/a"]}), skipped=skipped)
    left = {each.partition(":")[0] for each in proof.problems}
    assert len(left) == count and proof.ok == (not count)
    assert [str(row.partition) for row in proof.rows] == ["t-0", "t-1"]


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (VIEW, ""),
        (with_future(VIEW, 1, "t-0", "/b"), "disk 1:/b still has 1 future replica: t-0"),
        (cluster({f"t-{n}": ["1:/b"] for n in range(7)}), "still has 7 replicas: t-0, t-1, t-2, t-3, t-4 and 2 more"),
        (with_directory(VIEW, "1:/b", error="KAFKA_STORAGE_ERROR"), "is offline"),
        (with_node(VIEW, 1, responds=False), "cannot be checked"),
        (cluster({"t-0": ["1:/a"]}, disks=["1:/a"]), "is not one of the log.dirs"),
    ],
)
def test_directory_is_drained_only_if_its_broker_reports_it_empty(view: ClusterView, words: str) -> None:
    proof = drained(view, disk("1:/b"))
    assert proof.ok is (not words) and words in "".join(proof.problems)
