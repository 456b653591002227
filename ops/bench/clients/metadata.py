"""Metadata of a cluster at its limit: the latency of one client's requests for 1,000 topics of 10 partitions."""

from __future__ import annotations

import base64
import contextlib
import io
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from ops.bench.bench import Bench
from ops.bench.table import Figure, milliseconds, percentile
from storage_node.config.node_config import NodeConfig
from storage_node.directories.formatting import format_directories
from storage_node.lifecycle import garbage
from storage_node.model.assignment import Assignment
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import DirectoryRegistration, NodeImage, PartitionImage, TopicImage
from storage_node.node import Node
from storage_node.wire.table import DESCRIBE_TOPIC_PARTITIONS, METADATA

TOPICS, PARTITIONS = 1000, 10
#: The nodes of the replicas: not the responding node, which would have to create ten thousand logs.
NODES = (2, 3, 4)
WARM, CHANGES = 50, 20
WANTED = 0.02

_Request = Callable[[], None]


def metadata(bench: Bench) -> list[Figure]:
    """Measure the whole metadata in every version: warm, and the first response after a change."""
    bench.say(f"metadata of {TOPICS} topics with {PARTITIONS} partitions, in every version ...")
    with _node(bench.folder / "metadata") as node:
        image = _image(node)
        node.apply_images([image.encode()])
        garbage.settle()  # as a node's process does after its start
        versions = range(METADATA.min_version, METADATA.max_version + 1)
        with _connection(node) as connection:
            requests = [_whole(connection, version) for version in versions]
            describe = _described(connection)
            return [
                *_figures("metadata of all topics", *_measure(node, requests)),
                *_figures("DescribeTopicPartitions, 2,000 partitions", *_measure(node, [describe])),
            ]


def _figures(what: str, warm: list[float], changed: list[float], fenced: list[float]) -> list[Figure]:
    return [
        Figure(
            f"{what}, {when}: p50, p99, max",
            ", ".join(map(milliseconds, (percentile(found, 0.5), percentile(found, 0.99), max(found)))),
            "",
            max(found) / WANTED,
            f"<= {milliseconds(WANTED)}",
            max(found) <= WANTED,
        )
        for when, found in (("warm", warm), ("after a change", changed), ("after a node was fenced", fenced))
    ]


def _measure(node: Node, requests: list[_Request]) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds of single responses: warm, the first after a topic's change, the first after a fencing."""
    for request in requests:
        request()
    warm = [_timed(request) for request in requests for _ in range(WARM)]
    changed, fenced = list[float](), list[float]()
    for request in requests:
        request()  # the node evicts the cached response of a version without requests
        changed += [_after(node, request, _one_topic) for _ in range(CHANGES)]
        fenced += [_after(node, request, _fenced) for _ in range(4)]
    return warm, changed, fenced


def _timed(request: _Request) -> float:
    begun = time.perf_counter()
    request()
    return time.perf_counter() - begun


def _after(node: Node, request: _Request, change: Callable[[ClusterImage], ClusterImage]) -> float:
    image = change(node.metadata.image)
    node.metadata.publish(replace(image, version=image.version + 1))
    return _timed(request)


def _one_topic(image: ClusterImage) -> ClusterImage:
    """Return the image after elections in one topic."""
    name = f"topic-{image.version % TOPICS:04}"
    topic = image.topics[name]
    rows = tuple(replace(row, leader_epoch=row.leader_epoch + 1) for row in topic.partitions)
    return replace(image, topics={**image.topics, name: replace(topic, partitions=rows)})


def _fenced(image: ClusterImage) -> ClusterImage:
    """Return the image after a node was fenced or unfenced: a third of the partitions lose or regain their leader."""
    node = image.nodes[NODES[0]]
    nodes = {**image.nodes, node.node: replace(node, fenced=not node.fenced)}
    topics = {
        name: replace(
            topic,
            partitions=tuple(
                replace(row, leader=row.replicas[0] if node.fenced else -1, leader_epoch=row.leader_epoch + 1)
                if row.replicas == (node.node,)
                else row
                for row in topic.partitions
            ),
        )
        for name, topic in image.topics.items()
    }
    return replace(image, nodes=nodes, topics=topics)


