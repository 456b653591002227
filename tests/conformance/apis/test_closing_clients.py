"""A client that closes its connection behind its requests: what arrived before the close is served.

Apache Kafka reads a request, responds, and reads the next one, so that it sees the close only behind the last request.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.conformance.apis.calls import NODE, SOON, batch, code
from tests.conformance.clusters import Cluster
from tests.support.nodes.node_harness import until
from tests.support.wire import Client

MANY = 500
CREATED = timedelta(seconds=20)


def end(client: Client) -> None:
    """Close as kafkajs's disconnect() does: the close follows the last byte that was written."""
    client.socket.shutdown(socket.SHUT_WR)
    client.socket.close()


def close(client: Client) -> None:
    client.socket.close()


def reset(client: Client) -> None:
    """End with a reset, once the node's machine has all bytes."""
    until(lambda: fcntl.ioctl(client.socket, termios.TIOCOUTQ, bytes(4)) == bytes(4), what="the bytes have arrived")
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


def half_close(client: Client) -> None:
    client.socket.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("leave", [end, close, half_close, reset])
@pytest.mark.parametrize("size", [20, 5_000, 40_000])
def test_acks_0_produces_ahead_of_a_close_are_all_appended(
    cluster: Cluster, topic: str, leave: Callable[[Client], None], size: int
) -> None:
    client = cluster.wire(NODE)
    for number in range(MANY):
        client.send_produce(topic, 0, batch(b"%05d" % number + bytes(size)), acks=0, version=7)
    leave(client)
    cluster.eventually(lambda: cluster.end_offset(topic) == MANY, f"{MANY} records")
    (row,) = cluster.wire(NODE).fetch(topic, 0, 0, partition_max_bytes=50_000_000)
    places = [row.records.index(b"%05d" % number) for number in range(0, MANY, 25)]
    assert places == sorted(places), "in the order in which they were sent"


def test_every_request_ahead_of_a_half_close_is_answered_in_order(cluster: Cluster, topic: str) -> None:
    client = cluster.wire(NODE)
    for number in range(100):
        client.send_produce(topic, 0, batch(b"%05d" % number))
    client.send(3, 9, {"topics": [{"name": topic}]})
    client.send_fetch(topic, 1, 0, max_wait_ms=1_000)
    client.send_produce(topic, 1, batch(b"last"))
    half_close(client)
    assert [client.receive_produce()[1].base_offset for _ in range(100)] == list(range(100))
    assert client.receive()[1].topics[0].name == topic
    assert client.receive_fetch()[0].error == 0, "also one that waits for records in vain"
    assert client.receive_produce()[1].error == 0
    assert client.closed()


def test_half_close_in_the_middle_of_a_request_ends_the_connection_behind_the_answers(
    cluster: Cluster, topic: str
) -> None:
    client = cluster.wire(NODE)
    client.send_produce(topic, 0, batch(b"whole"))
    client.socket.sendall(struct.pack(">i", 1000) + bytes(10))
    half_close(client)
    assert client.receive_produce()[1].error == 0
    assert client.closed()


def test_changes_ahead_of_a_close_are_made(cluster: Cluster, topic: str) -> None:
    made, group = topic + "-made", topic + "-group"
    client = cluster.wire(NODE)
    rows = [{"name": made, "num_partitions": 1, "replication_factor": 1}]
    client.send(19, 5, {"topics": rows, "timeout": CREATED, "validate_only": False})
    configs = [{"name": "retention.ms", "config_operation": 0, "value": "12345"}]
    resources = [{"resource_type": 2, "resource_name": topic, "configs": configs}]
    client.send(44, 1, {"resources": resources, "validate_only": False})
    end(client)
    cluster.eventually(lambda: cluster.leaders(made), "the topic is created")

    def configured() -> bool:
        asked = [{"resource_type": 2, "resource_name": topic, "configuration_keys": ["retention.ms"]}]
        answer = cluster.call("DescribeConfigs", 4, node=NODE, resources=asked)
        return bool(answer.results[0].configs[0].value == "12345")

    cluster.eventually(configured, "the config is set")
    asking = cluster.wire(NODE)

    def coordinator() -> int:
        return int(asking.call("FindCoordinator", 3, key=group, key_type=0).node_id)

    cluster.eventually(lambda: coordinator() > 0, "the group has a coordinator")
    node = coordinator()
    committing = cluster.wire(node)
    cluster.eventually(lambda: code(_commit(committing, group, topic, 1)) == 0, "the coordinator has loaded")
    committing.send(8, 7, _commit_values(group, topic, 5))
    end(committing)

    def committed() -> int:
        asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}], "require_stable": False}
        answer = cluster.call("OffsetFetch", 7, node=node, **asked)
        return int(answer.topics[0].partitions[0].committed_offset)

    cluster.eventually(lambda: committed() == 5, "the offset is committed")
    cluster.call("DeleteTopics", 6, topics=[{"name": made, "topic_id": None}], timeout=SOON)


def _commit_values(group: str, topic: str, offset: int) -> dict[str, object]:
    rows = [{"partition_index": 0, "committed_offset": offset}]
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": topic, "partitions": rows}],
    }


def _commit(client: Client, group: str, topic: str, offset: int) -> object:
    return client.ask(8, 7, _commit_values(group, topic, offset)).topics[0].partitions[0]
