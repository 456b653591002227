"""Followers made by hand: registered with the controller of a `MemoryCluster`, they fetch when and what a test says."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from storage_node.log.batches.batch import headers
from storage_node.model.command_rows import encode
from storage_node.model.commands import Registration
from storage_node.model.metadata import DirectoryRegistration
from tests.support.nodes.memory_cluster import MemoryCluster
from tests.support.nodes.node_harness import until
from tests.support.wire import Client

FETCH_VERSION = 17


class HandFollower:
    """A node that is only its registration and a connection to node 1."""

    def __init__(self, cluster: MemoryCluster, number: int, leader: int = 1) -> None:
        self.cluster = cluster
        self.number = number
        self.client = Client(f"127.0.0.1:{cluster.nodes[leader].port}")
        self.ends: dict[tuple[str, int], int] = {}
        self.directory = secrets.token_urlsafe(16)
        self.register()

    def register(self) -> None:
        """A start of the node: a new incarnation, and with it a new broker epoch."""
        incarnation = secrets.token_hex(8)
        directories = (DirectoryRegistration(self.directory, f"/data/{self.number}"),)
        one = Registration(self.number, incarnation, "127.0.0.1", 1, directories)
        metadata = SimpleNamespace(image=SimpleNamespace(pair=(0, 0)))
        node: Any = SimpleNamespace(
            id=self.number, incarnation=incarnation, metadata=metadata, apply_images=lambda *_: None
        )
        (result,) = self.cluster.controller.submit(node, encode(one))
        assert not result.get("error"), result
        self.cluster.controller.spread()

    @property
    def epoch(self) -> int:
        """The broker epoch that the controller gave it."""
        return self.cluster.controller.state.nodes[self.number].broker_epoch

    def close(self) -> None:
        self.client.close()

    def send(self, topic: str, partition: int, offset: int, **more: Any) -> None:
        """Ask for the records from an offset on, in one partition."""
        self.send_many(topic, {partition: offset}, **more)

    def send_many(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        broker_epoch: int | None = None,
        leader_epoch: int = -1,
        last_epoch: int = -1,
        log_start: int = 0,
        max_wait_ms: int = 0,
        max_bytes: int = 50_000_000,
    ) -> None:
        rows = [
            {
                "partition": partition,
                "fetch_offset": offset,
                "partition_max_bytes": min(max_bytes, 1 << 20),  # one partition must not hold all of it
                "current_leader_epoch": leader_epoch,
                "last_fetched_epoch": last_epoch,
                "log_start_offset": log_start,
            }
            for partition, offset in offsets.items()
        ]
        epoch = self.epoch if broker_epoch is None else broker_epoch
        values = {
            "replica_state": {"replica_id": self.number, "replica_epoch": epoch},
            "max_wait": timedelta(milliseconds=max_wait_ms),
            "min_bytes": 1,
            "max_bytes": max_bytes,
            "session_epoch": -1,
            "topics": [{"topic_id": self.client.topic_id(topic), "partitions": rows}],
        }
        self.client.send(1, FETCH_VERSION, values)

    def receive(self) -> Any:
        """The rows of the answer, as kio has them."""
        _, answer = self.client.receive()
        return [row for topic in answer.responses for row in topic.partitions]

    def fetch(self, topic: str, offset: int, partition: int = 0, **more: Any) -> Any:
        """One row."""
        self.send(topic, partition, offset, **more)
        (row,) = self.receive()
        return row

    def catch_up(self, topic: str, partition: int = 0, **more: Any) -> int:
        """Fetch until there is nothing more, and say so; answers its log end offset."""

        def at_end() -> bool:
            offset = self.ends.get((topic, partition), 0)
            row = self.fetch(topic, offset, partition, **more)
            assert not row.error_code, row.error_code
            for _, header in headers(bytes(row.records or b"")):
                offset = header.next_offset
            moved = offset != self.ends.get((topic, partition), 0)
            self.ends[topic, partition] = offset
            return not moved

        until(at_end, what=f"follower {self.number} is at the end of {topic}-{partition}")
        return self.ends[topic, partition]
