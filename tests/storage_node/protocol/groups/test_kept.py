"""Groups after a restart of the node, the deletion of a topic, and on a full disk."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from storage_node.directories import atomic
from storage_node.groups.coordinator import GroupCoordinator
from storage_node.groups.copies import GroupCopy
from storage_node.groups.values import Sync
from storage_node.model.commands import NewTopic
from tests.support.group_calls import (
    NOW,
    beat,
    commit,
    described,
    enter,
    fetch,
    join,
    leave,
    send_join,
    send_sync,
    sync,
)
from tests.support.nodes.node_harness import running, until
from tests.support.wire import Client


def test_offsets_and_members_survive_a_restart(tmp_path: Path) -> None:
    with running(tmp_path, 2, NOW) as harness:
        harness.create_topic("t", 2)
        client = Client(harness)
        until(lambda: harness.node.groups.loaded)
        joined = enter(client, 9, "g")
        sync(client, 5, "g", joined)
        assert commit(harness, client, "g", {("t", 1): 5}, generation=1, member=joined.member_id) == [0]
        client.close()
        harness.restart(clean=False)
        client = Client(harness)
        until(lambda: beat(client, 4, "g", 1, joined.member_id) != 14)
        assert beat(client, 4, "g", 1, joined.member_id) == 0, "it need not join again"
        assert sync(client, 5, "g", joined).assignment == b"assigned"
        assert fetch(harness, client, "g", {"t": [0, 1]})[1] == [("t", 0, -1, -1, "", 0), ("t", 1, 5, 5, "note", 0)]
        client.close()


def test_member_that_asks_before_the_groups_are_revived_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the groups are loaded, removed topics are written before the groups are revived; requests come meanwhile."""
    with running(tmp_path, 2, NOW) as harness:
        client = Client(harness)
        until(lambda: harness.node.groups.loaded)
        joined = {group: enter(client, 9, group) for group in "ghi"}
        for group in "ghi":
            sync(client, 5, group, joined[group])
        client.close()
        monkeypatch.setattr(GroupCoordinator, "revive", lambda _: None)
        harness.restart(clean=False)
        client = Client(harness)
        until(lambda: beat(client, 4, "g", 1, joined["g"].member_id) != 14)
        assert beat(client, 4, "g", 1, joined["g"].member_id) == 0
        assert sync(client, 5, "h", joined["h"]).assignment == b"assigned"
        assert leave(client, 5, "i", joined["i"].member_id) == 0
        client.close()


def test_offsets_of_deleted_topics_are_removed(tmp_path: Path) -> None:
    with running(tmp_path, 2, NOW) as harness:
        for topic in "tuv":
            harness.create_topic(topic, 1)
        client = Client(harness)
        until(lambda: harness.node.groups.loaded)
        commit(harness, client, "g", {(topic, 0): 5 for topic in "tuv"})
        harness.delete_topic("t")
        until(lambda: [row[0] for row in fetch(harness, client, "g", None)[1]] == ["u", "v"])
        harness.create_topic("t", 1)
        assert fetch(harness, client, "g", {"t": [0]})[1][0][2] == -1
        commit(harness, client, "only", {("u", 0): 5})
        harness.delete_topic("u")
        until(lambda: described(client, "only").group_state == "Dead")
        client.close()


@pytest.mark.parametrize("listed", [True, False])
def test_topic_recreated_while_the_node_was_down_has_no_old_offsets(tmp_path: Path, listed: bool) -> None:
    """Whether or not the image still records the deletion: no response has an offset of the deleted topic."""
    with running(tmp_path, 2, NOW) as harness:
        harness.create_topic("t", 1)
        client = Client(harness)
        until(lambda: harness.node.groups.loaded)
        commit(harness, client, "g", {("t", 0): 5})
        client.close()
        harness.stop()
        controller = harness.controller
        asyncio.run(controller.delete_topics(["t"], timeout=5))
        asyncio.run(controller.create_topics([NewTopic("t")], validate_only=False, timeout=5))
        if not listed:
            controller.change(gone={})
        harness.node = harness._new(0)
        harness.start()
        client = Client(harness)
        until(lambda: harness.node.groups.loaded)
        assert fetch(harness, client, "g", {"t": [0]}) == (0, [("t", 0, -1, -1, "", 0)])
        until(lambda: "g" not in harness.node.groups.data)
        client.close()


