"""Moves beside a failed directory, without a controller, over a restart, and while retention deletes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from storage_node.log import build_batch
from tests.conformance.clusters import WIDE, Cluster
from tests.conformance.log_dirs.calls import (
    LOG_DIR_NOT_FOUND,
    NONE,
    REQUEST_TIMED_OUT,
    STORAGE_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
    alter,
    ask,
    describe,
    failed_directory,
    moves_held,
    on_disk,
    others,
    wait_until_in,
    where,
)

NODE = 1
SEGMENT = 1 << 20


def topic_in(cluster: Cluster, node: int, path: str, records: int = 0) -> str:
    """A topic with one replica, in that directory of the node."""
    name = f"in{time.monotonic_ns()}"
    assert ask(cluster, node, name, path) == UNKNOWN_TOPIC_OR_PARTITION
    cluster.new_topic(name=name, assignment={0: [node]})
    if records:
        cluster.produce(name, 0, records, size=1000, per_batch=20)
    assert where(cluster, node, name) == path
    return name


@pytest.mark.slow_conformance
@pytest.mark.conformance(7, 8, 23, 30, 34)
@pytest.mark.feature("113-08", "113-35", "113-41")
def test_failed_directory_is_told_and_what_still_moves_beside_it(cluster: Cluster) -> None:
    first, second, bad = cluster.log_dirs[WIDE]
    healthy, lost = topic_in(cluster, WIDE, first, 10), topic_in(cluster, WIDE, bad, 10)
    with failed_directory(cluster, WIDE, bad):
        rows = describe(cluster, WIDE)
        assert set(rows) == {first, second, bad}
        assert (rows[bad].topics, rows[bad].total, rows[bad].usable) == ((), -1, -1)
        assert all(rows[path].error == NONE and rows[path].total > 0 for path in (first, second))
        for topic in (healthy, lost, "no-such-topic"):
            assert ask(cluster, WIDE, topic, bad) == STORAGE_ERROR
        assert ask(cluster, WIDE, healthy, "/nowhere") == LOG_DIR_NOT_FOUND
        assert ask(cluster, WIDE, lost, second) == STORAGE_ERROR
        assert ask(cluster, WIDE, healthy, first) == NONE
        if cluster.differs("moves-beside-a-failed-directory"):
            assert ask(cluster, WIDE, healthy, second) == NONE
            wait_until_in(cluster, WIDE, healthy, second)
        else:
            assert ask(cluster, WIDE, healthy, second) == STORAGE_ERROR
            assert where(cluster, WIDE, healthy, future=True) is None
        assert cluster.end_offset(healthy) == 10
    cluster.eventually(lambda: where(cluster, WIDE, lost) == bad, "the directory is back after a restart")


@pytest.mark.slow_conformance
@pytest.mark.conformance(109)
@pytest.mark.feature("113-35", "113-41")
@pytest.mark.parametrize("which", ["source", "target"])
def test_directory_that_fails_in_a_move(cluster: Cluster, which: str) -> None:
    good, _, bad = cluster.log_dirs[WIDE]
    source, target = (bad, good) if which == "source" else (good, bad)
    topic = topic_in(cluster, WIDE, source, 400)
    with moves_held(cluster, WIDE):
        assert ask(cluster, WIDE, topic, target) == NONE
        assert where(cluster, WIDE, topic, future=True) == target
        with failed_directory(cluster, WIDE, bad):
            rows = describe(cluster, WIDE, {topic: [0]})
            if which == "source":
                assert rows[bad].topics == () and rows[good].replicas[topic, 0, True].lag == -1
                assert (topic, 0, False) not in rows[good].replicas
                assert ask(cluster, WIDE, topic, good) == STORAGE_ERROR
            else:
                assert rows[good].replicas.keys() == {(topic, 0, False)} and rows[bad].topics == ()
                assert cluster.produce(topic, 0, 1) == 400
    end = 400 if which == "source" else 401
    cluster.eventually(lambda: cluster.leaders(topic) == {0: WIDE})
    cluster.eventually(lambda: cluster.end_offset(topic) == end)
    assert ask(cluster, WIDE, topic, source) == NONE
    wait_until_in(cluster, WIDE, topic, source)
    assert cluster.end_offset(topic) == end


@pytest.mark.slow_conformance
@pytest.mark.conformance(53)
@pytest.mark.feature("113-07")
def test_what_a_killed_node_remembers(cluster: Cluster) -> None:
    wished, moved = f"wished{time.monotonic_ns()}", cluster.new_topic(assignment={0: [NODE]})
    # More than Apache Kafka copies after a start, before it has applied the throttle.
    cluster.produce(moved, 0, 3000, size=10_000, per_batch=2)
    source, target = where(cluster, NODE, moved), others(cluster, NODE, moved)[0]
    with moves_held(cluster, NODE, rate=20_000):
        assert ask(cluster, NODE, moved, target) == NONE
        wanted = {(wished, partition): target for partition in range(8)}
        assert set(alter(cluster, NODE, wanted).values()) == {UNKNOWN_TOPIC_OR_PARTITION}
        cluster.eventually(
            lambda: describe(cluster, NODE)[target].replicas[moved, 0, True].size > 0, "a part is copied"
        )
        cluster.kill(NODE)
        cluster.start(NODE)
        cluster.eventually(lambda: where(cluster, NODE, moved) == source)
        cluster.eventually(lambda: where(cluster, NODE, moved, future=True) == target, "the move goes on")
    wait_until_in(cluster, NODE, moved, target)
    assert cluster.end_offset(moved) == 3000
    cluster.new_topic(name=wished, assignment={partition: [NODE] for partition in range(8)})
    places = {where(cluster, NODE, wished, partition) for partition in range(8)}
    if cluster.differs("wishes-last"):
        assert places == {target}
    else:
        assert places == set(cluster.log_dirs[NODE])


@pytest.mark.slow_conformance
def test_move_asked_for_while_nobody_can_change_metadata(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [NODE]})
    cluster.produce(topic, 0, 10)
    target = others(cluster, NODE, topic)[0]
    with cluster.no_controller(NODE):
        if cluster.differs("an-answer-means-it"):
            assert ask(cluster, NODE, topic, target) == REQUEST_TIMED_OUT
            assert on_disk(cluster, NODE, topic) == [f"{topic}-0"]
        else:
            assert ask(cluster, NODE, topic, target) == NONE
            assert where(cluster, NODE, topic, future=True) == target
        assert ask(cluster, NODE, topic, "/nowhere") == LOG_DIR_NOT_FOUND
    assert ask(cluster, NODE, topic, target) == NONE
    wait_until_in(cluster, NODE, topic, target)


@pytest.mark.conformance(9, 10, 60)
def test_retention_goes_on_before_and_after_a_move_and_leaves_nothing_behind(cluster: Cluster) -> None:
    settings = {"segment.bytes": str(SEGMENT), "retention.bytes": str(SEGMENT)}
    topic = cluster.new_topic(assignment={0: [NODE]}, configs=settings)

    def start_offset() -> int:
        asked = {"partition_index": 0, "timestamp": -2, "current_leader_epoch": -1}
        topics = [{"name": topic, "partitions": [asked]}]
        answer = cluster.call("ListOffsets", 6, node=NODE, replica_id=-1, isolation_level=0, topics=topics)
        row = answer.topics[0].partitions[0]
        return int(row.offset)

    cluster.produce(topic, 0, 4000, size=1000)
    cluster.eventually(lambda: start_offset() > 0, "retention deletes before the move")
    target, source = others(cluster, NODE, topic)[0], where(cluster, NODE, topic)
    assert ask(cluster, NODE, topic, target) == NONE
    wait_until_in(cluster, NODE, topic, target)
    before = start_offset()
    cluster.produce(topic, 0, 4000, size=1000)
    cluster.eventually(lambda: start_offset() > before, "retention deletes after the move")
    assert cluster.end_offset(topic) == 8000

    def rest() -> list[Path]:
        left = [path for path in Path(target, f"{topic}-0").iterdir() if path.name.endswith(".deleted")]
        return left + [path for path in Path(str(source)).iterdir() if path.name.startswith(topic)]

    cluster.eventually(lambda: not rest(), "neither deleted segments nor the old replica are left")


@pytest.mark.conformance(96)
@pytest.mark.slow_conformance
def test_produce_and_fetch_to_a_replica_on_a_failed_directory(cluster: Cluster) -> None:
    bad = cluster.log_dirs[WIDE][2]
    topic = topic_in(cluster, WIDE, bad, 10)
    with failed_directory(cluster, WIDE, bad):
        client = cluster.wire(WIDE)
        batch = build_batch([b"late"], timestamp=int(time.time() * 1000))
        codes = {client.produce(topic, 0, batch).error, client.fetch(topic, 0, 0)[0].error}
        # Its leadership goes with the directory: whoever still asks gets one error or the other.
        assert codes <= {STORAGE_ERROR, 6}
    cluster.eventually(lambda: cluster.leaders(topic) == {0: WIDE})
    cluster.eventually(lambda: cluster.end_offset(topic) == 10)
