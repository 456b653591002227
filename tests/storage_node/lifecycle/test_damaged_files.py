"""Whatever stands in a file at a start, the start goes through: each kind of damage has its outcome, and costs no other
replica anything."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_node.errors import RequestRefused
from storage_node.log.batches.batch import HEADER_SIZE, build_batch
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition
from storage_node.replicas import marker as markers
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.wire import Client

TP = TopicPartition("t", 0)
RECORDS = 40


def filled(harness: Harness) -> Path:
    """A topic in several segments, and another one beside it; answers the folder of the first."""
    client = Client(harness)
    for name in ("t", "other"):
        harness.create_topic(name, configs={"segment.bytes": "1000"})
        for number in range(RECORDS):
            client.produce(name, 0, build_batch([b"%03d" % number + b"x" * 100], timestamp=number))
    client.close()
    harness.settle()
    harness.node.engine.next_claim(TP)
    partition = harness.node.partition(TP)
    assert partition is not None
    return partition.log.path


def numbers(harness: Harness, topic: str = "t") -> list[int]:
    """All records that are there, in order."""
    partition = harness.node.partition(TopicPartition(topic, 0))
    assert partition is not None
    start, end = partition.log.log_start_offset, partition.log.log_end_offset
    return [int(m.value()[:3]) for m in harness.consume(topic, end - start, offset=start)]


def again(harness: Harness, damage: Callable[[], object], clean: bool) -> None:
    """Stop, damage, start."""
    harness.stop(clean)
    damage()
    harness.node = harness._new(0)
    harness.start()
    assert all(directory.online for directory in harness.node.dirs.directories)
    assert numbers(harness, "other") == list(range(RECORDS))


SMALL_FILES = [
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cluster-image",
    "preferred-log-dirs",
    "replica-epoch-checkpoint",
    "directory-failures",
    ".kafka_cleanshutdown",
]


@pytest.mark.parametrize("clean", [True, False])
def test_small_files_of_a_directory(tmp_path: Path, clean: bool) -> None:
    with running(tmp_path, dirs=1) as harness:
        filled(harness)
        for content in (b"", b"\xff\xfe\0garbage", b"0\n1\nt 0", b"[" * 100_000, b'[["t"]]'):

            def damage(content: bytes = content) -> None:
                for name in SMALL_FILES:
                    (Path(harness.paths[0]) / name).write_bytes(content)

            again(harness, damage, clean)
            assert numbers(harness) == list(range(RECORDS))


def test_small_files_of_a_replica(tmp_path: Path) -> None:
    with running(tmp_path, dirs=1) as harness:
        path = filled(harness)
        for content in (b"", b"\xff\xfe\0garbage", b"0\n5\n1 1\n", b"[" * 100_000):

            def damage(content: bytes = content) -> None:
                for name in ("leader-epoch-checkpoint", markers.NAME):
                    (path / name).write_bytes(content)
                for file in (*path.glob("*.index"), *path.glob("*.timeindex"), *path.glob("*.snapshot")):
                    file.write_bytes(content)

            again(harness, damage, clean=content != b"")
            assert numbers(harness) == list(range(RECORDS))
            partition = harness.node.partition(TP)
            assert partition is not None and partition.find_offset(25).offset == 25
        again(harness, lambda: (path / "partition.metadata").write_bytes(b"???"), clean=True)
        assert TP in harness.node.replicas.offline, "of which topic it is cannot be said"
        again(harness, lambda: (path / "partition.metadata").write_bytes(b""), clean=True)
        assert numbers(harness) == list(range(RECORDS))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("where", ["first", "last"])
def test_any_byte_of_a_segment(tmp_path: Path, clean: bool, where: str) -> None:
    """Clean: told when it is read. Otherwise: cut off, or told, but never answered as good."""
    with running(tmp_path, dirs=1) as harness:
        path = filled(harness)
        files = sorted(path.glob("*.log"))
        file = files[0] if where == "first" else files[-1]
        rng = random.Random(3)
        size = file.stat().st_size
        length = size // (7 if where == "first" else RECORDS % 7 or 7)
        whole = {f.name: f.read_bytes() for f in path.iterdir()}
        places = [0, 8, 12, 16, 17, 21, 23, 27, 35, 43, 57, HEADER_SIZE, size - 1, rng.randrange(length, size)]
        for place in places:

            def damage(place: int = place) -> None:
                for old in path.iterdir():
                    if old.suffix in (".log", ".index", ".timeindex", ".snapshot", ".deleted"):
                        old.unlink()
                for name, content in whole.items():
                    (path / name).write_bytes(content)
                data = bytearray(whole[file.name])
                data[place] ^= 0xFF
                file.write_bytes(data)

            again(harness, damage, clean)
            partition = harness.node.partition(TP)
            assert partition is not None
            client = Client(harness)
            for offset in range(RECORDS):
                (row,) = client.fetch("t", 0, offset)
                assert row.error in (0, 1, 2), place
            assert client.produce("t", 0, build_batch([b"999"])).error == 0
            client.close()


def test_symlinked_segment_is_not_followed_and_costs_only_its_replica(tmp_path: Path) -> None:
    with running(tmp_path, dirs=1) as harness:
        path = filled(harness)
        outside = tmp_path / "outside.log"

        def damage() -> None:
            file = sorted(path.glob("*.log"))[0]
            file.rename(outside)
            file.symlink_to(outside)

        again(harness, damage, clean=False)
        assert "symbolic link" in harness.node.replicas.offline[TP]
        again(harness, lambda: outside.replace(sorted(path.glob("*.log"))[0]), clean=False)
        assert numbers(harness) == list(range(RECORDS))


def test_symlinked_replica_is_left_alone_and_nothing_is_made_through_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with running(tmp_path, dirs=1) as harness:
        link = Path(harness.paths[0]) / "t-0"
        link.symlink_to(outside)
        harness.create_topic("t", 2)
        until(lambda: harness.node.partition(TopicPartition("t", 1)) is not None)
        assert TP in harness.node.replicas.offline and harness.node.dirs.directories[0].online
        assert list(outside.iterdir()) == [] and link.is_symlink()
        assert f"{link} is a symlink to {outside}, and" in harness.node.replicas.offline[TP]
        harness.produce("t", [b"x"], partition=1)


def test_replica_whose_folder_became_a_symlink_is_offline_and_says_so(tmp_path: Path) -> None:
    outside = tmp_path / "bigger-disk"
    with running(tmp_path, dirs=2) as harness:
        path = filled(harness)

        def link() -> None:
            shutil.move(path, outside)
            path.symlink_to(outside)

        again(harness, link, clean=True)
        assert f"{path} is a symlink to {outside}, and" in harness.node.replicas.offline[TP]
        before = sorted(outside.iterdir())
        with pytest.raises(RequestRefused, match="is a symlink to"):
            harness.node.metadata_publisher.reopen(TP)
        assert sorted(outside.iterdir()) == before and path.is_symlink()
        path.unlink()
        shutil.move(outside, path)
        harness.node.metadata_publisher.reopen(TP)
        assert numbers(harness) == list(range(RECORDS))


def test_two_directories_of_one_name_are_neither_served_nor_touched(tmp_path: Path) -> None:
    with running(tmp_path, dirs=2) as harness:
        path = filled(harness)
        elsewhere = Path(next(p for p in harness.paths if p != str(path.parent))) / path.name

        def double() -> None:
            elsewhere.mkdir()
            for file in path.iterdir():
                (elsewhere / file.name).write_bytes(file.read_bytes())

        again(harness, double, clean=False)
        assert "several directories" in harness.node.replicas.offline[TP]
        assert len(list(elsewhere.glob("*.log"))) == len(list(path.glob("*.log")))

        def settle() -> None:
            found = markers.read(path)
            assert found is not None
            document = json.loads((path / markers.NAME).read_bytes())
            assert document["generation"] == found.generation
            markers.write(path, found.settled(found.generation + 1))

        again(harness, settle, clean=False)
        assert numbers(harness) == list(range(RECORDS))
        assert harness.directory_of("t") == str(path.parent)


@pytest.mark.parametrize("kind", ["symlink", "pipe"])
def test_marker_that_is_no_file(tmp_path: Path, kind: str) -> None:
    with running(tmp_path, dirs=1) as harness:
        path = filled(harness)

        def damage() -> None:
            file = path / markers.NAME
            if kind == "symlink":
                file.rename(tmp_path / "elsewhere")
                file.symlink_to(tmp_path / "elsewhere")
                return
            file.unlink()
            os.mkfifo(file)

        again(harness, damage, clean=True)
        assert numbers(harness) == list(range(RECORDS)), "alone, it is made anew"


def test_unexpected_error_costs_only_its_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, dirs=1) as harness:
        filled(harness)
        real = Log.open

        def open_log(path: Path, tp: TopicPartition, *args: Any, **kwargs: Any) -> Log:
            if tp == TP:
                raise ZeroDivisionError("of all things")
            return real(path, tp, *args, **kwargs)

        monkeypatch.setattr(Log, "open", open_log)
        again(harness, lambda: None, clean=True)
        assert "of all things" in harness.node.replicas.offline[TP]