def test_full_disk_rejects_assignments_and_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients retry: no response has state that is not on disk, and the group continues once there is room."""
    real = GroupCopy._append

    def full(self: GroupCopy, entries: Any) -> None:
        with atomic.io_errors(self.directory.name, "writing"), atomic.full_is_no_room():
            raise OSError(errno.ENOSPC, "No space left on device")

    with running(tmp_path, 2, NOW) as harness:
        harness.create_topic("t", 1)
        client = Client(harness)
        until(lambda: harness.node.groups.loaded)
        joined = enter(client, 9, "g")
        monkeypatch.setattr(GroupCopy, "_append", full)
        assert int(sync(client, 5, "g", joined).error_code) == 15
        assert commit(harness, client, "other", {("t", 0): 5}) == [15]
        assert fetch(harness, client, "other", {"t": [0]})[1][0][2] == -1
        monkeypatch.setattr(GroupCopy, "_append", real)
        assert beat(client, 4, "g", joined.generation_id, joined.member_id) == 27
        again = join(client, 9, "g", joined.member_id)
        assert sync(client, 5, "g", again).assignment == b"assigned"
        assert commit(harness, client, "other", {("t", 0): 5}) == [0]
        monkeypatch.setattr("storage_node.groups.coordinator.AGAIN", 0.05)
        monkeypatch.setattr(GroupCopy, "_append", full)
        assert leave(client, 5, "g", joined.member_id) == 0
        monkeypatch.setattr(GroupCopy, "_append", real)
        until(lambda: not harness.node.groups.data["g"].row[4], what="the members are removed from the disk too")
        client.close()


@pytest.mark.parametrize("room", [True, False])
def test_no_response_has_an_assignment_that_is_not_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """Another member's SyncGroup arrives while the leader's is being written: it waits for the same flush."""
    real, writing, go_on = GroupCopy._append, threading.Event(), threading.Event()

    def held(self: GroupCopy, entries: Any) -> None:
        writing.set()
        assert go_on.wait(60)
        if not room:
            with atomic.io_errors(self.directory.name, "writing"), atomic.full_is_no_room():
                raise OSError(errno.ENOSPC, "No space left on device")
        real(self, entries)

    with running(tmp_path, 2, NOW) as harness:
        leader, other = Client(harness), Client(harness)
        groups = harness.node.groups
        until(lambda: groups.loaded)
        first = enter(leader, 9, "g")
        id_ = join(other, 9, "g").member_id
        send_join(other, 9, "g", id_)
        until(lambda: beat(leader, 4, "g", first.generation_id, first.member_id) == 27)
        joined = join(leader, 9, "g", first.member_id)
        second = other.receive()[1]
        assert len(joined.members) == 2 and second.generation_id == joined.generation_id
        monkeypatch.setattr(GroupCopy, "_append", held)
        send_sync(leader, 5, "g", joined)
        try:
            assert writing.wait(60)
            asked = Sync(id_, None, second.generation_id, "consumer", "range", {})

            async def ask() -> tuple[bool, Any]:
                task = asyncio.create_task(groups.sync("g", asked))
                for _ in range(20):
                    await asyncio.sleep(0)  # only the flush is left to wait for
                return task.done(), task

            assert harness.node.listener.loop is not None
            told, task = asyncio.run_coroutine_threadsafe(ask(), harness.node.listener.loop).result(60)
            assert not told
        finally:
            go_on.set()
        until(task.done)
        expected = (0, b"assigned") if room else (15, b"")
        assert (int(task.result().error), task.result().assignment) == expected
        answer = leader.receive()[1]
        assert (int(answer.error_code), answer.assignment) == expected
        monkeypatch.setattr(GroupCopy, "_append", real)
        leader.close()
        other.close()
