"""The expiry of committed offsets by KIP-211's rules, also after a restart."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storage_node.config.group_limits import Limits
from storage_node.groups.expiry import expired
from storage_node.groups.group import Group
from storage_node.groups.offsets import GroupData, Offset
from storage_node.model.error_codes import ErrorCode
from tests.storage_node.groups.scene import Scene, subscription
from tests.support.group_calls import FETCH, LIST, NOW, enter, leave, sync
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.wire import Client

RETENTION = 1000
NEVER: None = None


def offsets(**stamps: int) -> dict[tuple[str, int], Offset]:
    """Return offsets of partition 0 of topics; `stamps`: each topic's time of the commit."""
    return {(topic, 0): Offset(1, -1, "", stamp, "id") for topic, stamp in stamps.items()}


def row(since: int | None = None, members: tuple[Any, ...] = ()) -> list[Any]:
    return [3, "consumer", None, None, list(members), *([] if since is None else [since])]


MEMBER = ["m", None, "c", "/h", 10_000, 10_000, "", ""]

#: A group, the time, and the topics whose offsets have expired then (None: the group does not change).
CASES: dict[str, tuple[GroupData, int, set[str] | None]] = {
    "never had members, each by its commit": (GroupData(offsets(a=0, b=500)), 1000, {"a"}),
    "never had members, nothing yet": (GroupData(offsets(a=1, b=500)), 1000, NEVER),
    "empty for less than the retention": (GroupData(offsets(a=0), row(since=500)), 1499, NEVER),
    "empty for the retention": (GroupData(offsets(a=0), row(since=500)), 1500, {"a"}),
    "empty for the retention, committed since then": (
        GroupData(offsets(a=0, b=1400), row(since=500)),
        1500,
        {"a", "b"},
    ),
    "empty since an unknown time": (GroupData(offsets(a=0, b=500), row()), 1000, {"a"}),
    "members on disk that have not come back yet": (GroupData(offsets(a=0), row(0, (MEMBER,))), 10**9, NEVER),
    "nothing left but a name": (GroupData({}, row(since=999)), 1000, set()),
    "a retention of its own": (
        GroupData({("a", 0): Offset(1, -1, "", 0, "id", 20), ("b", 0): Offset(1, -1, "", 0, "id")}),
        20,
        {"a"},
    ),
    "a longer retention of its own": (GroupData({("a", 0): Offset(1, -1, "", 0, "id", 5000)}), 4999, NEVER),
}


@pytest.mark.parametrize("what", CASES)
def test_offsets_of_a_group_without_members_expire(what: str) -> None:
    data, now, gone = CASES[what]
    found = expired("g", data, None, now, RETENTION)
    if gone is None:
        assert found is None
        return
    assert found is not None
    assert {topic for topic, _, _ in found.offsets} == gone
    assert found.all_gone == (len(gone) == len(data.offsets))


def test_stable_group_keeps_the_offsets_of_what_it_subscribes_to() -> None:
    scene = Scene()
    scene.stable(None)  # subscribes to t
    data = GroupData(offsets(t=0, old=0, new=900), scene.group.row(0))
    found = expired("g", data, scene.group, 1000, RETENTION)
    assert found is not None and not found.all_gone
    assert {topic for topic, _, _ in found.offsets} == {"old"}


def test_group_that_rebalances_or_whose_subscription_is_unknown_keeps_all() -> None:
    scene = Scene()
    scene.stable(None)
    data = GroupData(offsets(old=0), scene.group.row(0))
    member = next(iter(scene.group.members.values()))
    member.protocols = (("range", b"?"),)
    assert expired("g", data, scene.group, 10**9, RETENTION) is None
    member.protocols = (("range", subscription("t")),)
    assert expired("g", data, scene.group, 10**9, RETENTION) is not None
    scene.group.rebalance(scene.now)
    assert expired("g", data, scene.group, 10**9, RETENTION) is None
    connect = Group("g", Limits())
    connect.protocol_type = "connect"
    assert expired("g", GroupData(offsets(a=0), row(0, (MEMBER,))), connect, 10**9, RETENTION) is None


# On a node


def expire(harness: Harness, later_ms: int) -> None:
    """Run the node's expiry at a time that is so much later."""
    groups, loop = harness.node.groups, harness.node.listener.loop
    assert loop is not None

    async def look() -> None:
        await groups.expiry.expire(groups.expiry.now() + later_ms)
        await groups.drain()

    asyncio.run_coroutine_threadsafe(look(), loop).result(30)


