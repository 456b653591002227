"""No request blocks the listener's loop: the CPU time of its longest callback, for each API's worst request.

CPU time, since a busy machine does not add to it.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.wire.codec import MAX_ELEMENTS
from storage_node.wire.primitives import varint
from storage_node.wire.table import APIS
from tests.support.nodes.node_harness import until
from tests.support.nodes.probed_node import ProbedNode, probed_node
from tests.support.wire import Client, encode_request, key_of, receive_frame

LIMIT = 0.020
#: About as many elements as a request may have.
MANY = 30_000
SECOND = timedelta(seconds=1)
FRAME = 99 << 20


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbedNode]:
    with probed_node(tmp_path_factory.mktemp("probed"), group_initial_rebalance_delay_ms="0") as found:
        yield found


def names(count: int = MANY) -> list[str]:
    return [f"n{number}" for number in range(count)]


def partitions(field: str, count: int = MANY, **more: Any) -> list[dict[str, Any]]:
    return [{field: number, **more} for number in range(count)]


#: By API: its worst request, by kio's fields.
WORST: dict[str, Callable[[], dict[str, Any]]] = {
    "list_offsets": lambda: {
        "replica_id": -1,
        "topics": [{"name": "t", "partitions": partitions("partition_index", 5_000, timestamp=-1)}],
    },
    "metadata": lambda: {"topics": [{"name": name} for name in names()]},
    "offset_commit": lambda: {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": "t", "partitions": partitions("partition_index")}],
    },
    "offset_fetch": lambda: {
        "groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": list(range(MANY))}]}]
    },
    "find_coordinator": lambda: {"coordinator_keys": names()},
    "join_group": lambda: {
        "group_id": "j",
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": SECOND,
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": b""} for name in names()],
    },
    "sync_group": lambda: {
        "group_id": "g",
        "generation_id": 1,
        "member_id": "m",
        "assignments": [{"member_id": name, "assignment": b"a"} for name in names()],
    },
    "leave_group": lambda: {"group_id": "g", "members": [{"member_id": name} for name in names()]},
    "describe_groups": lambda: {"groups": names()},
    "list_groups": lambda: {"states_filter": names()},
    "delete_groups": lambda: {"groups_names": names()},
    "offset_delete": lambda: {
        "group_id": "g",
        "topics": [{"name": "t", "partitions": partitions("partition_index")}],
    },
    "create_topics": lambda: {
        "topics": [{"name": f"bad name {name}", "num_partitions": 1, "replication_factor": 1} for name in names()],
        "timeout": SECOND,
    },
    "delete_topics": lambda: {"topics": [{"name": name, "topic_id": None} for name in names()], "timeout": SECOND},
    "delete_records": lambda: {
        "topics": [{"name": "t", "partitions": partitions("partition_index", 5_000, offset=0)}],
        "timeout": SECOND,
    },
    "offset_for_leader_epoch": lambda: {
        "replica_id": -1,
        "topics": [{"topic": "t", "partitions": partitions("partition", 5_000, leader_epoch=0)}],
    },
    "describe_configs": lambda: {
        "resources": [{"resource_type": 2, "resource_name": name, "configuration_keys": None} for name in names()]
    },
    "alter_configs": lambda: {
        "resources": [{"resource_type": 2, "resource_name": name, "configs": []} for name in names(10_000)]
    },
    "incremental_alter_configs": lambda: {
        "resources": [{"resource_type": 2, "resource_name": name, "configs": []} for name in names(10_000)]
    },
    "alter_replica_log_dirs": lambda: {
        "dirs": [{"path": "/nowhere", "topics": [{"name": "t", "partitions": list(range(MANY))}]}]
    },
    "describe_log_dirs": lambda: {"topics": [{"topic": "t", "partitions": list(range(MANY))}]},
    "create_partitions": lambda: {
        "topics": [{"name": name, "count": 2, "assignments": None} for name in names()],
        "timeout": SECOND,
    },
    "elect_leaders": lambda: {
        "topic_partitions": [{"topic": "t", "partitions": list(range(MANY))}],
        "timeout": SECOND,
    },
    "alter_partition_reassignments": lambda: {
        "topics": [{"name": "t", "partitions": partitions("partition_index", replicas=[1])}],
        "timeout": SECOND,
    },
    "list_partition_reassignments": lambda: {
        "topics": [{"name": "t", "partition_indexes": list(range(MANY))}],
        "timeout": SECOND,
    },
    "list_config_resources": lambda: {"resource_types": [number % 100 for number in range(MANY)]},
    "describe_topic_partitions": lambda: {
        "topics": [{"name": name} for name in names()],
        "response_partition_limit": 2000,
        "cursor": None,
    },
    "api_versions": lambda: {"client_software_name": "n" * 1_000_000, "client_software_version": "1"},
    "init_producer_id": lambda: {"transactional_id": "x" * 1_000_000, "transaction_timeout": SECOND},
    "heartbeat": lambda: {"group_id": "g" * 1_000_000, "member_id": "m", "generation_id": 1},
    "describe_cluster": dict,
    "describe_producers": lambda: {"topics": [{"name": "t", "partition_indexes": list(range(MANY))}]},
    "sasl_handshake": lambda: {"mechanism": "m" * 30_000},
    "sasl_authenticate": lambda: {"auth_bytes": b"a" * 1_000_000},
}


def exchange(node: ProbedNode, data: bytes, answers: int = 1) -> None:
    """Send bytes, and receive so many responses or the end of the connection."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=60) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            for _ in range(answers):
                receive_frame(connection, 1 << 30)
        except ConnectionError:
            return


