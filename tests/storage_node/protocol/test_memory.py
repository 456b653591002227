"""The requests of a hostile client leave at most 64 MB in the node's memory.

Each attack has once filled a cache, a queue or a table. The node runs in its own process, so that the test can measure
its resident set; requests may hold `queued.max.request.bytes` in addition.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.wire.client.exchange import receive_frame, request_frame
from storage_node.wire.codec import write_request
from storage_node.wire.table import APIS, PRIVATE
from tests.support.scale import scaled, tally
from tests.support.wire import Client, connection_to

MIB = 1 << 20
ALLOWED = 64 * MIB
QUEUED = 16 * MIB
#: Seconds of each attack; in a full run ten minutes for all of them.
SECONDS = scaled(5, 300) / 10
CONNECTIONS = 4
PIPELINED = 20
LONGEST = 32_767

_NODE = """
import sys, time
from pathlib import Path
from tests.support.nodes.node_harness import Harness, until
harness = Harness(Path(sys.argv[1]), 1, {
    "socket.request.max.bytes": str(1 << 23), "queued.max.request.bytes": sys.argv[2],
    "group.initial.rebalance.delay.ms": "0",
})
harness.start()
harness.create_topic("t", 4)
until(lambda: harness.node.groups.settled == 1)
print(harness.node.port, flush=True)
sys.stdin.read()
"""

Frames = Iterator[bytes]
_numbers = itertools.count()


def frame(key: int, version: int, values: dict[str, Any], client: str = "worst") -> bytes:
    body = write_request(key, version, values)
    return request_frame(key, version, body, flexible=version >= APIS[key].flexible, client=client, correlation=1)


def unique(length: int) -> str:
    """Return a unique name."""
    return f"{next(_numbers)}-".ljust(length, "n")


def produced(topic: str, partition: int, records: bytes) -> bytes:
    data = {"topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]}
    values = {"transactional_id": None, "acks": -1, "timeout": timedelta(seconds=5), **data}
    return frame(0, 9, values)


def batch(producer: int) -> bytes:
    return build_batch([b"x"], producer_id=producer, producer_epoch=0, base_sequence=0)


def committed(group: str, metadata: str, topic: str = "t") -> bytes:
    rows = [
        {
            "partition_index": index,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": metadata,
        }
        for index in range(4)
    ]
    values = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    return frame(8, 8, values | {"topics": [{"name": topic, "partitions": rows}]})


def joined(group: str, version: int, client: str = "c", size: int = 10, instance: str | None = None) -> bytes:
    values = {
        "group_id": group,
        "session_timeout": timedelta(minutes=30),
        "rebalance_timeout": timedelta(milliseconds=1),
        "member_id": "",
        "group_instance_id": instance,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": bytes(size)}],
    }
    return frame(11, version, values, client)


def private(call: dict[str, Any]) -> bytes:
    body = json.dumps(call).encode()
    return request_frame(PRIVATE.key, 0, body, flexible=False, client="worst", correlation=1)


def resource(name: str) -> bytes:
    return frame(32, 4, {"resources": [{"resource_type": 2, "resource_name": name, "configuration_keys": None}]})


def created(name: str) -> bytes:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return frame(19, 5, {"topics": [topic], "timeout": timedelta(seconds=5), "validate_only": True})


#: One request after the other, each new to the node.
ATTACKS: dict[str, Callable[[], bytes]] = {
    "batches for topics of long names": lambda: produced(unique(LONGEST), 0, batch(next(_numbers))),
    "batches for topics that do not exist": lambda: produced(unique(249), 0, batch(next(_numbers))),
    "metadata of long names": lambda: frame(3, 9, {"topics": [{"name": unique(LONGEST)}]}),
    "coordinators of long keys": lambda: frame(10, 4, {"key_type": 0, "coordinator_keys": [unique(LONGEST)]}),
    "coordinators of many keys": lambda: frame(
        10, 4, {"key_type": 0, "coordinator_keys": [unique(60) for _ in range(200)]}
    ),
    "offsets of groups with long ids": lambda: committed(unique(LONGEST), ""),
    "offsets with metadata of wide characters": lambda: committed(unique(20), "\U0001f600" + "m" * 4095),
    "offsets of many groups": lambda: committed(unique(20), ""),
    "ids that no member joins with": lambda: joined(unique(20), 5, client=unique(30_000)),
    "ids of one group that no member joins with": lambda: joined("pending", 5, client=unique(30_000)),
    "members with large metadata": lambda: joined(unique(20), 3, size=MIB),
    "static members": lambda: joined("static", 5, instance=unique(30_000), size=1000),
    "producers of one record": lambda: produced("t", random.randrange(4), batch(next(_numbers))),
    "a client's software": lambda: frame(18, 3, {"client_software_name": unique(LONGEST)}),
    "configs of long names": lambda: resource(unique(LONGEST)),
    "topics to be created with long names": lambda: created(unique(LONGEST)),
    "groups requested in a node's name": lambda: private(
        {"op": "groups-give", "node": 1, "generation": 1, "after": unique(1000)}
    ),
    "groups dropped without a token": lambda: private(
        {
            "op": "groups-taken",
            "node": 1,
            "generation": 1,
            "after": "",
            "last": unique(1000),
            "token": f"{10**17}.{unique(1000)}",
        }
    ),
}


class NodeProcess:
    """A node in its own process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process = process
        self.address = f"127.0.0.1:{int(process.stdout.readline())}"

    @property
    def resident(self) -> int:
        """Bytes."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def settled(self) -> int:
        """Return the resident set after the temporary state has been released."""
        least = self.resident
        for _ in range(5):
            time.sleep(0.1)
            least = min(least, self.resident)
        return least


@contextmanager
def node_process(root: Path) -> Iterator[NodeProcess]:
    process = subprocess.Popen(
        [sys.executable, "-c", _NODE, str(root), str(QUEUED)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield NodeProcess(process)
    finally:
        process.kill()
        process.communicate()


def attack(address: str, request: Callable[[], bytes], seconds: float) -> int:
    """Send requests over several connections for a while; returns how many."""
    until = time.monotonic() + seconds
    sent = [0] * CONNECTIONS

    def run(number: int) -> None:
        while time.monotonic() < until:
            # A new connection after each volley: the node must release a connection's state when it closes.
            with connection_to(address, 1) as connection, suppress(OSError):
                frames = [request() for _ in range(PIPELINED)]
                connection.sendall(b"".join(frames))
                sent[number] += len(frames)
                for _ in frames:
                    receive_frame(connection)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(sent)


@pytest.mark.timeout(1800)
def test_hostile_client_leaves_less_than_64_mb(tmp_path: Path) -> None:
    with node_process(tmp_path) as node, tally("requests of a client that does its worst") as counted:
        for request in ATTACKS.values():
            attack(node.address, request, 0.05)  # for imports and one-time allocations
        before = node.settled()
        grown: dict[str, int] = {}
        for name, request in ATTACKS.items():
            counted.count += attack(node.address, request, SECONDS)
            grown[name] = (node.settled() - before) // MIB
            assert grown[name] * MIB < ALLOWED + QUEUED, grown
        connections = half_sent(node.address)
        grown["half-sent requests"] = (node.settled() - before) // MIB
        assert grown["half-sent requests"] * MIB < ALLOWED + QUEUED, grown
        for connection in connections:
            connection.close()
        assert (node.settled() - before) < ALLOWED, grown
        client = Client(node.address)
        assert len(client.ask(18, 3).api_keys) == len(APIS), "and the node serves"
        client.close()


def half_sent(address: str) -> list[socket.socket]:
    """Open connections, each with a part of a request that the client never completes."""
    made = []
    for index in range(1500):
        connection = connection_to(address, 10)
        connection.sendall((8 * MIB - 8).to_bytes(4, "big") + bytes(8 if index % 2 else 8192))
        made.append(connection)
    return made
