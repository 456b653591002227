"""A plan on any Kafka cluster: what it moves, what an operator does to it, and what others do meanwhile."""

from __future__ import annotations

import re

import pytest
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from activities.kafka_admin.admin import KafkaAdmin
from activities.plans.evacuating import CORDON
from tests.conformance.clusters import Cluster
from tests.conformance.log_dirs.calls import where as directory_of
from tests.conformance.plan_runs.conftest import throttles
from tests.conformance.plan_runs.orchestrator import Orchestrator, Plan
from tests.conformance.replication.between import ask, seen, under_way, wait_until_done
from workflows.model import names
from workflows.model.throttles import LISTS, MOVE_RATE, RATES

#: Holds copies of some megabytes for as long as a test looks at them.
SLOW = {"throttle_between_brokers": 200_000, "throttle_between_directories": 200_000}


def filled(cluster: Cluster, *replicas: int, megabytes: int = 2, partitions: int = 1) -> str:
    """A topic with some data in each partition."""
    topic = cluster.new_topic(assignment={number: list(replicas) for number in range(partitions)})
    for number in range(partitions):
        cluster.produce(topic, number, n=megabytes * 1000, size=1000)
    return topic


def other(cluster: Cluster, topic: str, node: int, partition: int = 0) -> str:
    """A directory of the node that does not hold the replica."""
    held = directory_of(cluster, node, topic, partition)
    return next(path for path in cluster.log_dirs[node] if path != held)


def numbers(cluster: Cluster, topic: str, partition: int = 0) -> int:
    return cluster.end_offset(topic, partition)


@pytest.mark.feature("113-46")
def test_moves_between_directories_between_brokers_and_both(cluster: Cluster, orchestrator: Orchestrator) -> None:
    one, two, both = (filled(cluster, 1, megabytes=1) for _ in range(3))
    target, there = other(cluster, one, 1), cluster.log_dirs[3][1]
    plan = orchestrator.submit(
        (one, 0, [1], [target]), (two, 0, [2], None), (both, 0, [3], [there]), options={"slots_per_disk": 3}
    )
    result = plan.result()
    assert result["outcome"] == "done" and result["outcomes"] == {"moved": 3} and result["verified"]["ok"]
    assert directory_of(cluster, 1, one) == target
    assert seen(cluster, two).replicas == (2,)
    assert directory_of(cluster, 3, both) == there
    assert [cluster.end_offset(topic) for topic in (one, two, both)] == [1000] * 3


def test_plan_that_is_in_place_moves_nothing(cluster: Cluster, orchestrator: Orchestrator) -> None:
    topic = filled(cluster, 1, 2, megabytes=0)
    result = orchestrator.submit((topic, 0, [1, 2], None)).result()
    assert (result["outcome"], result["moves"], result["in_place"]) == ("done", 0, 1)


def test_plan_that_the_cluster_cannot_carry_out_changes_nothing(cluster: Cluster, orchestrator: Orchestrator) -> None:
    topic = filled(cluster, 1, megabytes=0)
    plan = orchestrator.submit((topic, 0, [2], None), ("nothing-of-that-name", 0, [1], None), (topic, 7, [1], None))
    with pytest.raises(WorkflowFailureError) as raised:
        plan.result()
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError) and cause.type == "PlanRefused" and len(cause.details) == 2
    assert seen(cluster, topic).replicas == (1,)


def test_throttles_are_held_and_what_stood_there_before_is_restored(
    cluster: Cluster, orchestrator: Orchestrator
) -> None:
    topic = filled(cluster, 1)
    cluster.set_broker_config(1, **{MOVE_RATE.replace(".", "_"): "123456789"})
    cluster.eventually(lambda: throttles(cluster)["nodes"] == {"1": {MOVE_RATE: "123456789"}}, "it is set")
    try:
        plan = orchestrator.submit((topic, 0, [2], None), options=SLOW)
        plan.wait_running(f"{topic}-0")
        cluster.eventually(lambda: under_way(cluster, topic) is not None, "it is under way")
        rates = dict.fromkeys((*RATES, MOVE_RATE), "200000")
        held = {
            "nodes": {"1": rates, "2": rates},
            "topics": {topic: dict(zip(LISTS, ("0:1", "0:2"), strict=True))},
        }
        # The broker that responds may be behind the controller.
        cluster.eventually(lambda: throttles(cluster) == held, "they are held")
        plan.update("set_options", {"throttle_between_brokers": 50_000_000})
        assert plan.result()["outcome"] == "done"
        cluster.eventually(lambda: throttles(cluster)["nodes"] == {"1": {MOVE_RATE: "123456789"}}, "restored")
    finally:
        cluster.set_broker_config(1, **{MOVE_RATE.replace(".", "_"): None})


