"""Metadata and DescribeTopicPartitions: the brokers and topics of the newest image."""

from __future__ import annotations

from typing import Any, Protocol

from storage_node.directories.names import validate_topic
from storage_node.errors import RequestRefused
from storage_node.model.error_codes import ErrorCode
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import TopicImage
from storage_node.protocol.apis.cluster import CLUSTER_OPERATIONS, brokers
from storage_node.protocol.apis.metadata_responses import Answers
from storage_node.protocol.apis.topic_rows import DESCRIBED, NO_ID, NO_OPERATIONS, Layout, layout_of, raw_id
from storage_node.protocol.host import AdminHost
from storage_node.protocol.network.framing import Answer
from storage_node.protocol.request import Request
from storage_node.wire.codec import id_of
from storage_node.wire.primitives import array, string

#: max.request.partition.size.limit: the most partitions in a response of DescribeTopicPartitions.
MOST_DESCRIBED = 2000

#: A requested topic as (name, id); None or "" for the one that the request does not have.
_Wanted = tuple[str | None, str]


class TopicsHost(AdminHost, Protocol):
    """The node, as the requests for topics see it, which may create them."""

    @property
    def answers(self) -> Answers: ...


async def metadata(node: TopicsHost, request: Request) -> Answer:
    """Return brokers and topics; the response is built once per image and request."""
    image = node.metadata.image
    # The cache belongs to the listener's loop; a large request is handled on another one.
    body = b"" if request.large else bytes(request.frame[request.position :])
    cached = None if request.large else node.answers.find(image, request.version, body)
    if cached is not None:
        return [request.head(), cached]
    call = request.decode()
    version, layout = request.version, layout_of(request.version)
    wanted = _wanted(version, call)
    refused = wanted is not None and 10 <= version < 12 and any(id_ or name is None for name, id_ in wanted)
    made = node.config.auto_create_topics and getattr(call, "allow_auto_topic_creation", True)
    if made and wanted is not None and not refused:
        missing = [name for name, _ in wanted if name and name not in image.topics]
        if missing:
            await node.admin.create_missing(missing)
            image = node.metadata.image
    found = list(image.topics.values()) if wanted is None else _known(image, wanted)
    rows = node.answers.rows
    view = rows.view(image)
    allowed = getattr(call, "include_topic_authorized_operations", False)

    def make() -> bytes:
        if refused:
            topics = [layout.missing(name or "", raw_id(id_), ErrorCode.INVALID_REQUEST) for name, id_ in wanted or ()]
        else:
            topics = rows.rows(layout, found, view)
            topics = [layout.allowed(row) for row in topics] if allowed else topics
            topics += _missing(image, layout, version, wanted or ())
        operations = getattr(call, "include_cluster_authorized_operations", False)
        return _encode(node, image, version, topics, operations)

    if request.large:
        return [request.head(), make()]
    count = rows.stale(layout, found, view) + len(wanted or ())
    return [request.head(), await node.answers.make(image, version, body, count, make)]


def _wanted(version: int, call: Any) -> list[_Wanted] | None:
    """Return the requested topics without duplicates; None for all topics."""
    if call.topics is None or (version == 0 and not call.topics):
        return None
    requested = ((topic.name, id_of(getattr(topic, "topic_id", None))) for topic in call.topics)
    # A request by id has a null name, or an empty one from the Java client.
    return list(dict.fromkeys((name if name or not id_ else None, id_) for name, id_ in requested))


def _find(image: ClusterImage, wanted: _Wanted) -> TopicImage | None:
    name, topic_id = wanted
    return image.topics.get(name) if name is not None else image.topic_by_id(topic_id)


def _known(image: ClusterImage, wanted: list[_Wanted]) -> list[TopicImage]:
    return [topic for each in wanted if (topic := _find(image, each)) is not None]


def _missing(image: ClusterImage, layout: Layout, version: int, wanted: list[_Wanted] | tuple[()]) -> list[bytes]:
    out = []
    for name, topic_id in wanted:
        if _find(image, (name, topic_id)) is not None:
            continue
        if name is None:
            out.append(layout.missing(None if version >= 12 else "", raw_id(topic_id), ErrorCode.UNKNOWN_TOPIC_ID))
        else:
            out.append(layout.missing(name, NO_ID, unknown(name)))
    return out


