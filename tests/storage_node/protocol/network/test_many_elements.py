"""Threads build the responses with very many elements: no callback of the loop takes more than 20 ms of CPU time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from storage_node.alter_log_dirs import ReplicaInfo
from storage_node.groups.offsets import Entry, GroupsState, Offset, offset_row
from storage_node.lifecycle import garbage
from storage_node.model.ids import TopicPartition
from storage_node.protocol import listener
from storage_node.protocol.network.loop_probe import LoopProbe
from storage_node.wire.client import private_client
from tests.support.group_calls import NOW
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.wire import Client

GROUPS, OFFSETS, REPLICAS, MEMBERS, KEYS = 60_000, 10_000, 20_000, 2_000, 15_000
MOST = 0.020
"""Seconds of the loop's thread."""


@pytest.fixture(scope="module")
def probe() -> LoopProbe:
    return LoopProbe()


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory, probe: LoopProbe) -> Iterator[Harness]:
    """Yield a node with many groups, one with many offsets, one with many members, and seemingly many replicas."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener.loop_probe, "wanted", lambda: probe)
        with running(tmp_path_factory.mktemp("many"), 1, {**NOW, "group.state.max.bytes": str(1 << 30)}) as made:
            made.create_topic("t", 10)
            made.create_topic("wide", 200)
            until(lambda: made.node.groups.settled == 1)
            assert made.node.groups._store is not None
            fill(made.node.groups._store.state)
            rows = [ReplicaInfo(TopicPartition(f"topic-{i // 10}", i % 10), 1, 0, False) for i in range(REPLICAS)]
            patch.setattr(made.node.log_dirs, "_replicas", lambda _: {made.paths[0]: rows})
            client = Client(made)
            for key, version, values in ((16, 4, {}), (9, 8, {"groups": []}), (15, 5, {"groups": []}), (35, 4, {})):
                client.ask(key, version, {"topics": []} if key == 35 else values)  # loads kio's schemas
            client.close()
            thresholds = gc.get_threshold()
            garbage.settle()  # as a node's process does: the loop's thread runs no full collection of this heap
            try:
                yield made
            finally:
                gc.set_threshold(*thresholds)
                gc.unfreeze()


def fill(state: GroupsState) -> None:
    def put(entry: Entry) -> None:
        state.apply(entry)

    for index in range(GROUPS):
        put(["o", f"console-consumer-{index}", [offset_row("t", 0, Offset(1, -1, "", 2**60, "id"))]])
    many = [offset_row(f"topic-{i // 10}", i % 10, Offset(1, -1, "", 2**60, "id")) for i in range(OFFSETS)]
    put(["o", "wide", many])
    members = [[f"member-{i}", None, "c", "/h", 1_800_000, 1000, "bWV0YQ==", "YXNz"] for i in range(MEMBERS)]
    put(["g", "members", [1, "consumer", "range", "member-0", members]])


def names(count: int) -> list[str]:
    return [f"console-consumer-{index}" for index in range(count)]


def partitions(count: int) -> dict[str, Any]:
    rows = [
        {
            "partition_index": index % 200,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        for index in range(count)
    ]
    return {
        "group_id": "commits",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "wide", "partitions": rows}],
    }


def give(harness: Harness) -> int:
    call = {"node": 1, "generation": 1, "after": "a"}
    return len(private_client.call("127.0.0.1", harness.node.port, "groups-give", 30.0, **call)["groups"])


#: Requests, as functions that return the number of elements in the response.
ASKED: dict[str, Callable[[Harness, Client], int]] = {
    "ListGroups": lambda _, client: len(client.ask(16, 4, {"states_filter": []}).groups),
    "ListGroups, none of that state": lambda _, client: len(client.ask(16, 4, {"states_filter": ["Dead"]}).groups) + 1,
    "OffsetFetch of all of a group": lambda _, client: len(
        client.ask(9, 7, {"group_id": "wide", "topics": None, "require_stable": False}).topics
    ),
    "OffsetFetch of many groups": lambda _, client: len(
        client.ask(9, 8, {"groups": [{"group_id": name, "topics": None} for name in names(KEYS)]}).groups
    ),
    "DescribeGroups": lambda _, client: len(client.ask(15, 5, {"groups": names(KEYS)}).groups),
    "DescribeGroups of many members": lambda _, client: len(client.ask(15, 5, {"groups": ["members"]}).groups),
    "FindCoordinator": lambda _, client: len(
        client.ask(10, 4, {"key_type": 0, "coordinator_keys": [f"k{index}" for index in range(KEYS)]}).coordinators
    ),
    "DeleteGroups of none": lambda _, client: len(
        client.ask(42, 2, {"groups_names": [f"none-{index}" for index in range(KEYS)]}).results
    ),
    "OffsetCommit": lambda _, client: len(client.ask(8, 8, partitions(OFFSETS)).topics[0].partitions),
    "DescribeLogDirs": lambda _, client: sum(len(row.topics) for row in client.ask(35, 4, {"topics": None}).results),
    "groups-give": lambda harness, _: give(harness),
    "LeaveGroup of none": lambda _, client: len(
        client.ask(
            13, 4, {"group_id": "members", "members": [{"member_id": f"x{index}"} for index in range(KEYS)]}
        ).members
    ),
}


@pytest.mark.parametrize("what", ASKED)
def test_no_callback_is_long(harness: Harness, probe: LoopProbe, what: str) -> None:
    client = Client(harness)
    client.ask(18, 3)
    assert ASKED[what](harness, client)
    # The best of a few: other load on the machine does not count.
    seen = []
    for _ in range(4):
        time.sleep(0.05)
        probe.longest = {"cpu": (0.0, ""), "wall": (0.0, "")}
        ASKED[what](harness, client)
        time.sleep(0.05)
        seen.append(probe.longest["cpu"])
        if seen[-1][0] < MOST:
            break
    assert min(seen)[0] < MOST, seen
    client.close()
