"""The limits of the state that clients create: strings, groups, members, pending member ids."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storage_node.groups.frames import frame
from storage_node.groups.offsets import Offset, offset_row
from storage_node.groups.store import TAIL
from storage_node.log.batches.batch import build_batch
from tests.support.group_calls import COMMIT, FETCH, LIST, NOW, enter, join, send_join, sync
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.wire import Client, encode_request

LONGEST = 32_767
TOO_LARGE, SERVER_ERROR, FULL = 28, -1, 81


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with running(tmp_path_factory.mktemp("limits"), 1, NOW) as made:
        made.create_topic("t")
        until(lambda: made.node.groups.loaded)
        yield made


def offsets(group: str = "g", topic: str = "t", metadata: str = "", member: str = "") -> dict[str, Any]:
    row = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": metadata}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": member,
        "topics": [{"name": topic, "partitions": [row]}],
    }


def commit(client: Client, group: str, offset: int) -> int:
    """Return the error code."""
    values = offsets(group)
    values["topics"][0]["partitions"][0]["committed_offset"] = offset
    return int(client.ask(COMMIT, 8, values).topics[0].partitions[0].error_code)


def transactional(text: str) -> dict[str, Any]:
    return {
        "transactional_id": text,
        "transaction_timeout": timedelta(seconds=1),
        "producer_id": -1,
        "producer_epoch": -1,
    }


def produced(topic: str) -> dict[str, Any]:
    data = {"index": 0, "records": build_batch([b"x"], producer_id=1, producer_epoch=0, base_sequence=0)}
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout": timedelta(seconds=1),
        "topic_data": [{"name": topic, "partition_data": [data]}],
    }


#: Requests with a string: key, version, values.
STRINGS: dict[str, tuple[int, int, Callable[[str], dict[str, Any]]]] = {
    "a group id": (8, 8, lambda text: offsets(group=text)),
    "a topic of a commit": (8, 8, lambda text: offsets(topic=text)),
    "a commit's metadata": (8, 8, lambda text: offsets(metadata=text)),
    "a member id": (8, 8, lambda text: offsets(member=text)),
    "a topic of Metadata": (3, 9, lambda text: {"topics": [{"name": text}], "allow_auto_topic_creation": False}),
    "a coordinator's key": (10, 4, lambda text: {"key_type": 0, "coordinator_keys": [text]}),
    "a resource": (32, 4, lambda text: {"resources": [{"resource_type": 2, "resource_name": text}]}),
    "a client's software": (18, 3, lambda text: {"client_software_name": text}),
    "a state of groups": (16, 4, lambda text: {"states_filter": [text]}),
    "a transactional id": (22, 4, transactional),
    "a topic of Produce": (0, 9, produced),
}


@pytest.mark.parametrize("what", STRINGS)
def test_string_longer_than_kafka_parses_closes_the_connection(shared: Harness, what: str) -> None:
    """As Apache Kafka 4.3.1 does with each of these."""
    key, version, values = STRINGS[what]
    client = Client(shared)
    client.ask(key, version, values("x" * LONGEST))
    client.socket.sendall(encode_request(key, version, values("x" * (LONGEST + 1))))
    assert client.closed()
    client.close()


def test_batches_for_topics_of_invalid_names_leave_nothing_behind(shared: Harness) -> None:
    before = len(shared.node.rejected_first_batches)
    client = Client(shared)
    for name in ("n" * 250, "n" * LONGEST, "a b", "..", "ä"):
        assert client.produce(name, 0, build_batch([b"x"], producer_id=5, producer_epoch=0, base_sequence=0)).error == 3
    assert len(shared.node.rejected_first_batches) == before
    assert client.produce("valid", 0, build_batch([b"x"], producer_id=5, producer_epoch=0, base_sequence=0)).error == 3
    assert len(shared.node.rejected_first_batches) == before + 1
    client.close()


def test_coordinators_of_long_group_ids_are_not_cached(shared: Harness) -> None:
    client = Client(shared)
    names = [f"{index}-{'g' * 1000}" for index in range(100)]
    client.ask(10, 4, {"key_type": 0, "coordinator_keys": names})
    _, known = shared.node.groups._placement._memo
    assert not any(name in known for name in names)
    client.close()


def test_member_with_an_id_too_long_for_a_response_is_rejected(shared: Harness) -> None:
    client = Client(shared)
    answer = join(client, 5, "long-instance", group_instance_id="i" * (LONGEST - 10))
    assert (int(answer.error_code), answer.member_id) == (SERVER_ERROR, "")
    assert int(enter(client, 5, "long-instance", group_instance_id="i" * (LONGEST - 40)).error_code) == 0
    client.close()


def test_earlier_run_s_ids_that_are_too_long_are_dropped_and_the_node_serves(tmp_path: Path) -> None:
    """An earlier version accepted a commit to a group id of megabytes, which no response could hold."""
    with running(tmp_path, 1, NOW) as harness:
        harness.create_topic("t")
        client = Client(harness)
        until(lambda: commit(client, "good", 7) == 0)
        client.close()
        topic_id = harness.node.metadata.image.topics["t"].id
        number = harness.node.groups._store._number if harness.node.groups._store is not None else 0
        harness.stop()
        tail = Path(harness.paths[0]) / TAIL
        rows = [offset_row("t", 0, Offset(1, -1, "", 0, topic_id))]
        member = ["m" * 40_000, None, "c", "/h", 10_000, 10_000, "", ""]
        with tail.open("ab") as file:
            file.write(frame(number + 1, ["o", "g" * (8 << 20), rows]))
            file.write(frame(number + 2, ["g", "members", [1, "consumer", "range", "m", [member]]]))
        harness.node = harness._new(0)
        harness.start()
        until(lambda: harness.node.groups.loaded)
        client = Client(harness)
        for version in (2, 4):
            assert [row.group_id for row in client.ask(LIST, version, {}).groups] == ["good"]
        (row,) = client.ask(FETCH, 8, {"groups": [{"group_id": "good", "topics": None}]}).groups
        assert row.topics[0].partitions[0].committed_offset == 7
        client.close()
        files = Path(harness.paths[0]).glob
        until(
            lambda: sum(path.stat().st_size for path in files("consumer-groups*")) < 100_000, what="removed from disk"
        )


def test_group_state_beyond_its_limit_is_rejected_and_existing_groups_continue(tmp_path: Path) -> None:
    with running(tmp_path, 1, {**NOW, "group.state.max.bytes": "100000"}) as harness:
        harness.create_topic("t", 2)
        client = Client(harness)
        until(lambda: commit(client, "first", 1) == 0)
        member = enter(client, 5, "members")
        sync(client, 5, "members", member)
        results = [commit(client, f"group-{index}", 1) for index in range(300)]
        assert results[0] == 0 and results[-1] == TOO_LARGE
        kept = results.count(0)
        assert 50 < kept < 250
        assert commit(client, "first", 2) == 0, "an existing offset may change"
        assert int(join(client, 3, "another").error_code) == FULL
        assert harness.node.groups.room.weight <= 100_000
        # Members of a known group still rebalance.
        other = Client(harness)
        send_join(other, 3, "members")
        again = join(client, 5, "members", member.member_id)
        assert int(again.error_code) == 0
        other.close()
        assert len(client.ask(LIST, 4, {}).groups) == kept + 2
        harness.restart()
        until(lambda: harness.node.groups.loaded)
        client.close()
        client = Client(harness)
        until(lambda: commit(client, "first", 3) == 0)
        assert commit(client, "group-999", 1) == TOO_LARGE, "the state on disk counts at the next start too"
        (deleted,) = client.ask(42, 2, {"groups_names": ["group-0"]}).results
        assert int(deleted.error_code) == 0
        assert commit(client, "group-999", 1) == 0, "a deletion makes room"
        client.close()


def client_at(harness: Harness, address: str) -> Client:
    """A client that connects from this address of the machine."""
    client = Client(harness)
    where = client.socket.getpeername()
    client.close()
    client.socket = socket.create_connection(where, 30, source_address=(address, 0))
    return client


def test_client_with_the_most_groups_possible_leaves_room_for_others(tmp_path: Path) -> None:
    with running(tmp_path, 1, {**NOW, "group.state.max.bytes": "400000"}) as harness:
        harness.create_topic("t", 2)
        greedy, other = client_at(harness, "127.0.0.2"), client_at(harness, "127.0.0.3")
        until(lambda: commit(greedy, "greedy", 1) == 0)
        made = [commit(greedy, f"group-{index}", 1) for index in range(600)]
        assert made[-1] == TOO_LARGE and int(join(greedy, 3, "more").error_code) == FULL
        assert 0.7 < harness.node.groups.room.weight / 400_000 <= 0.75
        assert commit(greedy, "group-0", 2) == 0, "an existing offset may change"
        # The other client creates groups and members, also after a restart.
        assert commit(other, "other", 1) == 0
        sync(other, 5, "consumers", enter(other, 5, "consumers"))
        greedy.close()
        other.close()
        harness.restart()
        until(lambda: harness.node.groups.loaded)
        greedy, other = client_at(harness, "127.0.0.2"), client_at(harness, "127.0.0.3")
        until(lambda: commit(other, "another", 1) == 0)
        assert commit(greedy, "group-999", 1) == TOO_LARGE
        rows = [group.group_id for group in greedy.ask(LIST, 4, {}).groups if group.group_id.startswith("group-")]
        greedy.ask(42, 2, {"groups_names": rows[: len(rows) // 2]})
        assert commit(greedy, "group-999", 1) == 0, "a deletion makes room"
        greedy.close()
        other.close()


def test_members_metadata_counts_towards_the_limit_of_group_state(tmp_path: Path) -> None:
    with running(tmp_path, 1, {**NOW, "group.state.max.bytes": "100000"}) as harness:
        until(lambda: harness.node.groups.loaded)
        client = Client(harness)
        large = [{"name": "range", "metadata": bytes(200_000)}]
        assert int(join(client, 3, "large", protocols=large).error_code) == FULL
        member = enter(client, 3, "small")
        assert int(sync(client, 3, "small", member, bytes(60_000)).error_code) == SERVER_ERROR
        client.close()


def test_pending_member_ids_are_bounded(tmp_path: Path) -> None:
    with running(tmp_path, 1, {**NOW, "group.max.size": "3"}) as harness:
        until(lambda: harness.node.groups.loaded)
        client = Client(harness)
        codes = [int(join(client, 5, "g").error_code) for _ in range(5)]
        assert codes == [79, 79, 79, FULL, FULL]
        client.close()


def test_weights_of_groups_add_up(shared: Harness) -> None:
    """After members have joined and left, the weight counts existing state only."""
    groups = shared.node.groups
    before = groups.room.weight

    async def live() -> tuple[int, int]:
        return groups.room._live, len(groups._groups)

    client = Client(shared)
    member = enter(client, 5, "join-and-leave")
    sync(client, 5, "join-and-leave", member)
    assert groups.room.weight > before
    client.ask(13, 3, {"group_id": "join-and-leave", "members": [{"member_id": member.member_id}]})
    until(lambda: not groups.data["join-and-leave"].row[4])  # type: ignore[index]
    client.ask(42, 2, {"groups_names": ["join-and-leave", "long-instance"]})
    loop = shared.node.listener.loop
    assert loop is not None
    weight, count = asyncio.run_coroutine_threadsafe(live(), loop).result(10)
    assert (weight > 0) == (count > 0)
    client.close()
