"""Which of two copies is kept: the table, row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ops.disks import repair, scanning
from ops.disks.duplicates import duplicates, resolve
from ops.disks.found import Copy, Damage, DamageKind, LogFound
from storage_node.directories.checkpoints import LOG_START_OFFSETS, OffsetCheckpoint
from storage_node.log.leader_epochs import LeaderEpochs
from storage_node.model.ids import TopicPartition
from storage_node.replicas.marker import Marker
from tests.support.stopped_disks import OTHER_TOPIC_ID, TOPIC_ID, batches, format_disks, write_replica

TP = TopicPartition("orders", 0)
BAD = Damage(DamageKind.BATCH, "x.log", "its CRC does not match its bytes", 100, 60)
TORN = Damage(DamageKind.TORN_TAIL, "x.log", "", 100, 100)
LOG = LogFound(0, 100, 100, 1000, 10, 1, LeaderEpochs(((0, 0), (4, 50))))
A = Copy(TP, "/a", TOPIC_ID, created_ns=1, log=LOG, same_as=frozenset({"/b/orders-0"}))
B = Copy(TP, "/b", TOPIC_ID, created_ns=2, log=LOG, same_as=frozenset({"/a/orders-0"}))


def log(copy: Copy, **changes: object) -> Copy:
    return replace(copy, log=replace(copy.log, **changes))  # type: ignore[arg-type]


EARLIER = LeaderEpochs(((0, 0),))

TABLE = [
    ("the same records: the younger copy, the target of the move", A, B, "/b"),
    ("shorter, a prefix", log(A, end=80, reach=80), B, "/b"),
    ("shorter, and younger", A, log(B, end=80, reach=80), "/a"),
    ("a torn tail loses nothing", A, log(B, damages=(TORN,)), "/b"),
    ("damaged, with nothing that the other lacks", A, log(B, end=60, damages=(BAD,)), "/a"),
    ("damaged, but with later records", log(A, end=80, reach=80), log(B, end=60, damages=(BAD,)), None),
    ("both damaged", log(A, end=60, damages=(BAD,)), log(B, end=60, damages=(BAD,)), None),
    ("an earlier epoch, a prefix", log(A, end=40, reach=40, epochs=EARLIER), B, "/b"),
    ("an earlier epoch, but more records", log(A, end=120, reach=120, epochs=EARLIER), B, None),
    ("other batches at the same offsets", replace(A, same_as=frozenset()), replace(B, same_as=frozenset()), None),
    ("batches cannot be compared after a compaction", replace(log(A, sparse=True), same_as=frozenset()), B, "/b"),
    ("begins later, the same end", A, log(B, start=30), "/a"),
    ("begins later, and is longer", log(A, end=80, reach=80), log(B, start=30), None),
    ("a log start beyond all records does not count", A, replace(B, log_start=999_999), "/b"),
    ("nor does it hide records that the other lacks", A, replace(log(B, end=80, reach=80), log_start=999_999), "/a"),
    ("another topic of that name", replace(A, topic_id=OTHER_TOPIC_ID), B, None),
]


@pytest.mark.parametrize(("a", "b", "kept"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_resolve_keeps_the_copy_that_holds_all_or_none(a: Copy, b: Copy, kept: str | None) -> None:
    for copies in ([a, b], [b, a]):
        found = resolve(copies)
        assert (found.keep.directory if found.keep else None) == kept
        assert {copy.directory for copy in found.aside} == ({"/a", "/b"} - {kept} if kept else set())
        assert found.why and not found.by_itself


def test_resolve_takes_the_topic_id_of_the_other_replicas() -> None:
    other = replace(A, topic_id=OTHER_TOPIC_ID)
    found = resolve([other, log(B, end=10, reach=10)], expected=TOPIC_ID)
    assert found.keep is not None and found.keep.directory == "/b"
    assert "another topic" in found.why
    assert resolve([other, B], expected="AAAAAAAAAAAAAAAAAAAA3A").keep is None


def test_resolve_leaves_generations_to_the_storage_node() -> None:
    older = replace(A, marker=Marker("orders", 0, generation=1))
    newer = replace(log(B, end=10), marker=Marker("orders", 0, generation=2))
    found = resolve([older, newer])
    assert found.by_itself and found.keep == newer
    assert not resolve([older, replace(B, marker=older.marker)]).by_itself


def test_resolve_of_three_copies() -> None:
    third = replace(log(A, end=20, reach=20), directory="/c", same_as=frozenset({"/a/orders-0", "/b/orders-0"}))
    both = frozenset({"/a/orders-0", "/b/orders-0", "/c/orders-0"})
    found = resolve([third, replace(A, same_as=both), replace(B, same_as=both)])
    assert found.keep is not None and found.keep.directory == "/b"
    assert {copy.directory for copy in found.aside} == {"/a", "/c"}


def test_repair_carries_no_log_start_beyond_the_records_of_the_other_copy(tmp_path: Path) -> None:
    disks = [tmp_path / "d1", tmp_path / "d2"]
    format_disks(disks)
    for disk, count in zip(disks, (4, 2), strict=True):
        write_replica(disk, TP, [batches(0, count)])
    OffsetCheckpoint(disks[1], LOG_START_OFFSETS).write({TP: 999_999})
    (step,), left = repair.plan(duplicates(scanning.read_logs(scanning.look(map(str, disks)))))
    assert not left and step.keep.directory == str(disks[0])
    repair.set_aside(step, list(map(str, disks)))
    assert OffsetCheckpoint(disks[0], LOG_START_OFFSETS).read() == {}