def assert_no_stall(node: ProbedNode) -> None:
    time.sleep(0.05)
    seconds, what = node.longest()
    assert seconds <= LIMIT, f"{what}: {seconds * 1000:.0f} ms"


def test_every_api_has_a_worst_request() -> None:
    own = {"produce", "fetch"}  # tests of their own, below
    assert {api.name for api in APIS.values()} == WORST.keys() | own


def test_commits_and_deletions_of_one_offset_many_times_do_not_stall_the_loop(node: ProbedNode) -> None:
    same = [{"partition_index": 0, "committed_offset": 1}] * MANY
    topics = [{"name": "t", "partitions": same}]
    ready = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": [{"name": "t", "partitions": same[:1]}]}
    client = Client(node.address)
    until(lambda: client.ask(8, 8, ready).topics[0].partitions[0].error_code == 0, what="the groups are loaded")
    node.longest()
    exchange(node, encode_request(8, 8, {**ready, "topics": topics}))
    assert_no_stall(node)
    exchange(node, encode_request(47, 0, {"group_id": "g", "topics": topics}))
    assert_no_stall(node)


@pytest.mark.parametrize("name", WORST)
def test_many_elements_do_not_stall_the_loop(node: ProbedNode, name: str) -> None:
    key = key_of(name)
    frame = encode_request(key, APIS[key].max_version if name != "offset_fetch" else 9, WORST[name]())
    node.longest()
    exchange(node, frame)
    assert_no_stall(node)


@pytest.mark.parametrize("key", [key for key in APIS if key != 1])
def test_large_frames_of_zeros_do_not_stall_the_loop(node: ProbedNode, key: int) -> None:
    head = struct.pack(">hhih1s", key, APIS[key].max_version, 1, 1, b"c")
    node.longest()
    exchange(node, struct.pack(">i", len(head) + FRAME) + head + bytes(FRAME))
    assert_no_stall(node)


def fetch_values(count: int, **more: Any) -> dict[str, Any]:
    """Return a fetch of the partitions of t and of some that do not exist; `more`: other fields of the request."""
    rows = [
        {"partition": number, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
        for number in range(count)
    ]
    return {
        "max_wait": timedelta(0),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": rows}],
        **more,
    }


@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_fetch_of_many_partitions_does_not_stall_the_loop(node: ProbedNode, version: int) -> None:
    frame = encode_request(1, version, fetch_values(50_000))
    node.longest()
    exchange(node, frame * 3, 3)
    assert_no_stall(node)


def test_fetch_sessions_of_many_partitions_do_not_stall_the_loop(node: ProbedNode) -> None:
    client = Client(node.address)
    node.longest()
    made = client.ask(1, 12, fetch_values(50_000, session_epoch=0))
    assert_no_stall(node)
    rows = [row["partition"] for row in fetch_values(50_000)["topics"][0]["partitions"]]
    later = {"session_id": made.session_id, "session_epoch": 1, "topics": []}
    client.ask(1, 12, fetch_values(0, **later))
    assert_no_stall(node)
    forgotten = [{"topic": "t", "partitions": rows[10:]}]
    client.ask(1, 12, fetch_values(0, **{**later, "session_epoch": 2}, forgotten_topics_data=forgotten))
    assert_no_stall(node)


def produce_frame(count: int, *, records: bytes = b"", acks: int = 1, topic: bytes = b"nope") -> bytes:
    row = struct.pack(">i", 0) + varint(len(records) + 1) + records + b"\0"
    body = struct.pack(">hhihs", 0, 9, 1, 1, b"c") + b"\0\0" + struct.pack(">hi", acks, 1000)
    body += b"\x02" + varint(len(topic) + 1) + topic + varint(count + 1) + row * count + b"\0\0"
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize(("count", "pipelined"), [(29_000, 1), (29_000, 17), (490, 64), (59_000, 2)])
def test_produce_of_many_partitions_does_not_stall_the_loop(
    node: ProbedNode, count: int, pipelined: int, acks: int
) -> None:
    node.longest()
    exchange(node, produce_frame(count, acks=acks) * pipelined, pipelined)
    assert_no_stall(node)


@pytest.mark.parametrize("acks", [1, -1])
def test_produce_of_many_batches_does_not_stall_the_loop(node: ProbedNode, acks: int) -> None:
    frame = produce_frame(10_000, records=build_batch([b"x"]), acks=acks, topic=b"t")
    node.longest()
    exchange(node, frame * 2, 2)
    assert_no_stall(node)


def test_many_tiny_frames_in_one_read_do_not_stall_the_loop(node: ProbedNode) -> None:
    frame = encode_request(18, 0, {})
    count = 4 * 65_536 // len(frame)
    node.longest()
    exchange(node, frame * count, count)
    assert_no_stall(node)


def test_frames_with_too_many_elements_do_not_stall_the_loop(node: ProbedNode) -> None:
    frame = encode_request(3, 9, {"topics": [{"name": "n"}] * (MAX_ELEMENTS + 1)})
    node.longest()
    exchange(node, frame)
    assert_no_stall(node)


def test_topics_by_unknown_ids_do_not_stall_the_loop(node: ProbedNode) -> None:
    topics = [{"topic_id": UUID(int=number + 1), "name": None} for number in range(MANY)]
    node.longest()
    exchange(node, encode_request(3, 12, {"topics": topics}))
    assert_no_stall(node)
