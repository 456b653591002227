"""Reading a log that no broker has open: what is whole, what is damaged, where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ops.disks.found import DamageKind, LogFound
from ops.disks.reading import fingerprint, read_log
from storage_node.log.leader_epochs import LeaderEpochs
from storage_node.model.ids import TopicPartition
from tests.support.stopped_disks import batches, write_replica

TP = TopicPartition("orders", 0)
FIRST, SECOND = f"{0:020d}", f"{20:020d}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two segments: offsets 0 to 19 of epoch 0, 20 to 39 of epoch 3."""
    return write_replica(tmp_path, TP, [batches(0, 4), batches(20, 4, epoch=3)])


def damages(folder: Path) -> list[tuple[DamageKind, str]]:
    return [(damage.kind, damage.file) for damage in read_log(folder).damages]


def change(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def test_read_log_of_a_whole_log_has_its_offsets_and_epochs(folder: Path) -> None:
    read: list[int] = []
    found = read_log(folder, read.append)
    assert found == LogFound(
        start=0, end=40, reach=40, size=sum(read), batches=8, segments=2, epochs=LeaderEpochs(((0, 0), (3, 20)))
    )
    assert found.whole and found.size == sum(path.stat().st_size for path in folder.glob("*.log"))


SIZE = len(batches(0, 1)[0])


def flip_a_record(folder: Path) -> None:
    change(folder / f"{FIRST}.log", 2 * SIZE + 80, b"?")


def cut_the_first_segment(folder: Path) -> None:
    path = folder / f"{FIRST}.log"
    path.write_bytes(path.read_bytes()[: 3 * SIZE])


def cut_within_a_batch_of_the_first_segment(folder: Path) -> None:
    path = folder / f"{FIRST}.log"
    path.write_bytes(path.read_bytes()[: 3 * SIZE + 30])


def cut_within_the_last_batch(folder: Path) -> None:
    path = folder / f"{SECOND}.log"
    path.write_bytes(path.read_bytes()[:-10])


def zeros_at_the_end(folder: Path) -> None:
    path = folder / f"{SECOND}.log"
    path.write_bytes(path.read_bytes() + bytes(5000))


def rubbish_at_the_end(folder: Path) -> None:
    path = folder / f"{SECOND}.log"
    path.write_bytes(path.read_bytes() + b"rubbish" * 50)


def offsets_that_repeat(folder: Path) -> None:
    path = folder / f"{SECOND}.log"
    path.write_bytes(path.read_bytes() + batches(30, 1, epoch=3)[0])


def a_segment_that_is_a_folder(folder: Path) -> None:
    (folder / f"{FIRST}.log").unlink()
    (folder / f"{FIRST}.log").mkdir()


@pytest.mark.parametrize(
    ("wreck", "kind", "end", "reach"),
    [
        (flip_a_record, DamageKind.BATCH, 10, 40),
        (cut_the_first_segment, DamageKind.TRUNCATED, 15, 40),
        (cut_within_a_batch_of_the_first_segment, DamageKind.TRUNCATED, 15, 40),
        (rubbish_at_the_end, DamageKind.BATCH, 40, 40),
        (offsets_that_repeat, DamageKind.BATCH, 40, 40),
        (a_segment_that_is_a_folder, DamageKind.UNREADABLE, 0, 40),
    ],
)
def test_read_log_of_a_log_with_lost_records_is_not_whole(
    folder: Path, wreck: Callable[[Path], None], kind: DamageKind, end: int, reach: int
) -> None:
    wreck(folder)
    found = read_log(folder)
    assert not found.whole
    assert (found.end, found.reach) == (end, reach)
    assert kind in {damage.kind for damage in found.damages}


@pytest.mark.parametrize(("wreck", "end"), [(cut_within_the_last_batch, 35), (zeros_at_the_end, 40)])
def test_read_log_with_a_torn_tail_is_whole(folder: Path, wreck: Callable[[Path], None], end: int) -> None:
    wreck(folder)
    found = read_log(folder)
    assert found.whole and found.end == found.reach == end
    assert damages(folder) == [(DamageKind.TORN_TAIL, f"{SECOND}.log")]


def test_read_log_after_a_compaction_accepts_gaps(tmp_path: Path) -> None:
    rows = batches(0, 8)
    folder = write_replica(tmp_path, TP, [[rows[0], rows[2]], rows[5:]])
    found = read_log(folder)
    assert found.whole and found.sparse and found.end == 40 and not found.damages


def test_read_log_reports_indexes_that_lead_astray(folder: Path) -> None:
    assert damages(folder) == []
    index = folder / f"{FIRST}.index"
    change(index, 4, (SIZE + 1).to_bytes(4, "big"))
    (folder / f"{SECOND}.index").write_bytes(b"123")
    (folder / f"{SECOND}.timeindex").unlink()
    times = folder / f"{FIRST}.timeindex"
    times.write_bytes(times.read_bytes()[12:] + times.read_bytes()[:12])
    assert damages(folder) == [
        (DamageKind.INDEX, f"{FIRST}.index"),
        (DamageKind.INDEX, f"{FIRST}.timeindex"),
        (DamageKind.INDEX, f"{SECOND}.index"),
        (DamageKind.INDEX, f"{SECOND}.timeindex"),
    ]
    assert read_log(folder).whole


def test_read_log_accepts_the_room_that_kafka_reserves_in_open_indexes(folder: Path) -> None:
    for path in (*folder.glob("*.index"), *folder.glob("*.timeindex")):
        path.write_bytes(path.read_bytes() + bytes(12 * 8 * 1000))
    assert damages(folder) == []


@pytest.mark.parametrize("content", [b"0\n1\n0 0\n", b"0\n2\n0 0\n3 25\n", b"rubbish", None])
def test_read_log_reports_leader_epochs_that_contradict_the_batches(folder: Path, content: bytes | None) -> None:
    path = folder / "leader-epoch-checkpoint"
    path.unlink() if content is None else path.write_bytes(content)
    assert damages(folder) == [(DamageKind.EPOCHS, path.name)]


def test_read_log_of_no_folder_and_of_an_empty_one(tmp_path: Path) -> None:
    assert [damage.kind for damage in read_log(tmp_path / "none").damages] == [DamageKind.UNREADABLE]
    assert read_log(tmp_path) == LogFound()


def test_read_log_never_follows_a_symlink(folder: Path, tmp_path: Path) -> None:
    path = folder / f"{FIRST}.log"
    elsewhere = path.rename(tmp_path / "elsewhere.log")
    path.symlink_to(elsewhere)
    assert DamageKind.UNREADABLE in {damage.kind for damage in read_log(folder).damages}


def test_fingerprint_compares_batches_whatever_the_segments(tmp_path: Path) -> None:
    rows = batches(0, 8)
    one = write_replica(tmp_path / "a", TP, [rows[:4], rows[4:]])
    other = write_replica(tmp_path / "b", TP, [rows[:6]])
    assert fingerprint(one, 0, 30) == fingerprint(other, 0, 30) != fingerprint(one, 0, 35)
    different = write_replica(tmp_path / "c", TP, [[*rows[:3], *batches(15, 3, size=41)]])
    assert fingerprint(one, 0, 15) == fingerprint(different, 0, 15)
    assert fingerprint(one, 0, 30) != fingerprint(different, 0, 30)