def _image(node: Node) -> ClusterImage:
    nodes = {
        number: NodeImage(
            number, f"start-{number}", 1, "127.0.0.1", 9092 + number, (DirectoryRegistration(f"{number:022}", "/data"),)
        )
        for number in NODES
    }
    topics = {}
    for number in range(TOPICS):
        rows = []
        for index in range(PARTITIONS):
            held = NODES[(number + index) % len(NODES)]
            rows.append(PartitionImage(index, Assignment((held,)), (f"{held:022}",), (0,), (held,), held, 1, 1))
        topic_id = base64.urlsafe_b64encode(number.to_bytes(16, "big")).decode().rstrip("=")
        topics[f"topic-{number:04}"] = TopicImage(f"topic-{number:04}", "A" + topic_id[1:], {}, tuple(rows))
    return ClusterImage(node.cluster_id, 1, 1, topics, {}, nodes, {})


@contextlib.contextmanager
def _node(folder: Path) -> Iterator[Node]:
    path = folder / "disk"
    path.mkdir(parents=True)
    format_directories([str(path)], cluster_id="bench", node_id=1)
    values = {"node.id": "1", "log.dirs": str(path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    node = Node(NodeConfig.parse(values), None)
    node.start()
    try:
        yield node
    finally:
        node.stop()


@contextlib.contextmanager
def _connection(node: Node) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", node.port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def _whole(connection: socket.socket, version: int) -> _Request:
    """Return a request for all topics; its first call also verifies that the response is complete."""
    schema = load_request_schema(METADATA.key, version)
    topics = () if version == 0 else None
    frame = _frame(METADATA.key, version, schema(topics=topics, **_extra(schema)))
    seen: list[int] = []

    def request() -> None:
        connection.sendall(frame)
        response = _receive(connection)
        if not seen:
            seen.append(len(response))
            found = _decode(METADATA.key, version, response)
            if len(found.topics) != TOPICS or any(len(topic.partitions) != PARTITIONS for topic in found.topics):
                raise RuntimeError(f"metadata version {version} is incomplete: {len(found.topics)} topics")

    return request


def all_topics(connection: socket.socket) -> Any:
    """Request the whole metadata on a connection; return the response."""
    version = METADATA.max_version
    schema = load_request_schema(METADATA.key, version)
    connection.sendall(_frame(METADATA.key, version, schema(topics=None, **_extra(schema))))
    return _decode(METADATA.key, version, _receive(connection))


def _described(connection: socket.socket) -> _Request:
    schema = load_request_schema(DESCRIBE_TOPIC_PARTITIONS.key, 0)
    frame = _frame(DESCRIBE_TOPIC_PARTITIONS.key, 0, schema(topics=(), response_partition_limit=2000))

    def request() -> None:
        connection.sendall(frame)
        _receive(connection)

    return request


def _extra(schema: Any) -> dict[str, bool]:
    names = ("include_cluster_authorized_operations", "include_topic_authorized_operations")
    return {name: False for name in names if name in schema.__dataclass_fields__}


def _frame(key: int, version: int, entity: Any) -> bytes:
    buffer = io.BytesIO()
    buffer.write(struct.pack(">hhih", key, version, 1, 5) + b"bench")
    if type(entity).__flexible__:
        buffer.write(b"\0")
    entity_writer(type(entity))(buffer, entity)
    body = buffer.getvalue()
    return struct.pack(">i", len(body)) + body


def _receive(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view, have = memoryview(data), 0
    while have < size:
        got = connection.recv_into(view[have:])
        if not got:
            raise RuntimeError("the node closed the connection")
        have += got
    return bytes(data)


def _decode(key: int, version: int, frame: bytes) -> Any:
    schema = load_response_schema(key, version)
    entity, _ = entity_reader(schema)(frame, 4 + bool(schema.__flexible__))
    return entity
