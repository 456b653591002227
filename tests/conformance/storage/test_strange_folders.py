"""What a start makes of replicas that the metadata does not know, and a move of records that are damaged."""

from __future__ import annotations

import re
import shutil
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from ops.kafka.jars import KafkaUnavailable
from storage_node.directories import partition_metadata
from storage_node.directories.checkpoints import LOG_START_OFFSETS, OffsetCheckpoint
from storage_node.model.ids import TopicPartition
from tests.conformance.clusters import Cluster
from tests.conformance.log_dirs.calls import NONE, ask, describe, on_disk, others, wait_until_in, where

NODE = 2


@pytest.mark.slow_conformance
@pytest.mark.conformance(91, 92, 93)
def test_replicas_that_a_start_finds_and_nobody_knows(cluster: Cluster) -> None:
    known, nameless = (cluster.new_topic(assignment={0: [NODE]}) for _ in range(2))
    for topic in (known, nameless):
        cluster.produce(topic, 0, 10)
    ghost = f"ghost{uuid.uuid4().hex[:8]}"
    folder = Path(cluster.log_dirs[NODE][0], f"{ghost}-0")
    metadata = Path(str(where(cluster, NODE, nameless)), f"{nameless}-0", "partition.metadata")
    cluster.stop(NODE)
    try:
        folder.mkdir()
        Path(folder, f"{0:020d}.log").touch()
        topic_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        partition_metadata.write(folder, topic_id, directory=str(folder.parent))
        metadata.unlink()
    finally:
        cluster.start(NODE)
    cluster.eventually(lambda: cluster.leaders(nameless) == cluster.leaders(known) == {0: NODE})
    (row,) = cluster.wire(NODE).fetch(ghost, 0, 0)
    assert row.error in (3, 6) and not row.records  # unknown, or not the leader
    assert cluster.end_offset(known) == 10
    if cluster.differs("strays-keep-their-names"):
        assert on_disk(cluster, NODE, ghost) == [f"{ghost}-0"]
        assert cluster.end_offset(nameless) == 10 and metadata.exists()
    else:
        (name,) = on_disk(cluster, NODE, ghost)
        assert re.fullmatch(rf"{ghost}-0\.[0-9a-f]{{32}}-stray", name)
        assert cluster.end_offset(nameless) == 0, "its records are in a stray, too"


@pytest.mark.slow_conformance
@pytest.mark.conformance(70)
def test_folder_that_is_nobodys_replica(cluster: Cluster) -> None:
    folder = Path(cluster.log_dirs[NODE][0], "stranger")
    cluster.stop(NODE)
    folder.mkdir()
    try:
        if cluster.differs("foreign-folders-are-left-alone"):
            cluster.start(NODE)
            assert {row.error for row in describe(cluster, NODE).values()} == {NONE} and folder.is_dir()
        else:
            with pytest.raises(KafkaUnavailable):
                cluster.start(NODE)
    finally:
        folder.rmdir()
        if not cluster.running(NODE):
            cluster.start(NODE)


@pytest.mark.slow_conformance
def test_log_start_offset_beyond_the_log_end_of_the_only_replica(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [NODE]})
    cluster.produce(topic, 0, 10)
    folder = Path(str(where(cluster, NODE, topic)), f"{topic}-0")
    starts, tp = OffsetCheckpoint(folder.parent, LOG_START_OFFSETS), TopicPartition(topic, 0)

    def restart(put: dict[TopicPartition, int], drop: tuple[TopicPartition, ...] = ()) -> None:
        cluster.stop(NODE)
        try:
            starts.update(put, drop)
        finally:
            cluster.start(NODE)

    (segment,) = folder.glob("*.log")
    before = segment.read_bytes()
    restart({tp: 1000})
    if cluster.differs("a-log-start-beyond-the-end"):
        (row,) = cluster.wire(NODE).fetch(topic, 0, 0)
        assert row.error and segment.read_bytes() == before
        restart({}, (tp,))
        assert cluster.end_offset(topic) == 10
    else:
        assert cluster.end_offset(topic) == 1000


@pytest.mark.slow_conformance
def test_replica_whose_folder_is_a_symlink(cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.new_topic(assignment={0: [NODE]})
    cluster.produce(topic, 0, 10)
    folder = Path(str(where(cluster, NODE, topic)), f"{topic}-0")
    elsewhere = tmp_path / folder.name
    cluster.stop(NODE)
    shutil.move(folder, elsewhere)
    folder.symlink_to(elsewhere)
    try:
        cluster.start(NODE)
        if cluster.differs("linked-replicas-are-offline"):
            assert where(cluster, NODE, topic) is None and folder.is_symlink()
        else:
            cluster.eventually(lambda: cluster.leaders(topic) == {0: NODE})
            assert cluster.end_offset(topic) == 10
    finally:
        cluster.stop(NODE)
        folder.unlink()
        shutil.move(elsewhere, folder)
        cluster.start(NODE)
    cluster.eventually(lambda: cluster.leaders(topic) == {0: NODE})
    assert cluster.end_offset(topic) == 10


@pytest.mark.conformance(63)
def test_move_of_damaged_records(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [NODE]})
    cluster.produce(topic, 0, 10, size=1000)
    source, target = where(cluster, NODE, topic), others(cluster, NODE, topic)[0]
    (segment,) = Path(str(source), f"{topic}-0").glob("*.log")
    whole = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(500)
        file.write(bytes([whole[500] ^ 1]))
    assert ask(cluster, NODE, topic, target) == NONE
    if cluster.differs("damaged-records-end-a-move"):
        cluster.eventually(lambda: on_disk(cluster, NODE, topic) == [f"{topic}-0"], "the copy is taken away")
    else:
        assert where(cluster, NODE, topic, future=True) == target, "it is tried again and again"
    assert where(cluster, NODE, topic) == source and cluster.produce(topic, 0, 1) == 10, "the replica serves on"
    with segment.open("r+b") as file:
        file.write(whole)
    if cluster.differs("damaged-records-end-a-move"):
        assert ask(cluster, NODE, topic, target) == NONE
    wait_until_in(cluster, NODE, topic, target)
    assert cluster.end_offset(topic) == 11
