"""Log directories of a running node are replaced, added and removed on the operator's command."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ops.disks import scanning
from ops.disks.verdict import Kind, verdict
from storage_node import failpoints
from storage_node.directories.formatting import format_directories
from storage_node.directories.meta import properties as meta_properties
from storage_node.errors import LogDirNotFound, RequestRefused
from storage_node.model.ids import TopicPartition
from storage_node.move.status import MoveState
from tests.support.nodes.node_harness import Harness, removed, replaced, running, until

TP = TopicPartition("t", 1)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    with running(tmp_path, dirs=2, extra={"log.dir.health.check.interval.ms": "100"}) as made:
        made.create_topic("t", 2)
        made.settle()
        yield made


def listed(harness: Harness) -> list[set[str]]:
    """The ids that each meta.properties lists."""
    found = [meta_properties.read(directory.path) for directory in harness.node.dirs.directories]
    return [set(each.directory_ids) for each in found if each is not None]


@pytest.mark.feature("858-05")
@pytest.mark.parametrize("which", [0, 1])
def test_replaced_disk_takes_its_place_in_the_order_of_log_dirs(harness: Harness, which: int) -> None:
    bad = harness.paths[which]
    replaced(bad)
    until(lambda: not harness.node.dirs.by_path(bad).online)
    harness.node.directory_changes.replace(bad)
    ids = tuple(directory.id for directory in harness.node.dirs.directories)
    found = [meta_properties.read(path) for path in harness.paths]
    assert [each.directory_ids for each in found if each is not None] == [ids, ids]
    assert harness.node.dirs.directory_ids == ids
    judged = verdict(scanning.look(harness.paths), node_id=1, metadata=harness.paths[0])
    assert not any(problem.kind is Kind.SWAPPED for problem in judged.problems)


@pytest.mark.feature("113-54")
def test_empty_disk_replaces_one_that_failed(harness: Harness) -> None:
    changes, bad, good = harness.node.directory_changes, harness.directory_of("t", 1), harness.directory_of("t", 0)
    before = harness.node.dirs.by_path(bad).id
    with pytest.raises(RequestRefused, match="is online; only one that failed is replaced"):
        changes.replace(bad)
    replaced(bad)
    until(lambda: not harness.node.dirs.by_path(bad).online)
    assert changes.losses(bad) == {
        "path": bad, "id": before, "online": False, "replicas": ["t-1"], "in_sync": ["t-1"], "alone": ["t-1"],
    }  # fmt: skip
    found = changes.replace(bad)
    assert (found["outcome"], found["replicas"]) == ("replaced", 0) and found["id"] != before
    ids = {directory.id for directory in harness.node.dirs.directories}
    assert before not in ids and listed(harness) == [ids, ids]
    assert [each.id for each in harness.controller.image.nodes[1].directories if each.online].count(found["id"]) == 1
    assert harness.node.dirs.missing_ids() == frozenset()
    harness.node.preferred_log_dirs.remember([(TopicPartition("u", 0), harness.node.dirs.by_path(bad))])
    harness.create_topic("u", 1)
    assert harness.directory_of("u") == bad
    harness.produce("u", [b"x"])
    harness.restart()
    assert harness.directory_of("u") == bad and harness.directory_of("t", 0) == good
    assert [message.value() for message in harness.consume("u", 1)] == [b"x"]


def test_disk_that_failed_is_no_replacement(harness: Harness) -> None:
    bad = harness.directory_of("t", 1)
    there = Path(bad)
    gone = there.rename(there.with_name("pulled-out"))
    until(lambda: not harness.node.dirs.by_path(bad).online)
    gone.rename(there)
    with pytest.raises(RequestRefused, match=f"it is the disk that failed, .*run: rehome dirs online 1 {bad}"):
        harness.node.directory_changes.replace(bad)
    assert harness.node.directory_changes.bring_online(bad)["replicas"] == 1
    assert list((there / "t-1").iterdir()), "nothing was touched"


def test_disk_with_replicas_but_without_its_file_is_not_formatted(harness: Harness) -> None:
    bad = harness.directory_of("t", 1)
    replaced(bad)
    (Path(bad) / "orders-0").mkdir()
    until(lambda: not harness.node.dirs.by_path(bad).online)
    with pytest.raises(RequestRefused, match="holds replicas; restore that file, or empty it"):
        harness.node.directory_changes.replace(bad)


@pytest.mark.feature("858-11")
@pytest.mark.parametrize("exists", [True, False])
def test_directory_is_added(harness: Harness, tmp_path: Path, exists: bool) -> None:
    new = tmp_path / "new" / "disk"
    if exists:
        new.mkdir(parents=True)
    changes = harness.node.directory_changes
    found = changes.add(str(new))
    assert (found["outcome"], found["log_dirs"]) == ("added", [*harness.paths, str(new)])
    assert changes.add(str(new))["outcome"] == "online", "a second request changes nothing"
    assert listed(harness) == [{directory.id for directory in harness.node.dirs.directories}] * 3
    until(lambda: len(harness.controller.image.nodes[1].directories) == 3)
    target = str(new)
    claim = harness.node.engine.create(TP, target, owner="a-run").claim
    harness.node.engine.start_copy(TP, claim)
    assert harness.node.engine.wait(TP, claim, 20).state is MoveState.CAUGHT_UP
    assert harness.node.engine.swap(TP, claim).outcome == "swapped"
    assert harness.directory_of("t", 1) == target
    new.rename(new.with_name("pulled-out"))
    until(lambda: not harness.node.dirs.by_path(target).online)
    new.with_name("pulled-out").rename(new)
    harness.paths.append(target)
    harness.restart()
    assert harness.directory_of("t", 1) == target


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("relative", "'relative' is not an absolute path"),
        ("a,/disks/b", "/a,/disks/b' cannot be a log directory: log.dirs is a list"),
        ("a\nb", "cannot be a log directory"),
        ("a ", "/a ' cannot be a log directory"),
        ("inside", "lies inside the log directory"),
        ("foreign", "it belongs to node 7 of cluster other"),
        ("file", "is not online: "),
    ],
)
def test_directory_that_is_unusable_is_not_added(harness: Harness, tmp_path: Path, where: str, says: str) -> None:
    paths = {
        "relative": "relative",
        "inside": f"{harness.paths[0]}/inside",
        "foreign": str(tmp_path / "foreign"),
        "file": str(tmp_path / "file"),
    }
    format_directories([tmp_path / "foreign"], "other", 7)
    (tmp_path / "file").write_text("not a directory")
    before = listed(harness)
    with pytest.raises(RequestRefused, match=says):
        harness.node.directory_changes.add(paths.get(where, f"{tmp_path}/{where}"))
    assert len(harness.node.dirs.directories) == 2 and listed(harness) == before
    assert not (Path(harness.paths[0]) / "inside").exists()


def test_empty_directory_is_removed(harness: Harness, tmp_path: Path) -> None:
    changes = harness.node.directory_changes
    new = str(tmp_path / "new")
    changes.add(new)
    with pytest.raises(RequestRefused, match=r"still holds 1 replicas, t-1 for example; move them"):
        changes.remove(harness.directory_of("t", 1))
    assert [each.name for each in harness.node.dirs.directories] == [*harness.paths, new], "nothing was changed"
    harness.node.engine.create(TP, new, owner="a-run")
    with pytest.raises(RequestRefused, match="still holds 1 replicas"):
        changes.remove(new)
    harness.node.engine.cancel(TP)
    until(lambda: not any(path.is_dir() for path in Path(new).iterdir()))
    found = changes.remove(new)
    assert (found["outcome"], sorted(found["log_dirs"])) == ("removed", sorted(harness.paths))
    assert listed(harness) == [{directory.id for directory in harness.node.dirs.directories}] * 2
    with pytest.raises(LogDirNotFound):
        changes.remove(new)
    until(lambda: len(harness.controller.image.nodes[1].directories) == 2)
    until(lambda: not (Path(new) / ".lock").exists())  # a thread of its own closes it
    removed(new)
    harness.restart()
    assert {harness.directory_of("t", 0), harness.directory_of("t", 1)} == set(harness.paths)


def test_last_directory_and_an_offline_one_are_not_removed(harness: Harness) -> None:
    changes = harness.node.directory_changes
    harness.node.dirs.by_path(harness.paths[0]).fail("an error")
    with pytest.raises(RequestRefused, match="is offline, and what it holds is unknown"):
        changes.remove(harness.paths[0])
    with pytest.raises(RequestRefused, match="is the last one of node 1 that is online"):
        changes.remove(harness.paths[1])


def test_metadata_is_applied_after_the_target_of_an_ended_move_was_removed(harness: Harness, tmp_path: Path) -> None:
    changes, new = harness.node.directory_changes, str(tmp_path / "new")
    changes.add(new)
    harness.node.engine.create(TP, new, owner="a-run")
    harness.node.engine.cancel(TP)
    until(lambda: not any(path.is_dir() for path in Path(new).iterdir()))
    changes.remove(new)
    harness.delete_topic("t")
    until(lambda: TP not in harness.node.replicas.served, 10, "its replica is deleted")
    harness.create_topic("u", 1)
    harness.produce("u", [b"x"])


def test_directory_into_which_a_move_is_being_created_is_not_removed(harness: Harness, tmp_path: Path) -> None:
    changes, new = harness.node.directory_changes, str(tmp_path / "new")
    changes.add(new)
    claimed, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        claimed.set()
        go_on.wait(30)

    with failpoints.active({"create.after_claim": hold}), ThreadPoolExecutor(1) as beside:
        creating = beside.submit(harness.node.engine.create, TP, new, owner="a-run")
        try:
            assert claimed.wait(30)
            with pytest.raises(RequestRefused, match=f"a move into {new} is being created"):
                changes.remove(new)
        finally:
            go_on.set()
        assert creating.result(30).directory == new
    harness.node.engine.cancel(TP)
    assert harness.node.dirs.by_path(new).online


def test_clone_of_another_disk_is_no_replacement(harness: Harness) -> None:
    bad, good = harness.directory_of("t", 1), harness.directory_of("t", 0)
    replaced(bad)
    until(lambda: not harness.node.dirs.by_path(bad).online)
    shutil.copy(Path(good) / meta_properties.FILE, bad)
    with pytest.raises(RequestRefused, match="is reserved or used by another directory"):
        harness.node.directory_changes.replace(bad)
    (Path(bad) / meta_properties.FILE).unlink()
    assert harness.node.directory_changes.replace(bad)["outcome"] == "replaced"
