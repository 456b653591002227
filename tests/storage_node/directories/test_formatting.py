"""Formatting and starting with real directories."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories import layout
from storage_node.directories.errors import DirectoryInUse, StartRefused
from storage_node.directories.formatting import format_directories, prepare
from storage_node.directories.layout import PathFacts
from storage_node.directories.lock import DirectoryLock
from storage_node.directories.meta import properties as meta_properties
from storage_node.directories.meta.ensemble import EnsembleDecision
from tests.support.needs import needs_root

CLUSTER = "test-cluster"


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in ("d1", "d2", "d3")]


def files(dirs: list[Path]) -> list[bytes]:
    return [(d / "meta.properties").read_bytes() for d in dirs]


def start(dirs: list[Path], node_id: int = 1) -> EnsembleDecision:
    prepared = prepare(dirs, node_id=node_id)
    for lock in prepared.locks.values():
        lock.release()
    return prepared.decision


@pytest.mark.conformance(125)
@pytest.mark.feature("858-01", "858-02", "858-04", "858-05")
def test_format_then_start(dirs: list[Path]) -> None:
    result = format_directories(dirs, CLUSTER, 1)
    assert result.formatted == tuple(map(str, dirs)) and result.kept == ()
    ids = dict(result.ids)
    for d in dirs:
        properties = meta_properties.read(d)
        assert properties is not None and properties.version == 2
        assert (properties.cluster_id, properties.node_id) == (CLUSTER, 1)
        assert properties.directory_id == ids[str(d)]
        assert set(properties.directory_ids) == set(ids.values())
        assert [p.name for p in d.iterdir()] == ["meta.properties"]
    before = files(dirs)
    again = format_directories(dirs, CLUSTER, 1)
    assert again.formatted == () and again.ids == result.ids
    assert start(dirs).ids == result.ids
    assert files(dirs) == before


@pytest.mark.feature("858-11")
def test_directory_added_later_is_formatted_at_the_start(dirs: list[Path]) -> None:
    format_directories(dirs[:2], CLUSTER, 1)
    dirs[2].mkdir()
    decided = start(dirs)
    assert decided.formatted == (str(dirs[2]),)
    assert {meta_properties.decode(data).directory_ids for data in files(dirs)} == {decided.directory_ids}


def test_empty_directory_where_a_disk_was_mounted_stops_the_start(dirs: list[Path], tmp_path: Path) -> None:
    format_directories(dirs, CLUSTER, 1)
    dirs[1].rename(tmp_path / "unmounted")
    dirs[1].mkdir()
    with pytest.raises(StartRefused, match=rf"{dirs[1]} may be a disk that is not mounted"):
        start(dirs)
    assert list(dirs[1].iterdir()) == []
    with pytest.raises(StartRefused, match="not mounted"):
        format_directories(dirs, CLUSTER, 1)
    dirs[1].rmdir()
    (tmp_path / "unmounted").rename(dirs[1])
    assert start(dirs).missing_ids == frozenset()


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.feature("858-07")
def test_directories_of_apache_kafka_are_completed(dirs: list[Path], version: int) -> None:
    key = "broker.id" if version == 0 else "node.id"
    for d in dirs:
        d.mkdir()
        (d / "meta.properties").write_text(f"#\n#Fri Nov 20\nversion={version}\ncluster.id={CLUSTER}\n{key}=1\n")
    decided = start(dirs)
    for d in dirs:
        properties = meta_properties.read(d)
        assert properties is not None and (properties.version, properties.node_id) == (2, 1)
        assert properties.directory_ids == decided.directory_ids and len(set(properties.directory_ids)) == 3


@pytest.mark.parametrize("version", [0, 1])
def test_upgraded_node_gets_further_log_dirs_once_its_own_file_is_rewritten(dirs: list[Path], version: int) -> None:
    """A node with one directory is started by this version, and later again with several in log.dirs."""
    key = "broker.id" if version == 0 else "node.id"
    dirs[0].mkdir()
    (dirs[0] / "meta.properties").write_text(f"#\n#Fri Nov 20\nversion={version}\ncluster.id={CLUSTER}\n{key}=1\n")
    upgraded = start(dirs[:1])
    own = meta_properties.read(dirs[0])
    assert own is not None and (own.version, own.node_id, own.cluster_id) == (2, 1, CLUSTER)
    assert own.directory_id and own.directory_ids == upgraded.directory_ids == (own.directory_id,)
    decided = start(dirs)
    assert decided.formatted == (str(dirs[1]), str(dirs[2])) and decided.missing_ids == frozenset()
    found = [meta_properties.decode(data) for data in files(dirs)]
    assert found[0].directory_id == own.directory_id, "replicas are assigned to it by this id"
    assert {(each.version, each.node_id, each.cluster_id) for each in found} == {(2, 1, CLUSTER)}
    assert {each.directory_ids for each in found} == {decided.directory_ids}
    assert set(decided.directory_ids) == {each.directory_id for each in found} and len(set(decided.directory_ids)) == 3
    before = files(dirs)
    assert start(dirs).ids == decided.ids and files(dirs) == before


@pytest.mark.conformance(80, 113, 124)
def test_other_directories_in_error_are_offline(dirs: list[Path], tmp_path: Path) -> None:
    format_directories(dirs, CLUSTER, 1)
    ids = {d: meta_properties.decode(data).directory_id for d, data in zip(dirs, files(dirs), strict=True)}
    (dirs[1] / "meta.properties").write_text("version=9\n")
    (dirs[2] / "meta.properties").unlink()
    (dirs[2] / "meta.properties").mkdir()
    decided = start(dirs)
    assert [path for path, _ in decided.ids] == [str(dirs[0])]
    reasons = dict(decided.offline)
    assert "unknown version 9" in reasons[str(dirs[1])]
    assert "not a regular file" in reasons[str(dirs[2])]
    assert decided.missing_ids == {ids[dirs[1]], ids[dirs[2]]}
    assert dict(start([dirs[1], dirs[0]]).offline).keys() == {str(dirs[1])}, "the first is one like the others"
    with pytest.raises(StartRefused, match="cannot be used"):
        start(dirs[1:])


@pytest.mark.conformance(80)
def test_file_in_place_of_a_directory_is_offline(dirs: list[Path]) -> None:
    format_directories(dirs[:2], CLUSTER, 1)
    dirs[2].write_text("a file")
    assert start(dirs).offline == ((str(dirs[2]), "it is not a directory"),)


@pytest.mark.conformance(81)
def test_directory_that_cannot_be_locked_is_offline_and_holds_no_lock(dirs: list[Path]) -> None:
    format_directories(dirs, CLUSTER, 1)
    (dirs[1] / ".lock").mkdir()
    prepared = prepare(dirs, node_id=1)
    try:
        assert [path for path, _ in prepared.decision.offline] == [str(dirs[1])]
        assert sorted(prepared.locks) == [str(dirs[0]), str(dirs[2])]
    finally:
        for lock in prepared.locks.values():
            lock.release()


@pytest.mark.conformance(81)
@pytest.mark.root
@needs_root
def test_read_only_directory_is_offline_and_holds_no_lock(dirs: list[Path], request: pytest.FixtureRequest) -> None:
    dirs[1].mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", dirs[1]], check=True, capture_output=True)
    request.addfinalizer(lambda: subprocess.run(["umount", "-l", dirs[1]], check=True))
    format_directories(dirs, CLUSTER, 1)
    subprocess.run(["mount", "-o", "remount,ro", dirs[1]], check=True, capture_output=True)
    prepared = prepare(dirs, node_id=1)
    try:
        assert sorted(prepared.locks) == [str(dirs[0]), str(dirs[2])]
        ((path, reason),) = prepared.decision.offline
        assert path == str(dirs[1]) and "Read-only file system" in reason
        assert not (dirs[1] / ".lock").exists()
    finally:
        for lock in prepared.locks.values():
            lock.release()


def test_write_error_takes_that_directory_offline_and_the_others_start(dirs: list[Path]) -> None:
    format_directories(dirs[:2], CLUSTER, 1)
    with failpoints.active({"meta_properties.written": "raise@1"}, flags=dirs[0].parent):
        decided = start(dirs)
    assert [path for path, _ in decided.offline] == [str(dirs[2])]
    assert decided.missing_ids == frozenset()
    assert start(dirs).formatted == (str(dirs[2]),)


@pytest.mark.feature("858-03")
def test_format_with_a_bad_directory_writes_nothing(dirs: list[Path]) -> None:
    dirs[1].write_text("a file")
    with pytest.raises(StartRefused, match="not a directory"):
        format_directories(dirs, CLUSTER, 1)
    assert not dirs[0].exists() and not dirs[2].exists()


@pytest.mark.parametrize("step", ["meta_properties.flushed", "meta_properties.renamed", "atomic.fsync_dir"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_format_that_failed_half_way_is_finished_by_the_next(dirs: list[Path], step: str, nth: int) -> None:
    with failpoints.active({step: f"raise@{nth}"}), pytest.raises(StartRefused, match="Input/output error"):
        format_directories(dirs, CLUSTER, 1)
    result = format_directories(dirs, CLUSTER, 1)
    decided = start(dirs)
    assert decided.missing_ids == frozenset() and decided.writes == () and decided.ids == result.ids


def test_nothing_is_touched_under_a_running_node(dirs: list[Path]) -> None:
    format_directories(dirs[:2], CLUSTER, 1)
    before = files(dirs[:2])
    lock = DirectoryLock(dirs[1])
    lock.acquire()
    try:
        for attempt in (lambda: start(dirs), lambda: format_directories(dirs, CLUSTER, 1)):
            with pytest.raises(DirectoryInUse, match=r"d2 is in use by process \d+"):
                attempt()
        assert files(dirs[:2]) == before and not dirs[2].exists()
    finally:
        lock.release()
    start(dirs)


@pytest.mark.conformance(125)
def test_wrong_node_or_cluster_refuses_the_start(dirs: list[Path]) -> None:
    format_directories(dirs, CLUSTER, 1)
    with pytest.raises(StartRefused, match=r"node 2 does not start: 3 of 3(.|\n)*Stored node id 1 doesn't"):
        start(dirs, node_id=2)
    with pytest.raises(StartRefused, match=f"Expected another, but read {CLUSTER}"):
        prepare(dirs, node_id=1, cluster_id="another")


@pytest.mark.conformance(129)
@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ([], "log.dirs is empty"),
        ([PathFacts("/a", "/a"), PathFacts("/b", "/a")], "/a and /b in log.dirs are the same directory"),
        ([PathFacts("/a", "/a"), PathFacts("/a/b", "/a/b")], "/a/b .* lies inside the log directory /a"),
        ([PathFacts("/x", "/a/b/c"), PathFacts("/a", "/a")], "/x .* lies inside the log directory /a"),
    ],
)
def test_paths_that_cannot_be_used_together(facts: list[PathFacts], message: str) -> None:
    with pytest.raises(StartRefused, match=f"node 1 does not start: .*{message}"):
        layout.check(facts, "node 1 does not start")


def test_names_that_only_begin_alike_are_fine() -> None:
    layout.check([PathFacts("/a", "/a"), PathFacts("/ab", "/ab")], "")


def test_paths_are_resolved_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d1").mkdir()
    (tmp_path / "elsewhere" / "d2").mkdir(parents=True)
    (tmp_path / "beside").symlink_to("d1")
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere" / "d2")
    monkeypatch.chdir(tmp_path)
    d1 = str(tmp_path / "d1")
    assert layout.look(["d1/", "./x/../d1", "beside"]) == [
        PathFacts(d1, d1),
        PathFacts(d1, d1),
        PathFacts(str(tmp_path / "beside"), d1),
    ]
    assert layout.look(["out"]) == [PathFacts(str(tmp_path / "out"), str(tmp_path / "elsewhere" / "d2"))]
    with pytest.raises(StartRefused, match="the same directory"):
        start([tmp_path / "d1", tmp_path / "beside"])


def test_symlink_to_nothing_is_refused_by_its_name(tmp_path: Path, dirs: list[Path]) -> None:
    (tmp_path / "crypt").symlink_to(tmp_path / "nowhere")
    for attempt in (
        lambda: start([*dirs, tmp_path / "crypt"]),
        lambda: format_directories([tmp_path / "crypt"], "c", 1),
    ):
        with pytest.raises(StartRefused, match=r"it is a symlink to .*/nowhere, which does not exist"):
            attempt()
    assert not (tmp_path / "nowhere").exists()
