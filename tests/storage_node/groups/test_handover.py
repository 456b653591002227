"""Groups move when nodes register: with their committed offsets, and no client receives an older state."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storage_node import failpoints
from storage_node.groups.giving import GIVE, TAKEN
from storage_node.groups.offsets import GroupData
from storage_node.groups.placement import Placement, ranked
from storage_node.wire.client import private_client
from tests.support.nodes.local_controller import LocalController
from tests.support.nodes.node_harness import CLUSTER_ID, Harness, until
from tests.support.wire import Client

COMMIT, FETCH, FIND, JOIN, HEARTBEAT, SYNC, DESCRIBE, LIST = 8, 9, 10, 11, 12, 14, 15, 16
GROUPS = [f"group-{index}" for index in range(60)]
EXTRA = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[[int], Harness]]:
    """Yield a function that starts nodes with one controller, or restarts a stopped one."""
    controller = LocalController(CLUSTER_ID)
    made: dict[int, Harness] = {}

    def start(id_: int) -> Harness:
        harness = made.get(id_)
        if harness is None:
            harness = made[id_] = Harness(tmp_path, 1, EXTRA, node=id_)
            harness.controller.close()
            harness.controller = controller
            harness.node = harness._new(0)
        else:
            harness.node = harness._new(harness.node.port)
        harness.start()
        return harness

    yield start
    for harness in made.values():
        harness.stop()
    controller.close()


def commit(harness: Harness, group: str, offset: int) -> int:
    rows = [
        {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
    ]
    answer = ask(
        harness,
        COMMIT,
        9,
        {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": "t", "partitions": rows}],
        },
    )
    return int(answer.topics[0].partitions[0].error_code)


def fetch(harness: Harness, group: str) -> tuple[int, int]:
    """Return the group's error and its offset."""
    groups = [{"group_id": group, "topics": [{"name": "t", "partition_indexes": [0]}]}]
    row = ask(harness, FETCH, 9, {"groups": groups}).groups[0]
    return int(row.error_code), row.topics[0].partitions[0].committed_offset if row.topics else -2


def ask(harness: Harness, key: int, version: int, values: dict[str, Any]) -> Any:
    client = Client(harness)
    try:
        return client.ask(key, version, values)
    finally:
        client.close()


def filled(first: Harness) -> None:
    """Create a topic, and commit a different offset to every group."""
    first.create_topic("t")
    until(lambda: first.node.groups.loaded)
    for number, group in enumerate(GROUPS):
        until(lambda group=group, number=number: commit(first, group, number) == 0)


def offsets(nodes: dict[int, Harness]) -> dict[str, int]:
    """Return the offset of each group from its coordinator, once that has loaded it."""
    found = {}
    for group in GROUPS:
        harness = nodes[ranked(group, nodes)[0]]
        until(lambda harness=harness, group=group: fetch(harness, group)[0] == 0, what=group)
        found[group] = fetch(harness, group)[1]
    return found


EVERYTHING = {group: number for number, group in enumerate(GROUPS)}


def test_groups_move_when_nodes_register(cluster: Callable[[int], Harness]) -> None:
    nodes = {1: cluster(1)}
    filled(nodes[1])
    for id_ in (2, 3):
        nodes[id_] = cluster(id_)
        assert offsets(nodes) == EVERYTHING
        until(lambda id_=id_: nodes[id_].node.groups.settled == 1)
        for one, harness in nodes.items():
            names = {name for name in harness.node.groups.data if name in EVERYTHING}
            assert names == {group for group in GROUPS if ranked(group, nodes)[0] == one}, "nothing is left behind"
    listed = [row.group_id for harness in nodes.values() for row in ask(harness, LIST, 5, {}).groups]
    assert sorted(listed) == sorted(GROUPS)


def test_adopted_groups_are_on_disk(cluster: Callable[[int], Harness]) -> None:
    nodes = {1: cluster(1)}
    filled(nodes[1])
    nodes[2] = cluster(2)
    until(lambda: nodes[2].node.groups.settled == 1)
    for id_ in (1, 2):
        nodes[id_].stop(clean=False)
        cluster(id_)
    assert offsets(nodes) == EVERYTHING


