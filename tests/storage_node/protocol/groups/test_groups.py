"""Groups on the wire, every API in every version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from storage_node.groups.placement import ranked
from storage_node.model.metadata import NodeImage
from tests.support.group_calls import (
    COMMIT,
    DELETE,
    DESCRIBE,
    FETCH,
    FIND,
    HEARTBEAT,
    JOIN,
    LIST,
    NOW,
    OFFSET_DELETE,
    SYNC,
    beat,
    commit,
    described,
    enter,
    fetch,
    join,
    leave,
    send_join,
    subscription,
    sync,
    topic_row,
)
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.wire import Client, offered


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """Yield a node with topics t and u, of three partitions each."""
    with running(tmp_path_factory.mktemp("groups"), 2, NOW) as made:
        made.create_topic("t", 3)
        made.create_topic("u", 3)
        until(lambda: made.node.groups.loaded)
        yield made


@pytest.fixture
def client(shared: Harness) -> Iterator[Client]:
    made = Client(shared)
    yield made
    made.close()


# Members


@pytest.mark.parametrize("version", offered(JOIN))
def test_group_from_the_first_member_to_the_last(shared: Harness, client: Client, version: int) -> None:
    group = f"life-{version}"
    syncs, beats, leaves = min(version, 5), min(version, 4), min(version, 5)
    joined = enter(client, version, group)
    assert joined.leader == joined.member_id and joined.protocol_name == "range"
    assert [(one.member_id, one.metadata) for one in joined.members] == [(joined.member_id, subscription("t"))]
    if version >= 7:
        assert joined.protocol_type == "consumer"
    first = sync(client, syncs, group, joined)
    assert (int(first.error_code), first.assignment) == (0, b"assigned")
    assert beat(client, beats, group, joined.generation_id, joined.member_id) == 0

    other = Client(shared)
    if version >= 4:
        send_join(other, version, group, join(other, version, group).member_id)
    else:
        send_join(other, version, group)
    until(lambda: beat(client, beats, group, joined.generation_id, joined.member_id) == 27)
    again = join(client, version, group, joined.member_id)
    second = other.receive()[1]
    assert (again.generation_id, second.generation_id) == (joined.generation_id + 1,) * 2
    assert len(again.members) == 2 and not second.members and second.leader == again.member_id
    assert int(sync(client, syncs, group, again).error_code) == 0
    assert sync(other, syncs, group, second).assignment == b"assigned"

    assert leave(other, leaves, group, second.member_id) == 0
    assert leave(other, leaves, group, second.member_id) == 25
    assert leave(client, leaves, group, joined.member_id) == 0
    other.close()
    until(lambda: described(client, group).group_state == "Empty")


def test_members_that_join_at_the_same_time(shared: Harness) -> None:
    clients = [Client(shared) for _ in range(3)]
    for one in clients:
        assert beat(one, 4, "at-once", 1, "unknown") == 25  # its connection is accepted
    gate, held = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        gate.wait(20)

    shared.node.listener.loop.call_soon_threadsafe(hold)  # all requests are read in one iteration of the loop
    assert held.wait(20)
    for one in clients:
        send_join(one, 3, "at-once")
    gate.set()
    answers = [one.receive()[1] for one in clients]
    assert [int(answer.error_code) for answer in answers] == [0, 0, 0]
    assert {answer.generation_id for answer in answers} == {1}
    assert sorted(len(answer.members) for answer in answers) == [0, 0, 3]
    for one in clients:
        one.close()


def test_requests_of_unknown_members_are_rejected(client: Client) -> None:
    assert int(join(client, 9, "none", "stranger").error_code) == 25
    assert beat(client, 4, "none", 1, "stranger") == 25
    assert leave(client, 5, "none", "stranger") == 25
    values = {"group_id": "none", "member_id": "stranger", "protocol_type": "consumer", "protocol_name": "range"}
    assert int(client.ask(SYNC, 5, values).error_code) == 25


def test_requests_without_required_fields_are_rejected(client: Client) -> None:
    assert int(join(client, 9, "").error_code) == 24
    assert beat(client, 4, "", 1, "m") == 24
    assert leave(client, 5, "", "m") == 24
    assert int(client.ask(SYNC, 5, {"group_id": ""}).error_code) == 24
    for seconds in (0.05, 1801):
        assert int(join(client, 9, "g", session_timeout=timedelta(seconds=seconds)).error_code) == 26
    assert int(join(client, 9, "g", protocols=[]).error_code) == 23
    assert int(client.ask(SYNC, 5, {"group_id": "g", "member_id": "m"}).error_code) == 23


def test_silent_member_is_removed(shared: Harness, client: Client) -> None:
    # (In a version without a second JoinGroup, which might arrive after the session timeout of the first.)
    joined = enter(client, 3, "silent", session_timeout=timedelta(milliseconds=200))
    sync(client, 5, "silent", joined)
    until(lambda: not shared.node.groups.exists("silent") or described(client, "silent").group_state == "Empty")
    assert beat(client, 4, "silent", joined.generation_id, joined.member_id) == 25


def test_member_that_disconnects_while_it_waits_is_removed(shared: Harness, client: Client) -> None:
    joined = enter(client, 3, "hung")
    sync(client, 3, "hung", joined)
    gone = Client(shared)
    send_join(gone, 3, "hung")
    until(lambda: beat(client, 3, "hung", joined.generation_id, joined.member_id) == 27)
    gone.close()
    until(lambda: len(described(client, "hung").members) == 1)
    again = join(client, 3, "hung", joined.member_id)
    assert len(again.members) == 1


def test_static_member_rejoins_with_a_new_id_and_fences_the_old_one(shared: Harness, client: Client) -> None:
    joined = enter(client, 9, "static", group_instance_id="one")
    sync(client, 5, "static", joined, group_instance_id="one")
    back = join(client, 9, "static", group_instance_id="one")
    assert back.generation_id == joined.generation_id and back.member_id != joined.member_id
    assert back.skip_assignment and back.leader == back.member_id
    fenced = client.ask(
        HEARTBEAT,
        4,
        {"group_id": "static", "generation_id": 1, "member_id": joined.member_id, "group_instance_id": "one"},
    )
    assert int(fenced.error_code) == 82
    assert leave(client, 5, "static", "", "one") == 0


# Offsets


@pytest.mark.parametrize("version", offered(COMMIT))
def test_commit_in_every_version(shared: Harness, client: Client, version: int) -> None:
    group = f"commit-{version}"
    assert commit(shared, client, group, {("t", 0): 42, ("u", 2): 7}, version=version) == [0, 0]
    epoch = 5 if version >= 6 else -1
    found = [("t", 0, 42, epoch, "note", 0), ("u", 2, 7, epoch, "note", 0)]
    assert fetch(shared, client, group, {"t": [0], "u": [2]}) == (0, found)
    unknown = 100 if version >= 10 else 3
    assert commit(shared, client, group, {("nowhere", 0): 1, ("t", 9): 1}, version=version) == [unknown, 3]
    assert commit(shared, client, group, {("t", 1): 1}, version=version, metadata="x" * 4097) == [12]
    assert commit(shared, client, group, {("t", 1): 1}, version=version, metadata=None) == [0]


@pytest.mark.parametrize("version", offered(FETCH))
def test_fetch_in_every_version(shared: Harness, client: Client, version: int) -> None:
    group = f"fetch-{version}"
    commit(shared, client, group, {("t", 0): 42, ("u", 2): 7})
    epoch = 5 if version >= 5 else -1
    names: dict[str, Any] = {topic: topic_row(shared, version, topic).get("topic_id") or topic for topic in "tu"}
    wanted = [(names["t"], 0, 42, epoch, "note", 0), (names["t"], 1, -1, -1, "", 0)]
    assert fetch(shared, client, group, {"t": [0, 1]}, version) == (0, wanted)
    if version >= 2:
        both = [(names["t"], 0, 42, epoch, "note", 0), (names["u"], 2, 7, epoch, "note", 0)]
        assert fetch(shared, client, group, None, version) == (0, both)
    error, rows = fetch(shared, client, group, {"nowhere": [0]}, version)
    assert (error, [row[2:] for row in rows]) == (0, [(-1, -1, "", 100 if version >= 10 else 0)])
    assert fetch(shared, client, "unknown-group", {"t": [0]}, version)[1][0][2] == -1


def test_commit_requires_membership_in_the_current_generation(shared: Harness, client: Client) -> None:
    offset = {("t", 0): 1}
    assert commit(shared, client, "members", offset, generation=3, member="m") == [69]
    assert commit(shared, client, "members", offset, generation=3, member="m", version=8) == [22]
    joined = enter(client, 9, "members")
    assert commit(shared, client, "members", offset, generation=1, member=joined.member_id) == [27]
    sync(client, 5, "members", joined)
    assert commit(shared, client, "members", offset, generation=1, member=joined.member_id) == [0]
    assert commit(shared, client, "members", offset, generation=2, member=joined.member_id) == [22]
    assert commit(shared, client, "members", offset, generation=1, member="stranger") == [25]
    assert commit(shared, client, "members", offset) == [25]
    leave(client, 5, "members", joined.member_id)
    assert commit(shared, client, "members", offset) == [0]


def test_group_without_a_name_has_offsets(shared: Harness, client: Client) -> None:
    assert commit(shared, client, "", {("t", 0): 3}) == [0]
    assert fetch(shared, client, "", {"t": [0]})[1][0][2] == 3


def test_commit_with_too_much_metadata_is_rejected(
    shared: Harness, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_node.protocol.groups.offsets.LARGEST_COMMIT", 10)
    assert commit(shared, client, "bounds", {("t", 0): 3, ("t", 1): 4}, metadata="123456") == [28, 28]


def test_offsets_are_deleted_unless_the_group_subscribes_to_the_topic(shared: Harness, client: Client) -> None:
    def remove(*topics: str) -> tuple[int, list[int]]:
        rows = [{"name": topic, "partitions": [{"partition_index": 0}]} for topic in topics]
        answer = client.ask(OFFSET_DELETE, 0, {"group_id": "removal", "topics": rows})
        return int(answer.error_code), [int(row.error_code) for topic in answer.topics for row in topic.partitions]

    assert remove("t") == (69, [])
    commit(shared, client, "removal", {("t", 0): 1, ("u", 0): 2})
    joined = enter(client, 9, "removal")
    sync(client, 5, "removal", joined)
    assert remove("t", "u", "nowhere") == (0, [86, 0, 3])
    assert [row[:3] for row in fetch(shared, client, "removal", None)[1]] == [("t", 0, 1)]
    leave(client, 5, "removal", joined.member_id)
    assert remove("t") == (0, [0])
    assert fetch(shared, client, "removal", None) == (0, [])
    other = enter(client, 9, "connect", protocol_type="connect")
    answer = client.ask(OFFSET_DELETE, 0, {"group_id": "connect", "topics": []})
    assert int(answer.error_code) == 68
    leave(client, 5, "connect", other.member_id)


# Descriptions, lists and deletions


@pytest.mark.parametrize("version", offered(DESCRIBE))
def test_describe_in_every_version(client: Client, version: int) -> None:
    group = f"described-{version}"
    joined = enter(client, 9, group)
    row = described(client, group, version)
    assert (row.group_state, row.protocol_data, row.members[0].member_metadata) == ("CompletingRebalance", "", b"")
    sync(client, 5, group, joined)
    answer = client.ask(DESCRIBE, version, {"groups": [group, "nowhere"], "include_authorized_operations": True})
    row, none = answer.groups
    assert (row.group_id, row.group_state, row.protocol_type, row.protocol_data) == (
        group,
        "Stable",
        "consumer",
        "range",
    )
    (member,) = row.members
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "test", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (subscription("t"), b"assigned")
    if version >= 3:
        assert row.authorized_operations == 3400
        assert described(client, group, version).authorized_operations == -(2**31)
    assert none.group_state == "Dead"
    if version >= 6:
        assert (int(none.error_code), none.error_message) == (69, "Group nowhere not found.")
    else:
        assert int(none.error_code) == 0
    leave(client, 5, group, joined.member_id)


@pytest.mark.parametrize("version", offered(LIST))
def test_list_in_every_version(shared: Harness, client: Client, version: int) -> None:
    commit(shared, client, "listed-simple", {("t", 0): 1})
    joined = enter(client, 9, f"listed-{version}")
    sync(client, 5, f"listed-{version}", joined)

    def listed(**fields: Any) -> dict[str, Any]:
        answer = client.ask(LIST, version, fields)
        assert int(answer.error_code) == 0
        return {row.group_id: row for row in answer.groups if row.group_id.startswith("listed-")}

    rows = listed()
    assert rows["listed-simple"].protocol_type == "" and rows[f"listed-{version}"].protocol_type == "consumer"
    if version >= 4:
        assert rows["listed-simple"].group_state == "Empty" and rows[f"listed-{version}"].group_state == "Stable"
        assert set(listed(states_filter=["stable", "Dead"])) == {f"listed-{version}"}
    if version >= 5:
        assert rows["listed-simple"].group_type == "classic"
        assert set(listed(types_filter=["Classic"])) == set(rows)
        assert set(listed(types_filter=["consumer"])) == set()
    leave(client, 5, f"listed-{version}", joined.member_id)


@pytest.mark.parametrize("version", offered(DELETE))
def test_delete_in_every_version(shared: Harness, client: Client, version: int) -> None:
    joined = enter(client, 9, "deleted-full")
    commit(shared, client, "deleted-empty", {("t", 0): 1})
    answer = client.ask(DELETE, version, {"groups_names": ["deleted-full", "deleted-empty", "nowhere"]})
    assert [(row.group_id, int(row.error_code)) for row in answer.results] == [
        ("deleted-full", 68),
        ("deleted-empty", 0),
        ("nowhere", 69),
    ]
    assert fetch(shared, client, "deleted-empty", None) == (0, [])
    leave(client, 5, "deleted-full", joined.member_id)
    answer = client.ask(DELETE, version, {"groups_names": ["deleted-full"]})
    assert [int(row.error_code) for row in answer.results] == [0]
    assert described(client, "deleted-full").group_state == "Dead"


@pytest.mark.parametrize("version", offered(FIND))
def test_find_coordinator_in_every_version(shared: Harness, client: Client, version: int) -> None:
    def find(key: str, kind: int = 0) -> tuple[int, int, int]:
        values = {"coordinator_keys": [key]} if version >= 4 else {"key": key}
        answer = client.ask(FIND, version, values | {"key_type": kind})
        row = answer.coordinators[0] if version >= 4 else answer
        return int(row.error_code), row.node_id, row.port

    assert find("group") == (0, 1, shared.node.port)
    if version >= 1:
        assert find("transaction", 1) == (53, -1, -1)
        assert find("g:t:0", 2) == (42, -1, -1)


def test_node_that_is_not_the_coordinator(shared: Harness, client: Client) -> None:
    """A second node coordinates half of the groups; while it is fenced, it still does, and is unavailable."""
    before = dict(shared.controller.image.nodes)
    moving = next(name for name in (f"moving-{n}" for n in range(99)) if ranked(name, [1, 2])[0] == 2)
    joined = enter(client, 3, moving)
    sync(client, 3, moving, joined)
    waiting = Client(shared)
    send_join(waiting, 3, moving)
    until(lambda: beat(client, 3, moving, 1, joined.member_id) == 27)
    row = NodeImage(2, "x", 1, "elsewhere", 9092)
    try:
        shared.controller.change(nodes={**before, 2: row})
        assert int(waiting.receive()[1].error_code) == 16, "the wait ends for a group that another node coordinates"
        waiting.close()
        find = client.ask(FIND, 6, {"coordinator_keys": [f"g{index}" for index in range(40)]}).coordinators
        nodes = {one.key: one.node_id for one in find}
        assert set(nodes.values()) == {1, 2}
        theirs = next(key for key, node in nodes.items() if node == 2)
        ours = next(key for key, node in nodes.items() if node == 1)
        assert commit(shared, client, theirs, {("t", 0): 1}) == [16]
        assert fetch(shared, client, theirs, {"t": [0]}) == (16, [])
        assert fetch(shared, client, theirs, {"t": [0]}, 1) == (0, [("t", 0, -1, -1, "", 16)])
        assert int(join(client, 9, theirs).error_code) == 16
        assert beat(client, 4, theirs, 1, "m") == 16 and leave(client, 5, theirs, "m") == 16
        assert int(described(client, theirs).error_code) == 16
        assert int(client.ask(DELETE, 2, {"groups_names": [theirs]}).results[0].error_code) == 16
        assert int(client.ask(OFFSET_DELETE, 0, {"group_id": theirs}).error_code) == 16
        assert commit(shared, client, ours, {("t", 0): 1}) == [0]
        shared.controller.change(nodes={**before, 2: NodeImage(2, "x", 1, "elsewhere", 9092, (), True)})
        find = client.ask(FIND, 6, {"coordinator_keys": [theirs, ours]}).coordinators
        assert [(int(one.error_code), one.node_id) for one in find] == [(15, -1), (0, 1)]
    finally:
        shared.controller.change(nodes=before)
