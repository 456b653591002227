"""AlterPartitionReassignments and ListPartitionReassignments between nodes, held where there is something to see."""

from __future__ import annotations

import pytest

from tests.conformance.clusters import NODES, Cluster
from tests.conformance.log_dirs.calls import Replica, describe, moves_held, others, wait_until_in, where
from tests.conformance.log_dirs.calls import ask as ask_directory
from tests.conformance.replication.between import (
    NO_REASSIGNMENT_IN_PROGRESS,
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
    ask,
    everywhere,
    filled,
    held,
    listed,
    reassign,
    seen,
    under_way,
    wait_until_done,
    wait_until_off,
)


@pytest.mark.conformance(144, 145, 146, 147, 151, 152)
@pytest.mark.feature("455-01", "455-05", "455-09", "455-10", "455-12", "455-21", "455-23", "455-26")
def test_several_in_one_request_each_by_itself(cluster: Cluster) -> None:
    topic, other = filled(cluster, [1, 2], [2, 3], [2, 1]), cluster.new_topic(assignment={0: [1]})
    before = seen(cluster, topic)
    with held(cluster, topic, to=[3]):
        unknown = (UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:9.")
        missing = (UNKNOWN_TOPIC_OR_PARTITION, "Unable to find a topic named no-such-topic.")
        wanted = {
            (topic, 0): [3, 2],
            (topic, 1): [3, 2],
            (topic, 2): [3, 1],
            (topic, 9): [1],
            ("no-such-topic", 0): [1],
        }
        assert reassign(cluster, wanted) == {
            (topic, 0): (NONE, None),
            (topic, 1): (NONE, None),
            (topic, 2): (NONE, None),
            (topic, 9): unknown,
            ("no-such-topic", 0): missing,
        }
        # Only a new order: done with the answer, and no leader moves by it.
        reordered = seen(cluster, topic, 1)
        assert (reordered.replicas, reordered.leader) == ((3, 2), 2)
        first, third = ([3, 2, 1], [3], [1]), ([3, 1, 2], [3], [2])
        assert {key: row for key, row in listed(cluster).items() if key[0] in (topic, other)} == {
            (topic, 0): first,
            (topic, 2): third,
        }
        cluster.eventually(
            lambda: [listed(cluster, {topic: [0, 1, 7]}, node) for node in NODES] == [{(topic, 0): first}] * 3
        )
        assert listed(cluster, {other: [0], "no-such-topic": [0]}) == {}
        assert listed(cluster, {}) == {}
        # The full set everywhere, nobody taken away before the last has come, the new one not yet in sync.
        cluster.eventually(lambda: {row.replicas for row in everywhere(cluster, topic)} == {(3, 2, 1)})
        assert [(row.leader, row.isr) for row in everywhere(cluster, topic)] == [(1, (1, 2))] * 3
        assert seen(cluster, topic).epoch == before.epoch
    after = wait_until_done(cluster, topic, [3, 2])
    # One state change: the removed leader's place is taken by one in sync, under a new epoch.
    assert after.leader in (2, 3) and after.epoch > before.epoch
    assert wait_until_done(cluster, topic, [3, 1], 2).leader in (3, 1)
    assert cluster.end_offset(topic, 0) == cluster.end_offset(topic, 2) == 400


@pytest.mark.feature("113-33")
def test_how_far_a_new_replica_is_behind(cluster: Cluster) -> None:
    topic = filled(cluster, [1], records=2_000)

    def rows() -> list[Replica]:
        return [row.replicas[topic, 0, False] for row in describe(cluster, 2, {topic: [0]}).values() if row.replicas]

    with held(cluster, topic, to=[2]):
        assert ask(cluster, topic, [1, 2]) == (NONE, None)
        cluster.eventually(lambda: [row for row in rows() if row.size > 0], "the leader has responded")
        (new,) = rows()
        assert new.size < 2_000_000
        assert (0 < new.lag < 2_000) if cluster.differs("a-followers-lag") else new.lag == 0
        (led,) = (row.replicas[topic, 0, False] for row in describe(cluster, 1, {topic: [0]}).values() if row.replicas)
        assert led.size > 2_000_000 and led.lag == 0
    wait_until_done(cluster, topic, [1, 2])
    cluster.eventually(lambda: [(row.size, row.lag) for row in rows()] == [(led.size, 0)])


@pytest.mark.conformance(149, 153, 157)
@pytest.mark.feature("455-02", "455-04", "455-13", "455-25")
def test_cancel(cluster: Cluster) -> None:
    topic = filled(cluster, [3, 2])
    before = seen(cluster, topic)
    with held(cluster, topic, to=[1]):
        assert ask(cluster, topic, [1, 2]) == (NONE, None)
        assert under_way(cluster, topic) == ([1, 2, 3], [1], [3])
        cancels = reassign(cluster, {(topic, 0): None, (topic, 9): None})
        unknown = (UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:9.")
        assert cancels == {(topic, 0): (NONE, None), (topic, 9): unknown}
        assert under_way(cluster, topic) is None
        order = (3, 2) if cluster.differs("cancel-keeps-the-order") else (2, 3)
        cluster.eventually(lambda: {row.replicas for row in everywhere(cluster, topic)} == {order})
        after = seen(cluster, topic)
        assert (after.isr, after.leader) == ((2, 3), 3) and after.epoch > before.epoch
        assert ask(cluster, topic, None) == (NO_REASSIGNMENT_IN_PROGRESS, None)
        wait_until_off(cluster, topic, [1])
    assert cluster.produce(topic, 0, 1) == 400


@pytest.mark.conformance(158)
@pytest.mark.feature("455-24")
def test_second_one_while_one_runs(cluster: Cluster) -> None:
    topic = filled(cluster, [1])
    with held(cluster, topic, to=[2, 3]):
        assert ask(cluster, topic, [2]) == (NONE, None)
        assert under_way(cluster, topic) == ([2, 1], [2], [1])
        assert ask(cluster, topic, [3]) == (NONE, None)
        keeps = cluster.differs("the-original-set-is-kept")
        if keeps:
            assert under_way(cluster, topic) == ([3, 1], [3], [1])
        else:
            assert under_way(cluster, topic) == ([3, 1, 2], [3], [1, 2])
        assert ask(cluster, topic, None) == (NONE, None)
        restored = (1,) if keeps else (1, 2)
        cluster.eventually(lambda: {row.replicas for row in everywhere(cluster, topic)} == {restored})
        assert [(row.leader, row.isr) for row in everywhere(cluster, topic)] == [(1, (1,))] * 3
        wait_until_off(cluster, topic, [3])
    wait_until_done(cluster, topic, restored)


@pytest.mark.conformance(158)
@pytest.mark.feature("455-24")
def test_leader_that_a_second_one_takes_away_stays_to_the_end(cluster: Cluster) -> None:
    topic = filled(cluster, [1, 2])
    with held(cluster, topic, to=[3], partitions="0:3"):
        # 2 is in sync already; the old leader goes once 3 is as well.
        assert ask(cluster, topic, [3, 2]) == (NONE, None)
        assert ask(cluster, topic, [3]) == (NONE, None)
        replicas, adding, removing = under_way(cluster, topic) or ([], [], [])
        assert (sorted(replicas), adding, sorted(removing)) == ([1, 2, 3], [3], [1, 2]) and replicas[0] == 3
        assert (seen(cluster, topic).leader, seen(cluster, topic).isr) == (1, (1, 2))
        assert cluster.produce(topic, 0, 1) == 400
    assert wait_until_done(cluster, topic, [3]).leader == 3
    assert cluster.end_offset(topic) == 401


@pytest.mark.conformance(187)
@pytest.mark.feature("455-13")
def test_cancel_takes_away_what_is_in_sync_already(cluster: Cluster) -> None:
    topic = filled(cluster, [1])
    with held(cluster, topic, to=[3], partitions="0:3"):
        assert ask(cluster, topic, [2, 3]) == (NONE, None)
        cluster.eventually(lambda: seen(cluster, topic).isr == (1, 2), "one of the two is in sync", 30)
        assert under_way(cluster, topic) == ([2, 3, 1], [2, 3], [1])
        assert ask(cluster, topic, None) == (NONE, None)
        wait_until_done(cluster, topic, [1])
    assert seen(cluster, topic).leader == 1 and cluster.end_offset(topic) == 400


@pytest.mark.conformance(66)
@pytest.mark.feature("455-28")
def test_replica_that_leaves_takes_its_moving_copy_along(cluster: Cluster) -> None:
    topic = filled(cluster, [1])
    with moves_held(cluster, 1):
        assert ask_directory(cluster, 1, topic, others(cluster, 1, topic)[0]) == NONE
        assert where(cluster, 1, topic, future=True) is not None
        assert ask(cluster, topic, [2]) == (NONE, None)
        wait_until_done(cluster, topic, [2])
    assert cluster.end_offset(topic) == 400


@pytest.mark.feature("113-58")
def test_follower_moves_between_its_disks_while_it_fetches(cluster: Cluster) -> None:
    topic = filled(cluster, [1, 2])
    target = others(cluster, 2, topic)[0]
    with moves_held(cluster, 2, 100_000):
        assert ask_directory(cluster, 2, topic, target) == NONE
        for number in range(20):
            assert cluster.produce(topic, 0, 5) == 400 + 5 * number
    wait_until_in(cluster, 2, topic, target)
    cluster.eventually(lambda: seen(cluster, topic).isr == (1, 2), "it is in sync")
    assert ask(cluster, topic, [2]) == (NONE, None)
    wait_until_done(cluster, topic, [2])
    assert cluster.end_offset(topic) == 500


def test_topic_is_deleted_in_the_middle_of_it(cluster: Cluster) -> None:
    topic = filled(cluster, [1], [2])
    with held(cluster, topic, to=[3]):
        assert set(reassign(cluster, {(topic, 0): [3], (topic, 1): [3]}).values()) == {(NONE, None)}
        cluster.delete_topic(topic)
        assert under_way(cluster, topic) is None
        for partition in (0, 1):
            wait_until_off(cluster, topic, NODES, partition)
        missing = (UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}.")
        assert ask(cluster, topic, None) == missing