class Calls:
    """Records the private calls of node 2: the groups that it received, and for each `groups-taken` those that it did
    not have on disk.
    """

    def __init__(self, nodes: dict[int, Harness], monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[list[str]] = []
        self.not_on_disk: list[set[str]] = []
        self.taken = threading.Event()
        really = private_client.call

        def call(host: str, port: int, op: str, *more: Any, **fields: Any) -> dict[str, Any]:
            if op == TAKEN and fields["node"] == 2:
                taker = until(lambda: nodes.get(2)).node.groups
                self.not_on_disk.append(set(self.given[-1]) - set(taker.data))
                self.taken.set()
            answer = really(host, port, op, *more, **fields)
            if op == GIVE and fields["node"] == 2 and answer["groups"]:
                self.given.append([row[0] for row in answer["groups"]])
            return answer

        monkeypatch.setattr(private_client, "call", call)


def test_node_confirms_groups_once_its_disk_has_them(
    cluster: Callable[[int], Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {1: cluster(1)}
    filled(nodes[1])
    calls = Calls(nodes, monkeypatch)
    # A slow disk: a confirmation that does not wait for it would come too early.
    with failpoints.active({"groups.flushed": lambda: calls.taken.wait(0.5)}) as armed:
        nodes[2] = cluster(2)
        until(lambda: nodes[2].node.groups.settled == 1)
        assert armed.hits("groups.flushed")
    assert calls.given and calls.not_on_disk == [set() for _ in calls.given]
    assert offsets(nodes) == EVERYTHING


def test_node_that_cannot_write_groups_leaves_them_with_the_giving_node(
    cluster: Callable[[int], Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {1: cluster(1)}
    filled(nodes[1])
    calls = Calls(nodes, monkeypatch)
    with failpoints.active({"groups.written": "raise:ENOSPC"}):
        nodes[2] = cluster(2)
        until(lambda: len(calls.given) > 2, what="the node requests them again")
        assert calls.not_on_disk == [], "it confirms nothing"
        assert set(GROUPS) <= set(nodes[1].node.groups.data) and nodes[2].node.groups.settled < 1
        group = calls.given[0][0]
        assert fetch(nodes[2], group) == (14, -2), "COORDINATOR_LOAD_IN_PROGRESS rather than an older state"
    until(lambda: nodes[2].node.groups.settled == 1)
    assert calls.not_on_disk == [set()]
    assert offsets(nodes) == EVERYTHING


def test_group_waits_for_its_former_coordinator_only(cluster: Callable[[int], Harness]) -> None:
    nodes = {1: cluster(1)}
    nodes[2] = cluster(2)
    nodes[1].create_topic("t")
    until(lambda: nodes[2].node.groups.settled == 1 and "t" in nodes[2].node.metadata.image.topics)
    for number, group in enumerate(GROUPS):
        owner = nodes[ranked(group, nodes)[0]]
        until(lambda owner=owner, group=group, number=number: commit(owner, group, number) == 0)
    nodes[1].stop()
    nodes[3] = cluster(3)
    moved = [group for group in GROUPS if ranked(group, nodes)[0] == 3]
    was_second = [group for group in moved if ranked(group, [1, 2])[0] == 2]
    was_first = [group for group in moved if ranked(group, [1, 2])[0] == 1]
    assert was_first and was_second
    for group in was_second:
        until(lambda group=group: fetch(nodes[3], group)[0] == 0)
        assert fetch(nodes[3], group) == (0, EVERYTHING[group])
    for group in was_first:
        assert fetch(nodes[3], group) == (14, -2)
        assert commit(nodes[3], group, 99) == 14
    cluster(1)
    assert offsets(nodes) == EVERYTHING


def test_members_continue_with_the_new_coordinator(cluster: Callable[[int], Harness]) -> None:
    nodes = {1: cluster(1)}
    filled(nodes[1])
    group = next(group for group in GROUPS if ranked(group, [1, 2])[0] == 2)
    values = {
        "group_id": group,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "member_id": "",
        "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0"}],
    }
    times = {"session_timeout": timedelta(seconds=10), "rebalance_timeout": timedelta(seconds=10)}
    joined = ask(nodes[1], JOIN, 3, {**values, **times})
    member = {"group_id": group, "member_id": joined.member_id, "generation_id": 1}
    synced = ask(
        nodes[1],
        SYNC,
        5,
        {**values, **member, "assignments": [{"member_id": joined.member_id, "assignment": b"all"}]},
    )
    assert synced.assignment == b"all"
    waiting = Client(nodes[1])
    waiting.send(JOIN, 3, {**values, **times})
    until(lambda: int(ask(nodes[1], HEARTBEAT, 4, member).error_code) == 27)
    nodes[2] = cluster(2)
    assert int(waiting.receive()[1].error_code) == 16
    waiting.close()
    assert int(ask(nodes[1], HEARTBEAT, 4, member).error_code) == 16
    until(lambda: int(ask(nodes[2], HEARTBEAT, 4, member).error_code) == 0)
    (row,) = ask(nodes[2], DESCRIBE, 5, {"groups": [group]}).groups
    assert (row.group_state, len(row.members), row.members[0].member_assignment) == ("Stable", 1, b"all")


def test_returning_node_adopts_later_commits_in_a_new_generation(cluster: Callable[[int], Harness]) -> None:
    """A removed node returns with its old offsets; another node may have later commits, which win."""
    nodes = {1: cluster(1), 2: cluster(2)}
    nodes[1].create_topic("t")
    until(lambda: nodes[2].node.groups.settled == 1 and "t" in nodes[2].node.metadata.image.topics)
    group = next(group for group in GROUPS if ranked(group, nodes)[0] == 2)
    until(lambda: commit(nodes[2], group, 1) == 0)
    controller = nodes[1].controller
    both = dict(controller.image.nodes)
    nodes[2].stop()
    controller.change(cluster_generation=2, nodes={1: both[1]})
    until(lambda: commit(nodes[1], group, 2) == 0)
    cluster(2)
    until(lambda: nodes[2].node.groups.settled == 2)
    assert fetch(nodes[2], group) == (0, 2)


def test_invalid_private_calls_return_and_drop_no_groups(cluster: Callable[[int], Harness]) -> None:
    harness = cluster(1)
    port = harness.node.port
    for fields in ({}, {"node": "1", "generation": 1, "after": ""}):
        with pytest.raises(private_client.PrivateCallFailed):
            private_client.call("127.0.0.1", port, "groups-give", **fields)
    with pytest.raises(private_client.PrivateCallFailed, match="not applied generation 1 with node 9"):
        private_client.call("127.0.0.1", port, "groups-give", node=9, generation=1, after="")
    filled(harness)
    with pytest.raises(private_client.PrivateCallFailed):
        private_client.call("127.0.0.1", port, "groups-taken", groups=GROUPS)
    assert set(GROUPS) <= set(harness.node.groups.data), "a node does not drop the groups that it coordinates"


def test_few_groups_move_when_a_node_registers() -> None:
    names = [base64.b64encode(bytes([index % 256, index // 256])).decode() for index in range(3000)]
    before, after = Placement(), Placement()
    moved = 0
    for name in names:
        old, new = before.coordinator(name, {1, 2, 3}), after.coordinator(name, {1, 2, 3, 4})
        assert old == ranked(name, {1, 2, 3})[0]
        assert new in (old, 4)
        moved += new == 4
    assert 0.2 < moved / len(names) < 0.3
    counts = [sum(before.coordinator(name, {1, 2, 3}) == node for name in names) for node in (1, 2, 3)]
    assert min(counts) > 850
    assert Placement().coordinator("g", set()) is None


def test_group_written_while_others_are_given_does_not_disturb(
    cluster: Callable[[int], Harness],
) -> None:
    nodes = {1: cluster(1)}
    filled(nodes[1])
    groups, image = nodes[1].node.groups, nodes[1].node.metadata.image

    class Begin(str):
        """A name that adds a group at every comparison, like another thread would."""

        def __lt__(self, name: str) -> bool:
            groups.data[f"new-{len(groups.data)}"] = GroupData()
            return True

    async def give() -> list[str]:
        found, more = await groups.giver.give(1, image.cluster_generation, Begin())
        assert not more
        return [name for name, _ in found]

    loop = nodes[1].node.listener.loop
    assert loop is not None
    assert set(asyncio.run_coroutine_threadsafe(give(), loop).result(60)) >= set(GROUPS)
