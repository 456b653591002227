"""What a client asks first: ApiVersions, Metadata, DescribeCluster, ListPartitionReassignments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storage_node.errors import ErrorCode
from storage_node.metadata import ClusterImage, PartitionImage, TopicImage
from storage_node.protocol.codec import id_of, uuid_of, write_response
from storage_node.protocol.framing import Answer
from storage_node.protocol.request import Request
from storage_node.protocol.table import API_VERSIONS, APIS

if TYPE_CHECKING:
    from storage_node.node import Node


async def api_versions(node: Node, request: Request) -> Answer:
    """The table of APIs; an unknown version is answered in version 0, which every client reads."""
    keys = [
        {"api_key": api.key, "min_version": api.min_version, "max_version": api.max_version} for api in APIS.values()
    ]
    if request.version < 0:
        values: dict[str, Any] = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": keys}
        return [request.head(), write_response(API_VERSIONS.key, 0, values)]
    if request.version >= 3:
        request.decode()
    return request.encode(api_keys=keys)


async def metadata(node: Node, request: Request) -> Answer:
    """Brokers and topics of the newest image, serialised once per image and question."""
    image = node.metadata.image
    body = bytes(request.frame[request.position :])
    cached = node.answers.find(image, request.version, body)
    if cached is not None:
        return [request.head(), cached]
    call = request.decode()
    wanted = _wanted(request.version, call)
    if node.config.auto_create_topics and getattr(call, "allow_auto_topic_creation", True):
        missing = [name for name, _ in wanted or () if name and name not in image.topics]
        if missing:
            await node.admin.create_missing(missing)
            image = node.metadata.image
    asked = image.topics.values() if wanted is None else _known(image, wanted)
    rows = sum(len(topic.partitions) for topic in asked) + len(wanted or ())

    def make() -> bytes:
        return write_response(request.api.key, request.version, _metadata(node, image, request.version, wanted))

    return [request.head(), await node.answers.make(image, request.version, body, rows, make)]


def _known(image: ClusterImage, wanted: list[tuple[str, str]]) -> list[TopicImage]:
    return [topic for name, _ in wanted if name and (topic := image.topics.get(name)) is not None]


def _wanted(version: int, call: Any) -> list[tuple[str, str]] | None:
    """The (name, id) pairs asked for, None for all topics."""
    if call.topics is None or (version == 0 and not call.topics):
        return None
    return [(topic.name or "", id_of(getattr(topic, "topic_id", None))) for topic in call.topics]


def _metadata(node: Node, image: ClusterImage, version: int, wanted: list[tuple[str, str]] | None) -> dict[str, Any]:
    live = {row.node for row in image.live_nodes()}
    lost = _offline_directories(image)
    topics: list[dict[str, Any]] = []
    if wanted is None:
        topics = [_topic(topic, live, lost) for topic in image.topics.values()]
    for name, topic_id in wanted or ():
        topic = image.topics.get(name) if name else image.topic_by_id(topic_id)
        if topic is not None:
            topics.append(_topic(topic, live, lost))
        else:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name else ErrorCode.UNKNOWN_TOPIC_ID
            row = {"error_code": error, "name": name or ("" if version < 12 else None), "topic_id": uuid_of(topic_id)}
            topics.append(row)
    return {
        "brokers": brokers(node, image),
        "cluster_id": image.cluster or node.cluster_id,
        "controller_id": node.id,
        "topics": topics,
    }


def brokers(node: Node, image: ClusterImage) -> list[dict[str, Any]]:
    """The live nodes; before the first registration this node itself, so that a client finds somebody to ask again.

    This node stands there with the address it has now, which an image of its last start may not know.
    """
    own = {"node_id": node.id, "host": node.host, "port": node.port}
    rows = [
        own if row.node == node.id else {"node_id": row.node, "host": row.host, "port": row.port}
        for row in image.live_nodes()
    ]
    return rows or [own]


def _offline_directories(image: ClusterImage) -> set[tuple[int, str]]:
    return {(row.node, id_) for row in image.nodes.values() for id_, _, online in row.directories if not online}


def _topic(topic: TopicImage, live: set[int], lost: set[tuple[int, str]]) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": uuid_of(topic.id),
        "partitions": [_partition(row, live, lost) for row in topic.partitions.values()],
    }


def _partition(row: PartitionImage, live: set[int], lost: set[tuple[int, str]]) -> dict[str, Any]:
    directories = row.directories or ("",) * len(row.replicas)
    offline = [
        replica
        for replica, directory in zip(row.replicas, directories, strict=False)
        if replica not in live or (replica, directory) in lost
    ]
    leader = row.leader if row.leader in live else -1
    return {
        "error_code": ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
        "partition_index": row.partition,
        "leader_id": leader,
        "leader_epoch": row.leader_epoch,
        "replica_nodes": row.replicas,
        "isr_nodes": row.isr,
        "offline_replicas": offline,
    }


async def describe_cluster(node: Node, request: Request) -> Answer:
    """Cluster id and brokers; fenced ones only where the version can mark them and the client asks for them."""
    call = request.decode()
    image = node.metadata.image
    endpoint = getattr(call, "endpoint_type", 1)
    if endpoint != 1:
        return request.encode(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="controllers are not reached through Kafka's protocol here; ask for brokers",
            endpoint_type=endpoint,
            cluster_id=image.cluster or node.cluster_id,
        )
    rows = brokers(node, image)
    found = [{"broker_id": row["node_id"], "host": row["host"], "port": row["port"]} for row in rows]
    if getattr(call, "include_fenced_brokers", False):
        fenced = (row for row in image.nodes.values() if row.fenced)
        found += [{"broker_id": row.node, "host": row.host, "port": row.port, "is_fenced": True} for row in fenced]
    return request.encode(cluster_id=image.cluster or node.cluster_id, controller_id=node.id, brokers=found)


async def list_partition_reassignments(node: Node, request: Request) -> Answer:
    """The partitions whose replica set is changing, of those asked for (null: all)."""
    call = request.decode()
    asked = None
    if call.topics is not None:
        asked = {(topic.name, index) for topic in call.topics for index in topic.partition_indexes}
    topics = []
    for topic in node.metadata.image.topics.values():
        rows = [
            {
                "partition_index": row.partition,
                "replicas": row.replicas,
                "adding_replicas": row.adding,
                "removing_replicas": row.removing,
            }
            for row in topic.partitions.values()
            if (row.adding or row.removing) and (asked is None or (topic.name, row.partition) in asked)
        ]
        if rows:
            topics.append({"name": topic.name, "partitions": rows})
    return request.encode(topics=topics)


async def alter_partition_reassignments(node: Node, request: Request) -> Answer:
    """Moves between nodes are not offered, but a request that changes no replica set is answered as Kafka does.

    Kafka's tool sends the replica sets along with the log directories, also where only the latter change.
    """
    call = request.decode()
    image = node.metadata.image
    topics = []
    for topic in call.topics:
        known = image.topics.get(topic.name)
        rows = []
        for asked in topic.partitions:
            row = known.partitions.get(asked.partition_index) if known else None
            code, message = _reassign(topic.name, asked, row)
            rows.append({"partition_index": asked.partition_index, "error_code": code, "error_message": message})
        topics.append({"name": topic.name, "partitions": rows})
    return request.encode(responses=topics)


def _reassign(topic: str, asked: Any, row: PartitionImage | None) -> tuple[ErrorCode, str | None]:
    if row is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{asked.partition_index}."
    if asked.replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None
    if tuple(asked.replicas) == row.replicas:
        return ErrorCode.NONE, None
    message = (
        f"{topic}-{asked.partition_index} has the replicas {list(row.replicas)}; moving a replica to another node "
        "is not offered by this cluster, only to another log directory of its node."
    )
    return ErrorCode.INVALID_REPLICA_ASSIGNMENT, message
