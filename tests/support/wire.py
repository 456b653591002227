"""Requests made by hand with kio's codecs, over one connection, for what no client library sends."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.index import api_key_map, load_request_schema, load_response_schema
from kio.serial import entity_reader

from storage_node.wire.client.exchange import receive_frame, request_frame
from storage_node.wire.codec import write_request
from storage_node.wire.table import APIS
from tests.support.nodes.node_harness import Harness, raw_connection


@dataclass(frozen=True, slots=True)
class Row:
    """One partition's result."""

    partition: int
    error: int
    base_offset: int = -1
    high_watermark: int = -1
    records: bytes = b""
    log_start: int = -1


def encode_request(key: int, version: int, values: dict[str, Any], correlation: int = 1) -> bytes:
    """A frame with its length; nested values by kio's field names. In ApiVersions the client has a name."""
    if key == 18:
        values = {"client_software_name": "tests", "client_software_version": "1"} | values
    body = write_request(key, version, values)
    flexible = load_request_schema(key, version).__flexible__
    return request_frame(key, version, body, flexible=flexible, client="test", correlation=correlation)


class Client:
    """One connection; `send_*` and `receive_*` for pipelining, the rest does both."""

    def __init__(self, where: Harness | str) -> None:
        """`where`: a harness, or host:port."""
        self.socket: socket.socket = connection_to(where) if isinstance(where, str) else raw_connection(where, 30)
        self._correlation = 0
        self._pending: list[tuple[int, int, int]] = []
        self._ids: dict[str, UUID | None] = {}

    def close(self) -> None:
        self.socket.close()

    def closed(self) -> bool:
        """Whether the other side closes the connection, without a further word, before the timeout is over."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def send(self, key: int, version: int, values: dict[str, Any], answered: bool = True) -> int:
        self._correlation += 1
        if answered:
            self._pending.append((self._correlation, key, version))
        self.socket.sendall(encode_request(key, version, values, self._correlation))
        return self._correlation

    def receive(self) -> tuple[int, Any]:
        """The next answer: correlation id and entity."""
        expected, key, version = self._pending.pop(0)
        frame = receive_frame(self.socket)
        (correlation,) = struct.unpack_from(">i", frame)
        assert correlation == expected
        schema = load_response_schema(key, version)
        position = 4 + (1 if schema.__flexible__ and key != 18 else 0)
        entity, size = entity_reader(schema)(frame, position)
        assert position + size == len(frame), "bytes after the answer"
        return correlation, entity

    def ask(self, key: int, version: int, values: dict[str, Any] | None = None) -> Any:
        self.send(key, version, values or {})
        return self.receive()[1]

    def call(self, api: int | str, version: int, **values: Any) -> Any:
        """The answer to a request by key or name ("DescribeLogDirs"); fields by kio's names."""
        return self.ask(key_of(api), version, values)

    def topic_id(self, name: str) -> UUID | None:
        """A topic's id, asked for once; None for a topic that is not there."""
        if self._ids.get(name) is None:
            (row,) = self.call("Metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=False).topics
            self._ids[name] = row.topic_id
        return self._ids[name]

    # Produce; from version 13 on, Fetch as well, a topic goes by its id

    def send_produce(
        self,
        topic: str,
        partition: int,
        records: bytes,
        *,
        version: int = 10,
        acks: int = -1,
        transactional_id: str | None = None,
    ) -> int:
        data = {"index": partition, "records": records}
        values = {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout": timedelta(seconds=10),
            "topic_data": [self._topic("name", topic, version) | {"partition_data": [data]}],
        }
        return self.send(0, version, values, answered=acks != 0)

    def _topic(self, field: str, name: str, version: int) -> dict[str, Any]:
        return {"topic_id": self.topic_id(name)} if version >= 13 else {field: name}

    def receive_produce(self) -> tuple[int, Row]:
        correlation, answer = self.receive()
        row = answer.responses[0].partition_responses[0]
        return correlation, Row(
            row.index, int(row.error_code), row.base_offset, log_start=getattr(row, "log_start_offset", -1)
        )

    def produce(self, topic: str, partition: int, records: bytes, *, version: int = 10, acks: int = -1) -> Row:
        self.send_produce(topic, partition, records, version=version, acks=acks)
        return self.receive_produce()[1]

    # Fetch

    def send_fetch(self, topic: str, partition: int, offset: int, **kwargs: Any) -> int:
        return self._send_fetch([(topic, partition, offset)], **kwargs)

    def _send_fetch(
        self,
        wanted: list[tuple[str, int, int]],
        *,
        version: int = 12,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 50_000_000,
        partition_max_bytes: int = 1_000_000,
        leader_epoch: int = -1,
    ) -> int:
        topics: dict[str, list[dict[str, Any]]] = {}
        for topic, partition, offset in wanted:
            topics.setdefault(topic, []).append(
                {
                    "partition": partition,
                    "fetch_offset": offset,
                    "partition_max_bytes": partition_max_bytes,
                    "current_leader_epoch": leader_epoch,
                }
            )
        values = {
            "replica_id": -1,
            "max_wait": timedelta(milliseconds=max_wait_ms),
            "min_bytes": min_bytes,
            "max_bytes": max_bytes,
            "session_epoch": -1,
            "topics": [self._topic("topic", topic, version) | {"partitions": rows} for topic, rows in topics.items()],
        }
        return self.send(1, version, values)

    def receive_fetch(self) -> list[Row]:
        _, answer = self.receive()
        return [
            Row(row.partition_index, int(row.error_code), -1, row.high_watermark, bytes(row.records or b""))
            for topic in answer.responses
            for row in topic.partitions
        ]

    def fetch(self, topic: str, partition: int, offset: int, **kwargs: Any) -> list[Row]:
        self.send_fetch(topic, partition, offset, **kwargs)
        return self.receive_fetch()

    def fetch_many(self, wanted: list[tuple[str, int, int]], **kwargs: Any) -> list[Row]:
        self._send_fetch(wanted, **kwargs)
        return self.receive_fetch()


def key_of(api: int | str) -> int:
    """The key of an API by its name, "DescribeLogDirs" or "describe_log_dirs"; a key is taken as it is."""
    if isinstance(api, int):
        return api
    wanted = api.replace("_", "").lower()
    return next(key for key, name in api_key_map.items() if name.replace("_", "") == wanted)


def connection_to(address: str, timeout: float = 30.0) -> socket.socket:
    """A plain connection to host:port."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=timeout)
    connection.settimeout(timeout)
    return connection


def offered(key: int) -> range:
    """The versions that the node answers of an API."""
    return range(APIS[key].min_version, APIS[key].max_version + 1)
