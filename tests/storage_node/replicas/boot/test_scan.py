"""What a start sees in its directories: replicas, copies, what is to be removed, and what is not ours to touch."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.errors import MetadataIOError
from storage_node.model.ids import TopicPartition
from storage_node.replicas import marker as markers
from storage_node.replicas.boot.apply import apply
from storage_node.replicas.boot.scan import scan
from storage_node.replicas.boot.table import decide
from storage_node.replicas.marker import Marker

HEX = "0123456789abcdef" * 2


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[LogDirectory]]:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(LogDirectory(tmp_path / name, f"id-{name}"))
    yield made
    for directory in made:
        directory.close()


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.conformance(70, 94)
@pytest.mark.feature("113-02")
def test_scan_distinguishes_replicas_from_foreign_folders(two: list[LogDirectory], tmp_path: Path) -> None:
    here, there = (directory.path for directory in two)
    long = TopicPartition("t" * 249, 0)
    replicas = ["a-0", "b.c-12.move", f"a-1.{HEX}.delete", "a-2.delete", str(long), f"{'t' * 207}~-0.{HEX}.delete"]
    foreign = ["stranger", "a-00", f"a-3.{HEX}-future", f"a-3.{HEX}-stray", f"a-3.{HEX}-delete", "a-4.moved"]
    for name in [*replicas, *foreign, "lost+found", "remote-log-index-cache", "__cluster_metadata-0"]:
        (here / name).mkdir()
    markers.write(here / replicas[-1], Marker(long.topic, 0))
    markers.write(here / "b.c-12.move", Marker("another", 12))
    (there / "a-0.move").mkdir()
    (here / "a-5").write_text("a file")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (here / "a-6").symlink_to(outside)
    (here / "dangling-0").symlink_to(tmp_path / "nowhere")
    before = tree(tmp_path)
    scanned = scan(two)
    assert tree(tmp_path) == before, "nothing is touched"
    found = {
        (kind, str(tp), copy.directory_id)
        for tp, one in scanned.found.items()
        for kind, copies in (("current", one.current), ("move", one.move), ("delete", one.deletes))
        for copy in copies
    }
    assert found == {
        ("current", "a-0", "id-a"),
        ("current", "a-6", "id-a"),
        ("current", "dangling-0", "id-a"),
        ("move", "a-0", "id-b"),
        ("delete", "a-1", "id-a"),
        ("delete", "a-2", "id-a"),
        ("current", str(long), "id-a"),
        ("delete", str(long), "id-a"),
    }
    why = {path.name: reason for path, reason in scanned.unknown.items()}
    assert sorted(why) == sorted([*foreign, "a-6", "dangling-0", "b.c-12.move"])
    assert (
        f"a-6 is a symlink to {outside}, and" in why["a-6"]
        and "Apache Kafka" in why[f"a-3.{HEX}-future"]
        and "marker" in why["b.c-12.move"]
    )


def test_directory_that_cannot_be_listed_goes_offline(two: list[LogDirectory], tmp_path: Path) -> None:
    (two[0].path / "a-0").mkdir()
    two[1].path.rename(tmp_path / "gone")
    assert list(scan(two).found) == [TopicPartition("a", 0)]
    assert [directory.online for directory in two] == [True, False]


def test_scan_distinguishes_a_folder_without_a_log_from_a_replica(two: list[LogDirectory]) -> None:
    here, there = (directory.path for directory in two)
    (here / "t-0").mkdir()
    (here / "t-0" / "partition.metadata").touch()
    (there / "t-0").mkdir()
    (there / "t-0" / f"{0:020d}.log").touch()
    first, second = scan(two).found[TopicPartition("t", 0)].current
    assert (first.unborn, second.unborn) == (True, False)
    assert (first.end, second.end) == (-1, -1), "nobody has looked where they end"


def test_replica_whose_creation_was_cut_off_gives_way_to_the_one_made_elsewhere(two: list[LogDirectory]) -> None:
    here, there = (directory.path for directory in two)
    tp = TopicPartition("t", 0)
    (here / "t-0").mkdir()
    (there / "t-0").mkdir()
    (there / "t-0" / f"{0:020d}.log").touch()
    plan = decide(scan(two).found[tp], frozenset(), "id-b")
    assert (plan.state, plan.path) == ("online", there / "t-0")
    apply(plan)
    assert not (here / "t-0").exists()
    assert decide(scan(two).found[tp], frozenset(), "id-b").path == there / "t-0"


def test_directory_that_cannot_be_looked_at_counts_as_missing(
    two: list[LogDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the error says nothing of the disk: what it holds must not count as gone."""
    (two[0].path / "a-0").mkdir()
    (two[1].path / "b-0").mkdir()
    real = markers.read

    def read(path: Path) -> Marker | None:
        if path.parent == two[1].path:
            raise MetadataIOError(two[1].name, "reading") from OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path)

    monkeypatch.setattr(markers, "read", read)
    assert list(scan(two).found) == [TopicPartition("a", 0)]
    assert [directory.online for directory in two] == [True, False]


def test_folder_that_goes_while_its_directory_is_looked_at_hides_no_other(
    two: list[LogDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = two[0].path
    for name in ("a-0", "b-0.move", f"c-0.{HEX}.delete", "d-0"):
        (here / name).mkdir()
    real = markers.read

    def read(path: Path) -> Marker | None:
        if path.name != "d-0":
            path.rmdir()
        return real(path)

    monkeypatch.setattr(markers, "read", read)
    assert list(scan(two).found) == [TopicPartition("d", 0)]
    assert all(directory.online for directory in two)
