"""A `.delete` goes when it is due, not before, and never as the last good copy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.errors import MetadataIOError
from storage_node.log.config import LogConfig
from storage_node.replicas import marker as markers
from storage_node.replicas.deletion import Deletion, Deletions, remove, wall_clock_ms
from storage_node.replicas.marker import Marker, Reason, State
from tests.storage_node.move.harness import TP, SmallNode, eventually

NAME = "t-0." + "0" * 32 + ".delete"
OTHER = "t-0." + "1" * 32 + ".delete"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SmallNode]:
    node = SmallNode(tmp_path, config=LogConfig(file_delete_delay_ms=60_000))
    yield node
    node.close()


def left(node: SmallNode, generation: int = 0, name: str = NAME) -> Deletion:
    """A source that a swap left behind in `a`."""
    path = node.dir("a").path / name
    path.mkdir()
    (path / "00000000000000000000.log").write_bytes(b"x")
    (path / "folder").mkdir()
    markers.write(path, Marker("t", 0, state=State.DELETED, reason=Reason.SWAP, generation=generation))
    return Deletion(TP, path, node.dir("a"), generation, 0, True)


@pytest.mark.feature("113-16", "113-24")
def test_it_is_deleted_when_it_is_due(node: SmallNode) -> None:
    now = [0]
    deletions = Deletions(node, lambda: now[0])
    node.add(where="b").generation = 1
    deletion = left(node)
    deletion.due_ms = 5000
    deletions.schedule(deletion)
    deletions.schedule(Deletion(TP, deletion.path, deletion.directory, 0, 0, False))  # the same once more
    assert deletions.seconds_until_gone(TP, 1) == 5.0
    assert deletion.path.exists()
    now[0] = 5000
    assert deletions.seconds_until_gone(TP, 1) == 0.0
    assert not deletion.path.exists() and deletions.pending() == []
    assert deletions.seconds_until_gone(TP, 1) == 0.0
    deletions.close()


@pytest.mark.parametrize("replica", ["none", "older", "offline"])
def test_last_good_copy_stays(replica: str, node: SmallNode) -> None:
    deletion = left(node, generation=3)
    if replica != "none":
        node.add(where="b").generation = 4 if replica == "offline" else 3
    if replica == "offline":
        node.dir("b").fail("gone")
    deletions = Deletions(node, lambda: 10_000)
    deletions.schedule(deletion)
    assert deletions.seconds_until_gone(TP, 0) > 0
    assert deletion.path.exists()
    deletions.close()


def test_what_a_removal_left_is_no_copy_any_more(node: SmallNode) -> None:
    node.add(where="b").generation = 1
    deletion = left(node)
    with failpoints.active({"delete.after_files": "raise"}), pytest.raises(MetadataIOError):
        remove(deletion)
    marker = markers.read(deletion.path)
    assert marker is not None and marker.reason == Reason.REMOVING
    assert [entry.name for entry in deletion.path.iterdir()] == ["partition.move"]
    remove(deletion)
    remove(deletion)  # nothing is there any more, which is what was wanted
    assert not deletion.path.exists()


@pytest.mark.parametrize("what", ["files", "marker"])
def test_removal_that_failed_is_tried_again_without_a_restart(what: str, node: SmallNode) -> None:
    """Something that was put into the folder while it went, say: the disk is well, and the next try succeeds."""
    node.add(where="b").generation = 1
    deletion, other = left(node), left(node, name=OTHER)
    deletions = Deletions(node, wall_clock_ms)
    stray = [deletion.path / "stray"]

    def put() -> None:
        if stray:
            stray.pop().touch()

    with failpoints.active({f"delete.after_{what}": put if what == "files" else "raise"}) as armed:
        deletions.schedule(deletion)
        assert armed.wait_hit(f"delete.after_{what}", 1)
    deletions.schedule(other)
    eventually(lambda: deletions.pending() == [])
    assert not deletion.path.exists() and not other.path.exists() and node.dir("a").online
    deletions.close()


def test_in_a_directory_that_was_lost_it_is_left_to_a_start(node: SmallNode) -> None:
    node.add(where="b").generation = 1
    deletion = left(node)
    deletions = Deletions(node, wall_clock_ms)

    def lose() -> None:
        node.dir("a").fail("gone")
        raise MetadataIOError(str(node.dir("a").path), "removing") from OSError(errno.EIO, "Input/output error")

    with failpoints.active({"delete.after_files": lose}):
        deletions.schedule(deletion)
        eventually(lambda: deletions.pending() == [])
    assert deletion.path.exists()
    deletions.close()


def test_symlinks_are_not_followed(node: SmallNode, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    deletion = left(node)
    (deletion.path / "link").symlink_to(outside)
    (deletion.path / "folder" / "link").symlink_to(outside)
    remove(deletion)
    assert (outside / "precious").exists() and not deletion.path.exists()


@pytest.mark.feature("113-24")
def test_restart_counts_from_what_the_marker_says(tmp_path: Path) -> None:
    now = wall_clock_ms()
    node = SmallNode(tmp_path, config=LogConfig(file_delete_delay_ms=500), now_ms=lambda: now)
    node.add()
    node.move("b")
    node.close()
    assert node.listing()["a"] == ["t-0.delete"]
    node = SmallNode(tmp_path, config=LogConfig(file_delete_delay_ms=3_600_000))
    assert node.engine.delete_now_if_due(TP, 1) <= 0.5
    eventually(lambda: node.listing()["a"] == [])
    node.close()


def test_start_after_the_clock_was_set_back_waits_no_longer_than_the_delay(tmp_path: Path) -> None:
    node = SmallNode(tmp_path, config=LogConfig(file_delete_delay_ms=3_600_000))
    node.add()
    node.move("b")
    node.close()
    node = SmallNode(tmp_path, config=LogConfig(file_delete_delay_ms=500))
    assert node.engine.delete_now_if_due(TP, 1) <= 0.5
    eventually(lambda: node.listing() == {"a": [], "b": ["t-0"]})
    node.close()


def test_clock_that_jumps_ahead_takes_no_last_copy(node: SmallNode) -> None:
    now = [0]
    deletions = Deletions(node, lambda: now[0])
    deletion = left(node, generation=3)
    deletion.due_ms = 60_000
    deletions.schedule(deletion)
    now[0] = 1 << 45  # a thousand years
    assert deletions.seconds_until_gone(TP, 4) > 0 and deletion.path.exists()
    node.add(where="b").generation = 4
    eventually(lambda: deletions.seconds_until_gone(TP, 4) == 0.0 and not deletion.path.exists())
    deletions.close()
