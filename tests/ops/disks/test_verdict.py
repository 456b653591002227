"""What the disks of a stopped broker hold, and the finding of each kind that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ops.disks import scanning
from ops.disks.verdict import Kind, Verdict, verdict
from storage_node.directories.checkpoints import LOG_START_OFFSETS, OffsetCheckpoint
from storage_node.directories.meta import properties as meta_properties
from storage_node.model.ids import TopicPartition
from tests.support.stopped_disks import CLEAN, CLUSTER, OTHER_TOPIC_ID, batches, format_disks, write_replica

TP, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
HEX = "0123456789abcdef" * 2

Disks = list[Path]


def kafka(root: Path, version: int = 1) -> Disks:
    """Two directories with a replica each."""
    disks = [root / "d1", root / "d2"]
    format_disks(disks, version=version)
    write_replica(disks[0], TP, [batches(0, 4)])
    write_replica(disks[1], ONE, [batches(0, 4)])
    return disks


def judge(disks: Disks, **given: object) -> Verdict:
    found = scanning.read_logs(scanning.look(map(str, disks)))
    known = {"node_id": 1, "metadata": str(disks[0]), **given}
    return verdict(found, **known)  # type: ignore[arg-type]


def test_verdict_of_whole_disks_is_clean(tmp_path: Path) -> None:
    for version in (1, 2):
        assert judge(kafka(tmp_path / str(version), version)) == Verdict((), ())


def folder(name: str) -> Callable[[Disks], None]:
    return lambda disks: (disks[1] / name).mkdir()


def duplicate(disks: Disks) -> None:
    write_replica(disks[1], TP, [batches(0, 4)])


def undecided(disks: Disks) -> None:
    write_replica(disks[1], TP, [batches(0, 4, size=41)])


def no_topic_id(disks: Disks) -> None:
    (disks[0] / "orders-0" / "partition.metadata").unlink()


def strange_topic_id(disks: Disks) -> None:
    (disks[0] / "orders-0" / "partition.metadata").write_bytes(b"?")


def foreign_topic_id(disks: Disks) -> None:
    write_replica(disks[0], TopicPartition("orders", 2), [batches(0, 1)], topic_id=OTHER_TOPIC_ID)


def damaged_batch(disks: Disks) -> None:
    path = disks[0] / "orders-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def torn_tail(disks: Disks) -> None:
    path = disks[0] / "orders-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-9])


def no_index(disks: Disks) -> None:
    (disks[0] / "orders-0" / f"{0:020d}.index").unlink()


def no_epochs(disks: Disks) -> None:
    (disks[0] / "orders-0" / "leader-epoch-checkpoint").unlink()


def no_meta(disks: Disks) -> None:
    (disks[1] / "meta.properties").unlink()


def properties(disks: Disks, **changes: object) -> None:
    found = meta_properties.read(disks[1])
    assert found is not None
    values = {"cluster_id": found.cluster_id, "node_id": found.node_id, "directory_id": found.directory_id, **changes}
    made = meta_properties.upgrade(found, version=1, directory_ids=(), **values)  # type: ignore[arg-type]
    meta_properties.write(disks[1], made)


def foreign_cluster(disks: Disks) -> None:
    properties(disks, cluster_id="another-cluster-another")


def wrong_node(disks: Disks) -> None:
    properties(disks, node_id=2)


def same_directory_id(disks: Disks) -> None:
    first = meta_properties.read(disks[0])
    assert first is not None
    properties(disks, directory_id=first.directory_id)


def gone(disks: Disks) -> None:
    disks[1].rename(disks[1].with_name("unmounted"))


def bad_checkpoint(disks: Disks) -> None:
    (disks[0] / "replication-offset-checkpoint").write_bytes(b"rubbish")


def log_start_beyond(disks: Disks) -> None:
    OffsetCheckpoint(disks[0], LOG_START_OFFSETS).write({TP: 999_999})


def symlink(disks: Disks) -> None:
    (disks[0] / "orders-0").rename(disks[0].parent / "elsewhere")
    (disks[0] / "orders-0").symlink_to(disks[0].parent / "elsewhere")


def metadata_log_elsewhere(disks: Disks) -> None:
    (disks[1] / "__cluster_metadata-0").mkdir()


@pytest.mark.parametrize(
    ("wreck", "kind", "note", "says"),
    [
        (duplicate, Kind.DUPLICATE, False, "Apache Kafka does not start"),
        (undecided, Kind.DUPLICATE, False, "other batches at the same offsets"),
        (folder(f"orders-7.{HEX}-future"), Kind.LEFTOVER, True, "unfinished copy of a move"),
        (folder(f"orders-7.{HEX}-delete"), Kind.LEFTOVER, True, "to be deleted"),
        (folder(f"orders-7.{HEX}-stray"), Kind.LEFTOVER, True, "no longer serves"),
        (folder("orders-7.move"), Kind.LEFTOVER, False, "Apache Kafka does not start"),
        (folder("lost+found"), Kind.FOREIGN, False, "Apache Kafka does not start"),
        (symlink, Kind.LEFTOVER, True, "/elsewhere, which was not followed"),
        (no_topic_id, Kind.TOPIC_ID, False, "-stray"),
        (strange_topic_id, Kind.TOPIC_ID, False, "malformed"),
        (damaged_batch, Kind.RECORDS, False, "CRC"),
        (torn_tail, Kind.RECORDS, False, "torn tail"),
        (no_index, Kind.INDEX, False, "missing"),
        (no_epochs, Kind.EPOCHS, False, "missing"),
        (no_meta, Kind.META, False, "no meta.properties"),
        (foreign_cluster, Kind.META, False, "Invalid cluster.id"),
        (wrong_node, Kind.META, False, "node id 2"),
        (same_directory_id, Kind.META, False, "same directory id"),
        (gone, Kind.META, False, "does not exist"),
        (bad_checkpoint, Kind.CHECKPOINT, False, "malformed"),
        (log_start_beyond, Kind.CHECKPOINT, False, "999999, lies beyond the log's end, 20, with 1 segments"),
        (metadata_log_elsewhere, Kind.SWAPPED, False, "metadata log"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_verdict_finds_each_problem(
    tmp_path: Path, wreck: Callable[[Disks], None], kind: Kind, note: bool, says: str
) -> None:
    disks = kafka(tmp_path)
    wreck(disks)
    found = judge(disks)
    assert {(problem.kind, problem.note) for problem in found.problems} == {(kind, note)}
    problem = found.problems[0]
    assert says in problem.says and problem.advice
    assert found.clean is note


def test_verdict_names_the_topic_id_that_fewer_replicas_have(tmp_path: Path) -> None:
    disks = kafka(tmp_path)
    foreign_topic_id(disks)
    (problem,) = judge(disks).problems
    assert problem.tp == TopicPartition("orders", 2) and OTHER_TOPIC_ID in problem.says


@pytest.mark.parametrize("wreck", [torn_tail, no_index])
def test_verdict_after_an_unclean_stop_leaves_to_the_start_what_it_repairs(
    tmp_path: Path, wreck: Callable[[Disks], None]
) -> None:
    disks = kafka(tmp_path)
    (disks[0] / CLEAN).unlink()
    wreck(disks)
    found = judge(disks)
    assert found.clean and len(found.problems) == 1


def test_verdict_of_a_storage_node_knows_disks_by_their_ids(tmp_path: Path) -> None:
    d1, d2 = kafka(tmp_path, version=2)
    d1.rename(tmp_path / "x")
    d2.rename(d1)
    (tmp_path / "x").rename(d2)
    problems = judge([d1, d2]).problems
    assert {(problem.kind, problem.path) for problem in problems} == {(Kind.SWAPPED, str(d1)), (Kind.SWAPPED, str(d2))}


def test_verdict_of_a_storage_node_leaves_foreign_folders(tmp_path: Path) -> None:
    disks = kafka(tmp_path, version=2)
    folder("lost+found")(disks)
    folder("orders-7.move")(disks)
    assert judge(disks).clean
    assert not judge(disks, cluster_id=CLUSTER[::-1]).clean


def test_look_at_disks_changes_nothing(tmp_path: Path) -> None:
    disks = kafka(tmp_path)
    duplicate(disks)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    judge(disks)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