def unknown(name: str) -> ErrorCode:
    """Return the error of a topic that does not exist: INVALID_TOPIC_EXCEPTION if the name is not valid."""
    try:
        validate_topic(name)
    except RequestRefused:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _encode(node: TopicsHost, image: ClusterImage, version: int, topics: list[bytes], operations: bool) -> bytes:
    flexible = version >= 9
    end = b"\0" if flexible else b""
    found = brokers(node, image)
    head = bytearray(b"" if version < 3 else bytes(4))
    head += array(len(found), flexible)
    for row in found:
        head += row["node_id"].to_bytes(4, "big") + string(row["host"], flexible) + row["port"].to_bytes(4, "big")
        if version >= 1:
            head += string(row["rack"], flexible) if row["rack"] else b"\0" if flexible else b"\xff\xff"
        head += end
    if version >= 2:
        head += string(image.cluster or node.cluster_id, flexible)
    if version >= 1:
        head += node.id.to_bytes(4, "big")
    head += array(len(topics), flexible)
    tail = b""
    if 8 <= version <= 10:
        tail += CLUSTER_OPERATIONS.to_bytes(4, "big") if operations else NO_OPERATIONS
    if version >= 13:
        tail += b"\0\0"
    return b"".join((bytes(head), *topics, tail, end))


async def describe_topic_partitions(node: TopicsHost, request: Request) -> Answer:
    """Return topics ordered by name, from a cursor on, with as many partitions as requested (KIP-966)."""
    call = request.decode()
    image, cursor = node.metadata.image, call.cursor
    everything = not call.topics
    names = node.answers.sorted_names(image) if everything else sorted({topic.name for topic in call.topics})
    begin = "" if cursor is None else cursor.topic_name
    names = [name for name in names if name >= begin]
    if cursor is not None and (cursor.partition_index < 0 or (not everything and begin not in names)):
        topics = [DESCRIBED.missing(topic.name, NO_ID, ErrorCode.INVALID_REQUEST) for topic in call.topics]
        return [request.head(), _described(topics, None)]
    limit = max(1, min(MOST_DESCRIBED, call.response_partition_limit))
    first = 0 if cursor is None else cursor.partition_index
    whole, found, cut, after = _choose(image, names, begin, first, limit, everything)
    rows = node.answers.rows
    view = rows.view(image)
    encoded = iter(rows.rows(DESCRIBED, whole, view))
    topics = []
    for name, topic in found:
        if topic is None:
            topics.append(DESCRIBED.missing(name, NO_ID, unknown(name)))
        elif name in cut:
            shown = [row for index in cut[name] if (row := topic.partition(index)) is not None]
            head = DESCRIBED.head(name, topic.id, len(shown))
            topics.append(head + DESCRIBED.partitions(shown, view) + DESCRIBED.tail())
        else:
            topics.append(next(encoded))
    return [request.head(), _described([DESCRIBED.allowed(row) for row in topics], after)]


def _choose(
    image: ClusterImage, names: list[str], begin: str, first: int, limit: int, everything: bool
) -> tuple[list[TopicImage], list[tuple[str, TopicImage | None]], dict[str, range], tuple[str, int] | None]:
    """Choose the topics of one response.

    Returns the topics with all their partitions, the names of all topics, the partition indexes of the truncated ones,
    and the cursor of the next response.
    """
    whole: list[TopicImage] = []
    found: list[tuple[str, TopicImage | None]] = []
    cut: dict[str, range] = {}
    left = limit
    for name in names:
        if left == 0:
            return whole, found, cut, (name, 0)
        topic = image.topics.get(name)
        if topic is None:
            if not everything:
                found.append((name, None))
            continue
        found.append((name, topic))
        start, count = first if name == begin else 0, len(topic.partitions)
        stop = min(count, start + left)
        if start == 0 and stop == count:
            whole.append(topic)
        else:
            cut[name] = range(start, stop)
        left -= max(0, stop - start)
        if stop < count:
            return whole, found, cut, (name, stop)
    return whole, found, cut, None


def _described(topics: list[bytes], after: tuple[str, int] | None) -> bytes:
    cursor = b"\xff"
    if after is not None:
        cursor = b"\x01" + string(after[0], True) + after[1].to_bytes(4, "big") + b"\0"
    return b"".join((bytes(4), array(len(topics), True), *topics, cursor, b"\0"))