def test_pause_lets_moves_finish_and_resume_begins_the_next(cluster: Cluster, orchestrator: Orchestrator) -> None:
    topic = filled(cluster, 1, partitions=2, megabytes=1)
    rows = [(topic, number, [2], None) for number in range(2)]
    plan = orchestrator.submit(*rows, options={**SLOW, "lane_moves": 1, "slots_cluster": 1})
    plan.wait_phase("moving")
    cluster.eventually(lambda: any(under_way(cluster, topic, n) for n in range(2)), "one is under way")
    plan.update("pause")
    with pytest.raises(WorkflowUpdateFailedError):
        plan.update("pause")
    plan.update("set_options", {"throttle_between_brokers": 50_000_000})
    cluster.eventually(lambda: not plan.progress()["lanes_running"], "what was under way has finished")
    progress = plan.progress()
    assert progress["paused"] and progress["outcomes"] == {"moved": 1} and progress["lanes_left"] == 1
    plan.update("resume")
    assert plan.result()["outcomes"] == {"moved": 2}


@pytest.mark.feature("455-28")
def test_cancel_takes_what_is_under_way_back(cluster: Cluster, orchestrator: Orchestrator) -> None:
    disk, node = filled(cluster, 1), filled(cluster, 2)
    source = directory_of(cluster, 1, disk)
    plan = orchestrator.submit((disk, 0, [1], [other(cluster, disk, 1)]), (node, 0, [3], None), options=SLOW)
    plan.wait_running(f"{disk}-0@1", f"{node}-0")
    cluster.eventually(lambda: under_way(cluster, node) is not None, "the reassignment is under way")
    plan.update("cancel")
    result = plan.result()
    assert result["outcome"] == "cancelled" and result["outcomes"] == {"cancelled": 2}
    assert directory_of(cluster, 1, disk) == source
    wait_until_done(cluster, node, [2])


def test_rollback_takes_back_what_is_done_as_well(cluster: Cluster, orchestrator: Orchestrator) -> None:
    done, slow = filled(cluster, 1, megabytes=0), filled(cluster, 1)
    source = directory_of(cluster, 1, done)
    plan = orchestrator.submit(
        (done, 0, [1], [other(cluster, done, 1)]), (slow, 0, [2], None), options={"throttle_between_brokers": 200_000}
    )
    cluster.eventually(lambda: plan.progress()["outcomes"].get("moved") == 1, "the small one is done")
    cluster.eventually(lambda: under_way(cluster, slow) is not None, "the large one is under way")
    plan.update("cancel", {"rollback": True})
    assert plan.result()["outcome"] == "rolled_back"
    assert directory_of(cluster, 1, done) == source and seen(cluster, slow).replicas == (1,)


def test_somebody_elses_reassignment_is_left_alone(cluster: Cluster, orchestrator: Orchestrator) -> None:
    topic = filled(cluster, 1)
    plan = orchestrator.submit((topic, 0, [2], None), options=SLOW)
    cluster.eventually(lambda: under_way(cluster, topic) is not None, "it is under way")
    ask(cluster, topic, [3])
    result = plan.result()
    assert result["outcome"] == "failed" and result["outcomes"] == {"superseded": 1}
    # Under way or done, by when the plan looks.
    assert re.search("another client (requested|reassigned) it", result["failures"][0]["reason"])
    wait_until_done(cluster, topic, [3])


def test_throttle_that_another_tool_removes_is_set_again(cluster: Cluster, orchestrator: Orchestrator) -> None:
    # The leader's rate stays and holds the copy for longer than the keeper takes until it looks again.
    topic = filled(cluster, 1, megabytes=30)
    plan = orchestrator.submit((topic, 0, [2], None), options=SLOW)
    cluster.eventually(lambda: under_way(cluster, topic) is not None, "it is under way")
    cluster.set_broker_config(2, **{key.replace(".", "_"): None for key in RATES})
    cluster.eventually(lambda: throttles(cluster)["nodes"]["2"].get(RATES[0]) == "200000", "it is set again")
    plan.update("set_options", {"throttle_between_brokers": 50_000_000})
    assert plan.result()["outcome"] == "done"


