"""AlterReplicaLogDirs: order of checks, error codes, repetition, cancel, a new target, and what a move keeps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from storage_node.log import build_batch
from tests.conformance.clusters import Cluster
from tests.conformance.log_dirs.calls import (
    INVALID_TOPIC,
    LOG_DIR_NOT_FOUND,
    NONE,
    OFFSET_OUT_OF_RANGE,
    REPLICA_NOT_AVAILABLE,
    REQUEST_TIMED_OUT,
    UNKNOWN_TOPIC_OR_PARTITION,
    alter,
    ask,
    describe,
    moves_held,
    on_disk,
    others,
    wait_until_in,
    where,
)
from tests.support.wire import offered

NODE = 1
#: More than what goes in one chunk.
MUCH = {"n": 400, "size": 1000, "per_batch": 20}


@contextlib.contextmanager
def moving(cluster: Cluster, node: int = NODE) -> Iterator[tuple[str, str, str]]:
    """A topic whose replica moves as slowly as can be: topic, source, target."""
    topic = cluster.new_topic(assignment={0: [node]})
    cluster.produce(topic, 0, **MUCH)
    source = where(cluster, node, topic)
    assert source is not None
    target = others(cluster, node, topic)[0]
    with moves_held(cluster, node):
        assert ask(cluster, node, topic, target) == NONE
        yield topic, source, target


@pytest.mark.conformance(1, 2)
@pytest.mark.feature("113-06", "113-07")
@pytest.mark.parametrize("index", [0, 1])
def test_replica_that_does_not_exist_is_refused_and_placed_there_later(cluster: Cluster, index: int) -> None:
    topic, target = cluster.new_topic() + "-later", cluster.log_dirs[NODE][index]
    wanted = {(topic, partition): target for partition in range(3)}
    assert set(alter(cluster, NODE, wanted).values()) == {UNKNOWN_TOPIC_OR_PARTITION}
    assert on_disk(cluster, NODE, topic) == []
    cluster.new_topic(name=topic, assignment={partition: [NODE] for partition in range(3)})
    assert {where(cluster, NODE, topic, partition) for partition in range(3)} == {target}


@pytest.mark.conformance(3, 39, 56)
@pytest.mark.feature("113-03")
@pytest.mark.parametrize("version", offered(34))
def test_move_is_accepted_at_once_and_keeps_offsets_and_records(cluster: Cluster, version: int) -> None:
    topic = cluster.new_topic(assignment={0: [NODE], 1: [NODE]})
    cluster.produce(topic, 0, 30)
    wanted = {(topic, partition): others(cluster, NODE, topic, partition)[0] for partition in (0, 1)}
    assert set(alter(cluster, NODE, wanted, version).items()) == {(key, NONE) for key in wanted}
    for (_, partition), target in wanted.items():
        wait_until_in(cluster, NODE, topic, target, partition)
    assert cluster.end_offset(topic, 0) == 30 and cluster.end_offset(topic, 1) == 0
    assert cluster.produce(topic, 0, 1) == 30
    (row,) = cluster.wire(NODE).fetch(topic, 0, 0)
    assert row.error == NONE and row.high_watermark == 31 and row.records.count(b"v" * 92) == 31


@pytest.mark.conformance(4)
@pytest.mark.feature("113-08")
def test_directory_in_which_it_is_succeeds_and_moves_nothing(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [NODE]})
    here = where(cluster, NODE, topic)
    assert here is not None
    assert ask(cluster, NODE, topic, here) == NONE
    assert where(cluster, NODE, topic) == here and where(cluster, NODE, topic, future=True) is None


@pytest.mark.conformance(5, 20)
@pytest.mark.feature("113-08", "113-26")
def test_path_must_be_one_of_log_dirs_to_the_letter(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [NODE]})
    target = others(cluster, NODE, topic)[0]
    strange = ["/nowhere", "relative", "", target + "/", target + "/.", target.replace("/", "//", 1), target[:-1]]
    for path in strange:
        for name in (topic, "no-such-topic"):
            assert ask(cluster, NODE, name, path) == LOG_DIR_NOT_FOUND, path
    assert where(cluster, NODE, topic, future=True) is None
    later = topic + "-later"
    assert ask(cluster, NODE, later, target + "/") == LOG_DIR_NOT_FOUND  # and is no wish


@pytest.mark.conformance(5, 6, 12, 14)
@pytest.mark.feature("113-03", "113-06", "113-08")
def test_each_partition_has_its_own_answer_and_good_ones_move(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [NODE], 1: [2], 2: [NODE]})
    target = others(cluster, NODE, topic, 0)[0]
    wanted = {
        (topic, 0): target,
        (topic, 1): target,
        (topic, 2): "/nowhere",
        (topic, 9): target,
        ("no-such-topic", 0): target,
    }
    assert alter(cluster, NODE, wanted) == {
        (topic, 0): NONE,
        (topic, 1): REPLICA_NOT_AVAILABLE,
        (topic, 2): LOG_DIR_NOT_FOUND,
        (topic, 9): UNKNOWN_TOPIC_OR_PARTITION,
        ("no-such-topic", 0): UNKNOWN_TOPIC_OR_PARTITION,
    }
    wait_until_in(cluster, NODE, topic, target, 0)
    assert alter(cluster, NODE, {}) == {}


@pytest.mark.conformance(14)
def test_partition_under_two_paths_goes_to_the_last(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [NODE]})
    here = where(cluster, NODE, topic)
    assert here is not None
    (there, *_) = others(cluster, NODE, topic)

    def named(path: str) -> dict[str, object]:
        return {"path": path, "topics": [{"name": topic, "partitions": [0]}]}

    for paths, end in (([there, here], here), (["/nowhere", there], there)):
        answer = cluster.call("AlterReplicaLogDirs", 2, node=NODE, dirs=[named(path) for path in paths])
        assert [(t.topic_name, [int(p.error_code) for p in t.partitions]) for t in answer.results] == [(topic, [0])]
        wait_until_in(cluster, NODE, topic, end)


@pytest.mark.conformance(17)
def test_name_too_long_for_a_moving_copy_is_refused_before_anything_else(cluster: Cluster) -> None:
    longest, long = "n" * 249, "m" * 240
    for name in (longest, long):
        cluster.new_topic(name=name, assignment={0: [NODE]})
    assert ask(cluster, NODE, longest, others(cluster, NODE, longest)[0]) == INVALID_TOPIC
    assert ask(cluster, NODE, longest, "/nowhere") == INVALID_TOPIC
    assert ask(cluster, NODE, longest + "n", "/nowhere") == INVALID_TOPIC
    target = others(cluster, NODE, long)[0]
    if cluster.differs("long-names"):
        assert ask(cluster, NODE, long, target) == NONE
        wait_until_in(cluster, NODE, long, target)
    else:
        assert ask(cluster, NODE, long, target) == INVALID_TOPIC
    for name in (longest, long):
        cluster.delete_topic(name)


@pytest.mark.conformance(25, 26, 57)
@pytest.mark.feature("113-04", "113-08", "113-33", "113-34")
def test_both_copies_show_and_asking_again_changes_nothing(cluster: Cluster) -> None:
    with moving(cluster) as (topic, source, target):
        rows = describe(cluster, NODE, {topic: [0]})
        current, copy = rows[source].replicas[topic, 0, False], rows[target].replicas[topic, 0, True]
        assert current.lag == 0 and 0 < copy.lag <= MUCH["n"]
        assert copy.size < current.size
        assert ask(cluster, NODE, topic, target) == NONE
        assert where(cluster, NODE, topic, future=True) == target and where(cluster, NODE, topic) == source
        assert cluster.produce(topic, 0, 5) == MUCH["n"]
    wait_until_in(cluster, NODE, topic, target)
    assert cluster.end_offset(topic) == MUCH["n"] + 5


@pytest.mark.conformance(19)
@pytest.mark.feature("113-05", "113-08")
def test_current_directory_cancels_a_move(cluster: Cluster) -> None:
    with moving(cluster) as (topic, source, target):
        assert where(cluster, NODE, topic, future=True) == target
        assert ask(cluster, NODE, topic, source) == NONE
        assert where(cluster, NODE, topic, future=True) is None and where(cluster, NODE, topic) == source
        assert ask(cluster, NODE, topic, source) == NONE
    cluster.eventually(lambda: on_disk(cluster, NODE, topic) == [f"{topic}-0"], "the copy is off the disk")
    assert cluster.produce(topic, 0, 1) == MUCH["n"]
    assert ask(cluster, NODE, topic, target) == NONE
    wait_until_in(cluster, NODE, topic, target)


@pytest.mark.conformance(20)
@pytest.mark.feature("113-05", "113-26")
def test_any_as_the_directory(cluster: Cluster) -> None:
    with moving(cluster) as (topic, source, target):
        if cluster.differs("any-cancels"):
            assert ask(cluster, NODE, topic, "any") == NONE
            assert where(cluster, NODE, topic, future=True) is None
            assert ask(cluster, NODE, topic, "any") == NONE
            unknown = {("no-such-topic", 0): "any", (topic, 9): "any"}
            assert set(alter(cluster, NODE, unknown).values()) == {UNKNOWN_TOPIC_OR_PARTITION}
        else:
            assert ask(cluster, NODE, topic, "any") == LOG_DIR_NOT_FOUND
            assert where(cluster, NODE, topic, future=True) == target
            assert ask(cluster, NODE, topic, source) == NONE
        assert where(cluster, NODE, topic) == source


@pytest.mark.conformance(18)
@pytest.mark.feature("113-08")
def test_new_target_while_a_move_runs_takes_the_old_copy_away(cluster: Cluster) -> None:
    with moving(cluster, node=3) as (topic, source, first):
        (second,) = (path for path in others(cluster, 3, topic) if path != first)
        assert ask(cluster, 3, topic, second) == NONE
        assert where(cluster, 3, topic, future=True) == second and where(cluster, 3, topic) == source
    wait_until_in(cluster, 3, topic, second)
    cluster.eventually(lambda: on_disk(cluster, 3, topic) == [f"{topic}-0"], "nothing else is left on the disks")
    assert cluster.end_offset(topic) == MUCH["n"]


@pytest.mark.conformance(65)
def test_deleted_topic_takes_its_moving_copy_along(cluster: Cluster) -> None:
    with moving(cluster) as (topic, _, _):
        cluster.delete_topic(topic)
        assert not any(row.topics for row in describe(cluster, NODE, {topic: [0]}).values())
        cluster.eventually(lambda: on_disk(cluster, NODE, topic) == [], "both copies are off the disks")


@pytest.mark.conformance(52)
def test_fetch_that_waits_outlives_the_swap(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [NODE]})
    cluster.produce(topic, 0, 10)
    target = others(cluster, NODE, topic)[0]
    waiting = cluster.wire(NODE)
    waiting.send_fetch(topic, 0, 10, max_wait_ms=120_000)
    assert ask(cluster, NODE, topic, target) == NONE
    wait_until_in(cluster, NODE, topic, target)
    assert cluster.produce(topic, 0, 1) == 10
    (row,) = waiting.receive_fetch()  # the connection gives up long before the fetch would
    assert row.error == NONE and row.records


@pytest.mark.conformance(61, 62)
def test_move_keeps_the_start_offset_and_what_producers_sent_last(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [NODE]})
    cluster.produce(topic, 0, 20)
    client = cluster.wire(NODE)
    mine = build_batch(
        [b"once"] * 3, producer_id=4711, producer_epoch=0, base_sequence=0, timestamp=int(time.time() * 1000)
    )
    first = client.produce(topic, 0, mine)
    assert (first.error, first.base_offset) == (NONE, 20)
    deleted = client.call(
        "DeleteRecords", 2, topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 7}]}]
    )
    assert int(deleted.topics[0].partitions[0].error_code) == NONE
    target = others(cluster, NODE, topic)[0]
    assert ask(cluster, NODE, topic, target) == NONE
    wait_until_in(cluster, NODE, topic, target)
    again = client.produce(topic, 0, mine)
    assert (again.error, again.base_offset) == (NONE, 20) and cluster.end_offset(topic) == 23
    assert client.fetch(topic, 0, 6)[0].error == OFFSET_OUT_OF_RANGE
    assert client.fetch(topic, 0, 7)[0].error == NONE


@pytest.mark.conformance(50)
@pytest.mark.feature("113-05")
def test_cancel_and_swap_may_meet_and_one_replica_is_left(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [NODE]})
    cluster.produce(topic, 0, 10)
    for number in range(6):
        source, target = where(cluster, NODE, topic), others(cluster, NODE, topic)[0]
        assert source is not None and ask(cluster, NODE, topic, target) == NONE
        time.sleep(0.02 * number)  # time: from before the copy to after the swap
        assert ask(cluster, NODE, topic, source) == NONE
        wait_until_in(cluster, NODE, topic, source)  # cancelled, or moved and moved back
        assert cluster.produce(topic, 0, 1) == 10 + number
    cluster.eventually(lambda: on_disk(cluster, NODE, topic) == [f"{topic}-0"], "nothing else is left on the disks")


@pytest.mark.conformance(59)
def test_records_deleted_while_a_copy_is_under_way_stay_deleted(cluster: Cluster) -> None:
    with moving(cluster) as (topic, _, target):
        row = {"partition_index": 0, "offset": 150}
        topics = [{"name": topic, "partitions": [row]}]
        waits_not = cluster.differs("deleting-waits-for-no-copy")
        patience = timedelta(seconds=20 if waits_not else 1)
        answer = cluster.call("DeleteRecords", 2, node=NODE, topics=topics, timeout=patience)
        deleted = answer.topics[0].partitions[0]
        if waits_not:
            assert (int(deleted.error_code), deleted.low_watermark) == (NONE, 150)
        else:
            assert int(deleted.error_code) == REQUEST_TIMED_OUT
        assert cluster.wire(NODE).fetch(topic, 0, 149)[0].error == OFFSET_OUT_OF_RANGE
    wait_until_in(cluster, NODE, topic, target)
    client = cluster.wire(NODE)
    assert client.fetch(topic, 0, 149)[0].error == OFFSET_OUT_OF_RANGE
    assert client.fetch(topic, 0, 150)[0].error == NONE
    assert cluster.end_offset(topic) == MUCH["n"]
