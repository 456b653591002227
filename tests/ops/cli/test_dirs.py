"""`rehome dirs forget`: a disk that is gone for good, on the files of a stopped node."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.cli import dirs, nodes
from ops.cli import main as cli
from ops.cli.kafka_admin import NodeAddress
from storage_node.directories.formatting import format_directories, prepare
from storage_node.directories.meta import properties as meta_properties
from tests.support.nodes.node_harness import CLUSTER_ID, Harness, running


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[Harness, Path]:
    """A stopped node with three replicas, one per directory, and its server.properties; the second disk is wiped."""
    with running(tmp_path) as harness:
        harness.create_topic("t", 3)
        harness.settle()
    config = tmp_path / "server.properties"
    config.write_text(
        f"node.id=1\nlog.dirs={','.join(harness.paths)}\nlisteners=PLAINTEXT://127.0.0.1:0\n", encoding="utf-8"
    )
    return harness, config


def wipe(path: str) -> str:
    """Replace a disk by an empty one; return the id that is missing now."""
    disk = Path(path)
    found = meta_properties.read(path)
    assert found is not None and found.directory_id
    disk.rename(disk.with_name(f"{disk.name}-dead"))
    disk.mkdir()
    return found.directory_id


def listed(harness: Harness) -> list[set[str]]:
    """The ids that each meta.properties lists; none where there is no file."""
    found = [meta_properties.read(path) for path in harness.paths]
    return [set(each.directory_ids) if each is not None else set() for each in found]


def test_node_starts_with_a_new_disk_after_dirs_forget(
    stopped: tuple[Harness, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    harness, config = stopped
    gone = wipe(harness.paths[1])
    assert cli.run(["dirs", "forget", "1", gone, "--config", str(config), "--yes", "--json"]) == 0
    shown = capsys.readouterr()
    response = json.loads(shown.out)
    assert response["node"] == 1 and response["formatted"] == [harness.paths[1]]
    (lost,) = response["forgotten"]
    assert (lost["directory_id"], lost["path"]) == (gone, harness.paths[1])
    assert len(lost["lost_replicas"]) == 1 and lost["lost_replicas"][0] in shown.err
    assert lost["only_replicas"] == lost["lost_replicas"] and "so their records are lost" in shown.err
    assert all(len(ids) == 3 and gone not in ids for ids in listed(harness))
    harness.node = harness._new(0)
    harness.start()
    try:
        assert all(directory.online for directory in harness.node.dirs.directories)
        assert len(harness.node.replicas.served) == 2
    finally:
        harness.stop()


Replace = Callable[..., tuple[str, str]]


@pytest.fixture
def replace(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Returns what `dirs replace` of node 1 prints, and its error; nothing listens where it looks for the node."""
    monkeypatch.setattr(nodes, "addresses", lambda *_, **__: [NodeAddress(1, "127.0.0.1", 9)])

    def replace(*arguments: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        assert cli.run(["dirs", "replace", "1", *arguments, "--bootstrap-server", "127.0.0.1:9"]) == code
        shown = capsys.readouterr()
        return shown.out, shown.err

    return replace


def test_dirs_replace_on_a_stopped_node_formats_the_new_disk(stopped: tuple[Harness, Path], replace: Replace) -> None:
    harness, config = stopped
    at, others = harness.paths[1], (harness.paths[0], harness.paths[2])
    _, error = replace(at, "--config", str(config), "--yes", code=1)
    assert f"{at} has a disk with the directory id" in error and "empty it first" in error
    gone = wipe(at)
    _, error = replace(at, "--yes", code=1)
    assert f"if it is stopped, run on its machine: rehome dirs replace 1 {at} --config FILE" in error
    _, error = replace(at, "--config", str(config), code=2)
    assert "so their records are lost" in error and "--yes is required" in error
    _, error = replace(others[0], "--config", str(config), "--yes", code=1)
    assert f"{others[0]} has a disk with the directory id" in error
    out, _ = replace(at, "--config", str(config), "--yes")
    assert out == f"{at} has a new disk on node 1, with 0 replicas\n"
    assert all(len(ids) == 3 and gone not in ids for ids in listed(harness))
    _, error = replace("/nowhere", "--config", str(config), "--yes", code=1)
    assert f"/nowhere is not a log directory of node 1; its log.dirs are {harness.paths[0]}" in error


def test_dirs_replace_of_one_of_two_lost_disks_names_both(stopped: tuple[Harness, Path], replace: Replace) -> None:
    harness, config = stopped
    both = [wipe(path) for path in harness.paths[1:]]
    _, error = replace(harness.paths[1], "--config", str(config), "--yes", code=1)
    assert f"rehome dirs forget 1 {both[1]}" in error
    assert listed(harness)[1:] == [set(), set()], "nothing was formatted"


def test_dirs_replace_refuses_a_path_whose_former_disk_is_another(
    stopped: tuple[Harness, Path], replace: Replace
) -> None:
    harness, config = stopped
    gone = wipe(harness.paths[1])
    Path(harness.paths[1]).rmdir()
    new = config.with_name("new")
    new.mkdir()
    config.write_text(config.read_text().replace("log.dirs=", f"log.dirs={new},"), encoding="utf-8")
    _, error = replace(str(new), "--config", str(config), "--yes", code=1)
    assert f"the disk that was at {new} is unknown" in error and f"rehome dirs forget 1 {gone}" in error


def test_dirs_forget_keeps_a_metadata_directory_beside_log_dirs(
    stopped: tuple[Harness, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harness, config = stopped
    beside = tmp_path / "m"
    format_directories(harness.paths, CLUSTER_ID, 1, metadata=str(beside))
    config.write_text(f"{config.read_text()}metadata.log.dir={beside}\n", encoding="utf-8")
    metadata = meta_properties.read(beside)
    assert metadata is not None and metadata.directory_id
    code, message = fails(capsys, "1", metadata.directory_id, "--config", str(config), "--yes")
    assert code == 1 and f"{beside} has the directory id" in message
    gone = wipe(harness.paths[1])
    assert cli.run(["dirs", "forget", "1", gone, "--config", str(config), "--yes"]) == 0
    kept = meta_properties.read(beside)
    assert kept is not None and kept.directory_id == metadata.directory_id
    assert all(ids == set(kept.directory_ids) and len(ids) == 4 and gone not in ids for ids in listed(harness))


def test_dirs_forget_requires_all_lost_disks_at_once(
    stopped: tuple[Harness, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    harness, config = stopped
    both = [wipe(path) for path in harness.paths[1:]]
    assert cli.run(["dirs", "forget", "1", both[0], "--config", str(config), "--yes"]) == 1
    assert f"rehome dirs forget 1 {both[1]}" in capsys.readouterr().err
    assert cli.run(["dirs", "forget", "1", *both, "--config", str(config), "--yes"]) == 0
    assert all(len(ids) == 3 and not ids & set(both) for ids in listed(harness))


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.run(["dirs", "forget", *arguments])
    shown = capsys.readouterr()
    assert shown.out == "" and "Traceback" not in shown.err
    return code, shown.err.strip().splitlines()[-1]


def test_dirs_forget_without_confirmation_changes_nothing(
    stopped: tuple[Harness, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, config = stopped
    gone = wipe(harness.paths[1])
    before = listed(harness)
    code, message = fails(capsys, "1", gone, "--config", str(config))
    assert code == 2 and "--yes" in message
    monkeypatch.setattr(dirs.sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(dirs.typer, "confirm", lambda *_, **__: False)
    assert fails(capsys, "1", gone, "--config", str(config)) == (1, "error: nothing was changed")
    assert listed(harness) == before


def test_dirs_forget_of_an_invalid_id_fails(stopped: tuple[Harness, Path], capsys: pytest.CaptureFixture[str]) -> None:
    harness, config = stopped
    there = meta_properties.read(harness.paths[0])
    assert there is not None and there.directory_id
    code, message = fails(capsys, "1", there.directory_id, "--config", str(config), "--yes")
    assert code == 1 and f"{harness.paths[0]} has the directory id" in message
    code, message = fails(capsys, "1", "unknown", "--config", str(config), "--yes")
    assert code == 1 and "lists the directory id unknown; none is missing" in message
    code, message = fails(capsys, "2", "unknown", "--config", str(config), "--yes")
    assert code == 2 and "belongs to node 1, not to node 2" in message
    code, message = fails(capsys, "1", "unknown", "--config", str(config.with_name("none")), "--yes")
    assert code == 1 and "cannot be read" in message
    code, message = fails(capsys, "1", "unknown", "--data", str(config.parent), "--yes")
    assert code == 1 and "there is no stack" in message


def test_running_node_is_left_alone(stopped: tuple[Harness, Path], capsys: pytest.CaptureFixture[str]) -> None:
    harness, config = stopped
    gone = wipe(harness.paths[1])
    Path(harness.paths[1]).rmdir()  # a disk that is not there: the node starts without it
    prepared = prepare(harness.paths, node_id=1)
    try:
        code, message = fails(capsys, "1", gone, "--config", str(config), "--yes")
    finally:
        for lock in prepared.locks.values():
            lock.release()
    assert code == 1 and "is in use by process" in message
    assert all(gone in ids for ids in listed(harness) if ids)
