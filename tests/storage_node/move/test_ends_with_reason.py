"""Moments in which a move used to end without its reason, or a removal was forgotten."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories.atomic import NoRoom
from storage_node.errors import MetadataIOError, UnknownTopicOrPartition
from storage_node.model.moves import MoveState
from storage_node.replicas import deletion
from storage_node.replicas import marker as markers
from storage_node.replicas.marker import Marker
from tests.storage_node.move.harness import TP, SmallNode, eventually
from tests.support.nodes.node_harness import running
from tests.support.wire import Client


@pytest.mark.parametrize("which", ["a", "b"])
def test_directory_that_fails_in_the_moment_the_copy_has_caught_up(tmp_path: Path, which: str) -> None:
    node = SmallNode(tmp_path)
    node.add()
    node.fill(10)
    claim = node.engine.create(TP, node.path("b"), owner="run").claim
    with failpoints.active({"copy.caught_up": lambda: node.dir(which).fail("the disk died")}):
        node.engine.start_copy(TP, claim)
        node.engine.wait(TP, claim, 10)

    def reason() -> str:
        status = node.engine.status(TP)
        assert status is not None
        return status.message if status.state is MoveState.FAILED and status.error == "LogDirOffline" else ""

    eventually(lambda: "the disk died" in reason() and node.path(which) in reason())
    node.close()


def test_removal_that_finds_no_room_for_its_marker_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = SmallNode(tmp_path)
    node.add()
    node.fill(10)
    tried: list[Path] = []
    real = markers.write_in_any_case

    def no_room(path: Path, marker: Marker) -> bool:
        if path.suffix != ".delete":
            return real(path, marker)
        tried.append(path)
        if len(tried) < 3:
            raise MetadataIOError(node.path("a"), "writing") from NoRoom(errno.ENOSPC, "No space left on device")
        return real(path, marker)

    monkeypatch.setattr(markers, "write_in_any_case", no_room)
    monkeypatch.setattr(deletion, "_RETRY", 0.05)
    node.partitions[TP].log.config = node.config.__class__(file_delete_delay_ms=0)
    node.move("b")
    eventually(lambda: node.listing() == {"a": [], "b": ["t-0"]})
    assert len(tried) == 3 and node.dir("a").online
    node.close()


def test_replica_that_goes_offline_while_its_move_is_made_is_not_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as harness:
        harness.create_topic("t")
        harness.settle()
        source, target = harness.directory_of("t"), harness.other_directory("t")

        def gone(*_: object, **__: object) -> None:
            harness.node.dirs.by_path(source).fail("the disk died")
            raise UnknownTopicOrPartition("t-0 is not on this node")

        monkeypatch.setattr(harness.node.engine, "create", gone)
        client = Client(harness)
        wanted = {"dirs": [{"path": target, "topics": [{"name": "t", "partitions": [0]}]}]}
        answer = client.ask(34, 2, wanted)
        client.close()
        assert int(answer.results[0].partitions[0].error_code) == 56
