"""A plan whose cluster loses a broker or a disk, or whose topic grows: the rest goes on, and nothing is left behind."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.conformance.clusters import Cluster
from tests.conformance.log_dirs.calls import failed_directory
from tests.conformance.log_dirs.calls import where as directory_of
from tests.conformance.plan_runs.orchestrator import Orchestrator, Plan
from tests.conformance.plan_runs.test_kills import FAST, SLOW
from tests.conformance.plan_runs.test_plans import filled
from tests.conformance.replication.between import seen, under_way, wait_until_done

pytestmark = pytest.mark.timeout(300)


def slow_and_small(cluster: Cluster, orchestrator: Orchestrator, path: str | None = None) -> tuple[Plan, str, str]:
    """A plan with a large move from node 1 to node 2, or to a directory of it, under way, and a small one from node 3
    to node 1.
    """
    large, small = filled(cluster, 1), filled(cluster, 3, megabytes=0)
    plan = orchestrator.submit((large, 0, [2], path and [path]), (small, 0, [1], None), options=SLOW)
    cluster.eventually(lambda: under_way(cluster, large) is not None, "it is under way")
    return plan, large, small


def test_broker_that_stays_dead_costs_its_own_moves_alone(cluster: Cluster, orchestrator: Orchestrator) -> None:
    plan, large, small = slow_and_small(cluster, orchestrator)
    cluster.kill(2)
    try:
        cluster.eventually(lambda: plan.progress()["outcomes"] == {"moved": 1}, "the other move is done")
        assert seen(cluster, small).replicas == (1,)
        assert plan.progress()["phase"] == "moving"
        plan.update("cancel")
        result = plan.result()
    finally:
        cluster.start(2)
    assert result["outcome"] == "cancelled" and result["outcomes"] == {"moved": 1, "cancelled": 1}
    wait_until_done(cluster, large, [1])


def test_move_into_a_disk_that_fails_waits_for_it_and_the_others_go_on(
    cluster: Cluster, orchestrator: Orchestrator
) -> None:
    bad = cluster.log_dirs[2][1]
    plan, large, small = slow_and_small(cluster, orchestrator, bad)
    with failed_directory(cluster, 2, bad):
        cluster.eventually(lambda: plan.progress()["outcomes"] == {"moved": 1}, "the other move is done")
        assert seen(cluster, small).replicas == (1,)
    plan.update("set_options", FAST)
    result = plan.result(120)
    assert result["outcome"] == "done" and result["outcomes"] == {"moved": 2}
    assert seen(cluster, large).replicas == (2,) and directory_of(cluster, 2, large) == bad
    assert cluster.end_offset(large) == 2000


def test_copy_out_of_a_disk_that_fails_ends_as_failed_and_leaves_no_throttle(
    cluster: Cluster, orchestrator: Orchestrator
) -> None:
    topic, (good, bad) = filled(cluster, 2), cluster.log_dirs[2][:2]
    orchestrator.submit((topic, 0, [2], [bad]), options=FAST).result()
    plan = orchestrator.submit((topic, 0, [2], [good]), options=SLOW)
    cluster.eventually(lambda: directory_of(cluster, 2, topic, future=True) == good, "it is under way")
    with failed_directory(cluster, 2, bad):
        result = plan.result(120)
        (row,) = result["failures"]
        assert result["outcomes"] == {"failed": 1} and bad in row["reason"] and "offline" in row["reason"]


def test_plan_into_a_disk_that_has_failed_is_refused_with_its_path(
    cluster: Cluster, orchestrator: Orchestrator
) -> None:
    bad = cluster.log_dirs[2][1]
    topic = filled(cluster, 1, megabytes=0)
    with failed_directory(cluster, 2, bad):
        with pytest.raises(WorkflowFailureError) as raised:
            orchestrator.submit((topic, 0, [2], [bad])).result()
        cause = raised.value.cause
        assert isinstance(cause, ApplicationError) and cause.type == "PlanRefused"
        assert bad in cause.message
    assert seen(cluster, topic).replicas == (1,)


def test_topic_that_grows_meanwhile_is_moved_as_it_was_planned(cluster: Cluster, orchestrator: Orchestrator) -> None:
    topic = filled(cluster, 1)
    plan = orchestrator.submit((topic, 0, [2], None), options=SLOW)
    cluster.eventually(lambda: under_way(cluster, topic) is not None, "it is under way")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(20)
    plan.update("set_options", FAST)
    result = plan.result()
    assert result["outcome"] == "done" and result["outcomes"] == {"moved": 1} and result["verified"]["ok"]
    assert seen(cluster, topic).replicas == (2,) and seen(cluster, topic, 1).replicas