def fetched(client: Client, group: str) -> list[str]:
    (found,) = client.ask(FETCH, 8, {"groups": [{"group_id": group, "topics": None}]}).groups
    return sorted(topic.name for topic in found.topics)


def committed(client: Client, group: str, topic: str, generation: int = -1, member: str = "", **extra: Any) -> None:
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "topics": [{"name": topic, "partitions": [row]}],
    }
    answer = client.ask(8, 4 if extra else 5, values | extra)
    assert int(answer.topics[0].partitions[0].error_code) == ErrorCode.NONE


MINUTE = 60_000


def test_node_removes_expired_offsets_and_the_group(tmp_path: Path) -> None:
    with running(tmp_path, 1, {**NOW, "offsets.retention.minutes": "10"}) as harness:
        harness.create_topic("t")
        harness.create_topic("u")
        until(lambda: harness.node.groups.loaded)
        client = Client(harness)
        member = enter(client, 5, "g")
        sync(client, 5, "g", member)
        for topic in ("t", "u"):
            committed(client, "g", topic, member.generation_id, member.member_id)
        committed(client, "simple", "t")
        expire(harness, 9 * MINUTE)
        assert (fetched(client, "g"), fetched(client, "simple")) == (["t", "u"], ["t"])
        expire(harness, 11 * MINUTE)
        assert fetched(client, "g") == ["t"], "members subscribe to t, not to u"
        assert fetched(client, "simple") == []
        leave(client, 3, "g", member.member_id)
        until(lambda: not harness.node.groups.data["g"].row[4])  # type: ignore[index]
        client.close()

        harness.restart()
        until(lambda: harness.node.groups.loaded)
        client = Client(harness)
        expire(harness, 9 * MINUTE)
        assert fetched(client, "g") == ["t"], "the group is empty since a moment ago"
        expire(harness, 11 * MINUTE)
        assert fetched(client, "g") == []
        assert client.ask(LIST, 4, {}).groups == ()
        client.close()

        harness.restart()
        until(lambda: harness.node.groups.loaded)
        assert not harness.node.groups.data, "nor is it on disk"


def test_commit_while_offsets_expire_is_not_lost(tmp_path: Path) -> None:
    with running(tmp_path, 1, {**NOW, "offsets.retention.minutes": "10"}) as harness:
        harness.create_topic("t")
        until(lambda: harness.node.groups.loaded)
        client = Client(harness)
        committed(client, "g", "t")
        groups, loop = harness.node.groups, harness.node.listener.loop
        assert loop is not None
        stamp = groups.data["g"].offsets["t", 0].timestamp
        until(lambda: groups.expiry.now() > stamp)
        committed(client, "g", "t")
        # The expired offset is that of the earlier commit.
        kept = asyncio.run_coroutine_threadsafe(groups.keep(["e", "g", [["t", 0, stamp]]]), loop)
        assert kept.result(10) is ErrorCode.NONE
        assert fetched(client, "g") == ["t"]
        client.close()


def test_retention_time_of_a_commit_overrides_the_config(tmp_path: Path) -> None:
    """OffsetCommit has one up to version 4."""
    with running(tmp_path, 1, NOW) as harness:
        harness.create_topic("t")
        until(lambda: harness.node.groups.loaded)
        client = Client(harness)
        committed(client, "short", "t", retention_time=timedelta(seconds=5))
        committed(client, "as-configured", "t", retention_time=timedelta(milliseconds=-1))
        client.close()
        harness.restart()
        until(lambda: harness.node.groups.loaded)
        client = Client(harness)
        expire(harness, MINUTE)
        assert (fetched(client, "short"), fetched(client, "as-configured")) == ([], ["t"])
        client.close()


def test_node_expires_offsets_periodically(tmp_path: Path) -> None:
    extra = {**NOW, "offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "20"}
    with running(tmp_path, 1, extra) as harness:
        harness.create_topic("t")
        until(lambda: harness.node.groups.loaded)
        client = Client(harness)
        committed(client, "g", "t")
        assert fetched(client, "g") == ["t"]
        harness.node.groups.expiry.now = lambda: 2**53  # type: ignore[method-assign]
        until(lambda: fetched(client, "g") == [])
        client.close()