def test_deleted_topic_is_reported_and_stops_nothing(cluster: Cluster, orchestrator: Orchestrator) -> None:
    gone, stays = filled(cluster, 1), filled(cluster, 3, megabytes=0)
    plan = orchestrator.submit((gone, 0, [2], None), (stays, 0, [2], None), options=SLOW)
    cluster.eventually(lambda: under_way(cluster, gone) is not None, "it is under way")
    cluster.delete_topic(gone)
    result = plan.result()
    assert result["outcomes"] == {"moved": 1, "topic_deleted": 1}
    assert seen(cluster, stays).replicas == (2,)
    keeper = Plan(orchestrator, names.throttle_keeper_id(orchestrator.name))
    cluster.eventually(lambda: not keeper.open, "the keeper restores nothing on the deleted topic")


def test_killed_worker_loses_nothing(cluster: Cluster, orchestrator: Orchestrator) -> None:
    disk, node = filled(cluster, 1), filled(cluster, 2)
    target = other(cluster, disk, 1)
    plan = orchestrator.submit((disk, 0, [1], [target]), (node, 0, [3], None), options=SLOW)
    plan.wait_running(f"{disk}-0@1", f"{node}-0")
    orchestrator.kill()
    orchestrator.start()
    plan.update("set_options", dict.fromkeys(SLOW, 50_000_000))
    assert plan.result()["outcomes"] == {"moved": 2}
    assert directory_of(cluster, 1, disk) == target and seen(cluster, node).replicas == (3,)


def test_plan_waits_for_two_persons(cluster: Cluster, orchestrator: Orchestrator) -> None:
    topic = filled(cluster, 1, megabytes=0)
    plan = orchestrator.submit((topic, 0, [2], None), options={"approval": "two_persons"})
    progress = plan.wait_phase("awaiting_approval")
    assert progress["check"]["moves"] == 1 and seen(cluster, topic).replicas == (1,)
    for _ in range(2):
        assert plan.update("approve", {"by": "ada"})["approvals"] == ["ada"]
    assert plan.progress()["phase"] == "awaiting_approval"
    plan.update("approve", {"by": "grace"})
    assert plan.result()["outcome"] == "done"


def test_skipped_move_is_not_begun_and_a_failed_one_is_retried(cluster: Cluster, orchestrator: Orchestrator) -> None:
    topic = filled(cluster, 1, partitions=2, megabytes=0)
    rows = [(topic, number, [2], None) for number in range(2)]
    plan = orchestrator.submit(*rows, options={"approval": "required"})
    plan.wait_phase("awaiting_approval")
    plan.update("skip", {"moves": [f"{topic}-1"]})
    plan.update("approve", {"by": "ada"})
    result = plan.result()
    assert result["outcomes"] == {"moved": 1} and result["skipped"] == [f"{topic}-1"]
    assert seen(cluster, topic, 1).replicas == (1,)


def test_directory_is_emptied_and_certified(cluster: Cluster, orchestrator: Orchestrator) -> None:
    topics = [filled(cluster, 3, megabytes=0) for _ in range(4)]
    path = directory_of(cluster, 3, topics[0])
    assert path is not None
    result = orchestrator.evacuate(3, path)
    assert result["empty"] and result["certificate"]["ok"] and result["moved"] >= 1
    assert all(directory_of(cluster, 3, topic) != path for topic in topics)
    with KafkaAdmin(cluster.bootstrap) as admin:
        assert admin.overrides("broker", ["3"], (CORDON,)) == {"3": {}}


def test_directory_whose_replicas_have_no_other_place_is_refused_at_once(
    cluster: Cluster, orchestrator: Orchestrator
) -> None:
    with pytest.raises(WorkflowFailureError) as raised:
        orchestrator.evacuate(3, "/not/one/of/them")
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError) and cause.type == "PlanRefused"
    assert "is not one of the log.dirs of broker 3" in cause.message
