"""A node on folders that are not its own, or not formatted: refused, with a line for each of them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage_node.directories.errors import StartRefused
from storage_node.directories.formatting import format_directories, prepare
from storage_node.directories.meta import properties as meta_properties
from storage_node.node import Node
from tests.support.io_faults import install
from tests.support.nodes.local_controller import LocalController
from tests.support.nodes.node_harness import CLUSTER_ID, make_config, make_dirs

ROOT = Path(__file__).parents[3]


def start(dirs: list[str], **extra: str) -> Node:
    node = Node(make_config(dirs, extra=extra), LocalController(CLUSTER_ID))
    node.start()
    return node


def refusal(dirs: list[str], **extra: str) -> tuple[str, dict[str, str]]:
    """The first line of a refused start, and what it says of each directory."""
    with pytest.raises(StartRefused) as refused:
        start(dirs, **extra).stop()
    return str(refused.value).split("\n")[0], {problem.path: str(problem) for problem in refused.value.problems}


@pytest.mark.feature("858-06", "858-14")
@pytest.mark.conformance(126)
def test_unformatted_folders(tmp_path: Path) -> None:
    dirs = [str(tmp_path / name) for name in ("a", "b", "c")]
    for path in dirs[:2]:
        Path(path).mkdir()
    first, told = refusal(dirs)
    assert first == "node 1 does not start: 3 of 3 directories cannot be used as they are"
    assert list(told) == dirs and all("rehome storage format -t CLUSTER_ID" in each for each in told.values())
    assert all(not list(Path(path).iterdir()) for path in dirs[:2]) and not Path(dirs[2]).exists()
    format_directories(dirs, CLUSTER_ID, 1)
    start(dirs).stop()


@pytest.mark.conformance(113, 124, 125)
def test_folders_of_other_nodes_and_clusters_among_ones_own(tmp_path: Path) -> None:
    own = make_dirs(tmp_path / "own", 2)
    (other_node,) = make_dirs(tmp_path / "other", 1, node=2)
    other_cluster = str(tmp_path / "third" / "d")
    format_directories([other_cluster], "another", 1)
    new = str(tmp_path / "new" / "d")
    dirs = [own[0], other_node, other_cluster, own[1], new]
    before = [meta_properties.read(path) for path in dirs[:4]]
    first, told = refusal(dirs)
    assert first == "node 1 does not start: 2 of 5 directories cannot be used as they are"
    assert told.keys() == {other_node, other_cluster}
    assert "Stored node id 2 doesn't match previous node id 1" in told[other_node]
    assert f"Expected {CLUSTER_ID}, but read another ({own[0]}/meta.properties has" in told[other_cluster]
    assert [meta_properties.read(path) for path in dirs[:4]] == before and not Path(new).exists()
    assert not list(Path(other_node).glob(".lock"))
    node = start([own[0], own[1], new])
    assert all(directory.online for directory in node.dirs.directories)
    node.stop()


@pytest.mark.feature("858-06")
def test_metadata_directory_beside_log_dirs_is_looked_at(tmp_path: Path) -> None:
    dirs = make_dirs(tmp_path, 2)
    beside = tmp_path / "m"
    first, told = refusal(dirs, **{"metadata.log.dir": str(beside)})
    assert told.keys() == {str(beside)} and "does not exist" in first
    format_directories(dirs, CLUSTER_ID, 1, metadata=str(beside))
    node = start(dirs, **{"metadata.log.dir": str(beside)})
    try:
        assert (beside / ".lock").exists()
        assert [directory.name for directory in node.dirs.directories] == dirs
        assert node.dirs.missing_ids() == frozenset()
    finally:
        node.stop()
    assert [each.name for each in beside.iterdir()] == ["meta.properties"]


@pytest.mark.conformance(80)
def test_path_that_cannot_be_a_directory_is_offline_and_the_others_serve(tmp_path: Path) -> None:
    dirs = make_dirs(tmp_path, 2)
    (tmp_path / "file").write_text("")
    node = start([*dirs, str(tmp_path / "file" / "d")])
    try:
        assert [directory.online for directory in node.dirs.directories] == [True, True, False]
        assert "Not a directory" in (node.dirs.directories[2].failure or "")
    finally:
        node.stop()


@pytest.mark.conformance(81)
def test_read_only_directory_is_offline_and_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dirs = make_dirs(tmp_path, 3)
    faults = install(monkeypatch)
    for name in (".lock", "*.tmp", "health-check*"):
        faults.fail("open", f"{dirs[1]}/{name}", errno.EROFS)
    node = start(dirs)
    try:
        assert [directory.online for directory in node.dirs.directories] == [True, False, True]
        assert "Read-only file system" in (node.dirs.directories[1].failure or "")
        faults.clear()
        (others,) = prepare([dirs[1]], node_id=1).locks.values()
        others.release()
    finally:
        node.stop()


def test_process_says_it_and_ends_with_1(tmp_path: Path) -> None:
    dirs = [str(tmp_path / "a"), str(tmp_path / "b")]
    config = tmp_path / "server.properties"
    config.write_text(f"node.id=1\nlog.dirs={','.join(dirs)}\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "worker.py"), "node", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    first, *lines = done.stderr.splitlines()[-3:]
    assert first == "node 1 does not start: 2 of 2 directories cannot be used as they are"
    assert [line.split(": ")[0].strip() for line in lines] == dirs
