"""kafka-reassign-partitions between nodes: execute, verify, list, --additional, cancel, log directories, throttles."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.conformance.clusters import BROKER_RESOURCE, NODES, TOPIC_RESOURCE, Cluster
from tests.conformance.conftest import Tools
from tests.conformance.log_dirs import calls
from tests.conformance.log_dirs.calls import moves_held, on_disk, wait_until_in, where
from tests.conformance.plans import MOVE_RATE, NOTHING_MOVES, TOOL, WARNING, Plans, config
from tests.conformance.replication.between import (
    FOLLOWER_RATE,
    LEADER_RATE,
    NONE,
    ask,
    filled,
    held,
    listed,
    seen,
    under_way,
    wait_until_done,
    wait_until_off,
)

HELD = ("--throttle", "1")
RUNNING = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to override this and create "
    "a new partition assignment in addition to the existing one. The --additional flag can also be used to change the "
    "throttle by resubmitting the current reassignment."
)


def rates(cluster: Cluster) -> list[dict[str, str]]:
    """What is set dynamically for each broker."""
    return [config(cluster, BROKER_RESOURCE, str(node)) for node in NODES]


def both(rate: int) -> dict[str, str]:
    return {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)}


def in_words(topic: str, partition: int, *what: str) -> str:
    return f"{topic}-{partition}: replicas: {what[0]}." + "".join(f" {rest}." for rest in what[1:])


@pytest.mark.conformance(163, 164, 165, 172, 175, 176, 177, 180, 183, 184)
@pytest.mark.feature("455-14", "455-15", "455-16", "455-27")
def test_from_verify_to_verify(cluster: Cluster, plans: Plans, tools: Tools) -> None:
    topic = filled(cluster, [1, 2], [2, 3])
    file = plans.of((topic, 1, [2, 3], None), (topic, 0, [3, 2], None))
    status = "Status of partition reassignment:"
    done = [f"Reassignment of partition {topic}-{partition} is completed." for partition in (0, 1)]
    code, lines = plans.run("verify", file, "--preserve-throttles")
    otherwise = f"There is no active reassignment of partition {topic}-0, but replica set is 1,2 rather than 3,2."
    assert (code, lines[:3]) == (0, [status, otherwise, done[1]])

    code, lines = plans.run("execute", file, *HELD)
    assert code == 0
    saved = json.loads(lines[2])["partitions"]
    assert [(row["partition"], row["replicas"]) for row in saved] == [(0, [1, 2]), (1, [2, 3])]
    assert lines[5:] == [
        WARNING,
        "The inter-broker throttle limit was set to 1 B/s",
        f"Successfully started partition reassignments for {topic}-0,{topic}-1",
    ]
    cluster.eventually(lambda: rates(cluster) == [both(1)] * 3, "also on the node that is asked")
    lists = {LEADER_RATE: "0:1,0:2,1:2,1:3", FOLLOWER_RATE: "0:3"}
    lists = {key.replace(".rate", ".replicas"): value for key, value in lists.items()}
    cluster.eventually(lambda: config(cluster, TOPIC_RESOURCE, topic) == lists, "on the node that is asked as well")
    out = tools.out(TOOL, "--list").splitlines()
    assert out == ["Current partition reassignments:", in_words(topic, 0, "3,2,1", "adding: 3", "removing: 1")]
    code, lines = plans.run("verify", file)
    going = f"Reassignment of partition {topic}-0 is still in progress."
    assert (code, [line for line in lines if line]) == (0, [status, going, done[1]])
    assert rates(cluster) == [both(1)] * 3, "not before all is done"

    code, lines = plans.run("execute", file, "--throttle", "77")
    assert (code, lines[-1]) == (1, RUNNING) and rates(cluster) == [both(1)] * 3
    code, lines = plans.run("execute", file, "--additional", "--throttle", "90000000")
    assert code == 0 and "The inter-broker throttle limit was set to 90000000 B/s" in lines
    assert lines[-1] == f"Successfully started partition reassignments for {topic}-0,{topic}-1"
    wait_until_done(cluster, topic, [3, 2])
    code, lines = plans.run("verify", file, "--preserve-throttles")
    assert (code, [line for line in lines if line]) == (0, [status, *done])
    cluster.eventually(lambda: rates(cluster) == [both(90_000_000)] * 3, "also on the node that is asked")
    code, lines = plans.run("verify", file)
    assert (code, [line for line in lines if line]) == (
        0,
        [
            status,
            *done,
            "Clearing broker-level throttles on brokers 1,2,3",
            f"Clearing topic-level throttles on topic {topic}",
        ],
    )
    cluster.eventually(lambda: rates(cluster) == [{}] * 3, "also on the node that is asked")
    cluster.eventually(lambda: config(cluster, TOPIC_RESOURCE, topic) == {}, "also on the node that is asked")
    assert on_disk(cluster, 1, topic) == []
    assert cluster.end_offset(topic, 0) == cluster.end_offset(topic, 1) == 400


@pytest.mark.feature("455-17")
def test_cancel_by_a_file_cancels_what_came_in_between(cluster: Cluster, plans: Plans) -> None:
    """The tool names partitions, not targets: whoever has begun another reassignment since loses it."""
    topic = filled(cluster, [1])
    file = plans.of((topic, 0, [3], None))
    with held(cluster, topic, to=[2, 3]):
        assert plans.run("execute", file)[0] == 0
        assert ask(cluster, topic, [2]) == (NONE, None)
        code, lines = plans.run("cancel", file, "--preserve-throttles")
        assert code == 0 and lines[0] == f"Successfully cancelled partition reassignment for: {topic}-0"
        assert under_way(cluster, topic) is None
        wait_until_off(cluster, topic, [2])
    wait_until_done(cluster, topic, [1] if cluster.differs("the-original-set-is-kept") else [1, 3])


def test_what_the_cluster_refuses_is_told_by_partition(cluster: Cluster, plans: Plans) -> None:
    topic = filled(cluster, [1], [2], records=10)
    file = plans.of((topic, 1, [2, 3], None), (topic, 0, [3], None))
    code, lines = plans.run("execute", file, "--disallow-replication-factor-change")
    refused = f"{topic}-1: The replication factor is changed from 1 to 2"
    assert (code, lines[-2:]) == (1, ["Error reassigning partition(s):", refused])
    # Each partition by itself: the other one goes on, and nothing is taken back for the one that was refused.
    wait_until_done(cluster, topic, [3], 0)
    assert under_way(cluster, topic, 1) is None and seen(cluster, topic, 1).replicas == (2,)
    # Allowed, as it is without the option.
    assert plans.run("execute", file)[0] == 0
    wait_until_done(cluster, topic, [2, 3], 1)


@pytest.mark.conformance(165, 186)
@pytest.mark.feature("455-17")
def test_cancel_and_cancel_again(cluster: Cluster, plans: Plans, tools: Tools) -> None:
    topic = filled(cluster, [1], [2])
    file = plans.of((topic, 0, [3], None), (topic, 1, [2, 3], None))
    assert plans.run("execute", file, *HELD)[0] == 0
    assert tools.out(TOOL, "--list").splitlines()[1:] == [
        in_words(topic, 0, "3,1", "adding: 3", "removing: 1"),
        in_words(topic, 1, "2,3", "adding: 3"),
    ]
    code, lines = plans.run("cancel", file, "--preserve-throttles")
    cancelled = f"Successfully cancelled partition reassignments for: {topic}-0,{topic}-1"
    assert code == 0 and lines[0] == cancelled
    assert under_way(cluster, topic, 0) is None and under_way(cluster, topic, 1) is None
    assert LEADER_RATE in config(cluster, BROKER_RESOURCE, "1")
    code, lines = plans.run("cancel", file)
    assert code == 0 and lines[0] == "None of the specified partition reassignments are active."
    assert lines[1].startswith(NOTHING_MOVES)
    words = "\n".join(lines)
    assert "Clearing broker-level throttles on brokers 1,2,3" in words
    assert f"Clearing topic-level throttles on topic {topic}" in words
    cluster.eventually(lambda: rates(cluster) == [{}] * 3, "also on the node that is asked")
    cluster.eventually(lambda: config(cluster, TOPIC_RESOURCE, topic) == {}, "also on the node that is asked")
    for partition, replicas in enumerate(([1], [2])):
        wait_until_done(cluster, topic, replicas, partition)
    wait_until_off(cluster, topic, [3])


@pytest.mark.conformance(166, 178)
@pytest.mark.feature("113-06", "113-28", "113-42", "455-16")
def test_another_node_and_a_directory_there(cluster: Cluster, plans: Plans) -> None:
    topic = filled(cluster, [1])
    there, here = cluster.log_dirs[2][1], str(where(cluster, 1, topic))
    (other,) = (path for path in cluster.log_dirs[1] if path != here)
    # The new replica is made where it is asked to be; the one that stays moves within its node.
    file = plans.of((topic, 0, [2, 1], [there, other]))
    options = ("--throttle", "90000000", "--replica-alter-log-dirs-throttle", "1")
    # The tool asks for the directory after the reassignment: the replica may be there by then. So it is asked before.
    assert calls.ask(cluster, 2, topic, there) == calls.REPLICA_NOT_AVAILABLE
    with moves_held(cluster, 1):
        code, lines = plans.run("execute", file, *options)
        assert code == 0, lines
        begun = "Successfully started moving log directory to {} for replica {}-0 with broker {} "
        assert sorted(lines[9:]) == sorted([begun.format(there, topic, 2), begun.format(other, topic, 1)])
        wait_until_done(cluster, topic, [2, 1])
        assert [config(cluster, BROKER_RESOURCE, node) for node in ("1", "2", "3")] == [
            {**both(90_000_000), MOVE_RATE: "1"},
            {**both(90_000_000), MOVE_RATE: "1"},
            {},
        ], "the one is for copies between nodes, the other for copies between disks"
        assert where(cluster, 2, topic) == there, "made there at once, without a move"
        code, lines = plans.run("verify", file, "--preserve-throttles")
        assert (code, lines[1:]) == (
            0,
            [
                f"Reassignment of partition {topic}-0 is completed.",
                f"Reassignment of replica {topic}-0-1 is still in progress.",
                f"Reassignment of replica {topic}-0-2 completed successfully.",
            ],
        )
    wait_until_in(cluster, 1, topic, other)
    code, lines = plans.run("verify", file)
    assert code == 0 and lines[2] == f"Reassignment of replica {topic}-0-1 completed successfully."
    assert lines[-2].startswith("Clearing broker-level")
    cluster.eventually(lambda: rates(cluster) == [{}] * 3, "also on the node that is asked")


@pytest.mark.conformance(181, 185)
def test_clients_go_on_and_the_high_watermark_goes_along(cluster: Cluster, plans: Plans) -> None:
    topic = filled(cluster, [1])
    file = plans.of((topic, 0, [2, 3], None))
    assert plans.run("execute", file, *HELD)[0] == 0
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": topic, "auto.offset.reset": "error"}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        read: list[int] = []

        def all_of(count: int) -> bool:
            read.extend(m.offset() for m in consumer.consume(1000, 0.2) if m.error() is None)
            return len(read) >= count

        assert cluster.produce(topic, 0, 50) == 400
        cluster.eventually(lambda: all_of(450), "a consumer reads while it is reassigned")
        assert under_way(cluster, topic) == ([2, 3, 1], [2, 3], [1])
        assert plans.run("execute", file, "--additional", "--throttle", "90000000")[0] == 0
        after = wait_until_done(cluster, topic, [2, 3])
        assert after.leader in (2, 3) and cluster.end_offset(topic) == 450, "the new leader knows what is committed"
        assert cluster.produce(topic, 0, 50) == 450
        cluster.eventually(lambda: all_of(500), "the consumer has followed the leader", 30)
        assert read == list(range(500))
    finally:
        consumer.close()
    assert plans.run("verify", file)[0] == 0


@pytest.mark.conformance(170)
def test_generate_for_several_replicas(cluster: Cluster, plans: Plans, tools: Tools) -> None:
    topic = cluster.new_topic(assignment={0: [1, 2], 1: [2, 3]})
    file = plans.file({"version": 1, "topics": [{"topic": topic}]})
    generate = (TOOL, "--generate", "--topics-to-move-json-file", file, "--broker-list")
    code, out, _ = tools.run(*generate, "3")
    assert (
        code == 1
        and "The target replication factor of 2 cannot be reached because only 1 broker(s) are registered" in out
    )
    for some in ("1,3", "1,2,3"):
        proposed = json.loads(tools.out(*generate, some).splitlines()[4])["partitions"]
        assert [(row["partition"], len(set(row["replicas"]))) for row in proposed] == [(0, 2), (1, 2)]
        assert {node for row in proposed for node in row["replicas"]} <= {int(node) for node in some.split(",")}
    assert listed(cluster) == {} and seen(cluster, topic).replicas == (1, 2)


@pytest.mark.conformance(186, 191)
def test_controllers_list_and_cancel(cluster: Cluster, plans: Plans, tools: Tools) -> None:
    topic = filled(cluster, [1])
    file = plans.of((topic, 0, [2], None))
    at = ("--bootstrap-controller", cluster.controllers)
    with held(cluster, topic, to=[2]):
        assert plans.run("execute", file)[0] == 0
        listing = tools.run(TOOL, "--list", *at)
        cancel = ("--cancel", "--reassignment-json-file", file, "--preserve-throttles")
        cancelled = tools.run(TOOL, *cancel, *at)
        if cluster.differs("no-controller-listeners"):
            refused = "sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
            assert all(ran.code == 1 and refused in ran.out for ran in (listing, cancelled))
            assert tools.run(TOOL, *cancel).code == 0
        else:
            assert in_words(topic, 0, "2,1", "adding: 2", "removing: 1") in listing.out.splitlines()
            assert (
                cancelled.code == 0 and f"Successfully cancelled partition reassignment for: {topic}-0" in cancelled.out
            )
        assert under_way(cluster, topic) is None
    wait_until_done(cluster, topic, [1])
