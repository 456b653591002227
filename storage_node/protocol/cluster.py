"""What a client asks first: ApiVersions, DescribeCluster, and SASL, which the listener does not have."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from storage_node.errors import ErrorCode
from storage_node.metadata import ClusterImage, NodeImage
from storage_node.protocol.codec import write_response
from storage_node.protocol.framing import Answer
from storage_node.protocol.request import Request
from storage_node.protocol.table import API_VERSIONS, APIS, PRODUCE

if TYPE_CHECKING:
    from storage_node.node import Node

#: What clients may do with the cluster where nobody checks who they are: create, alter, describe, cluster actions,
#: describe and alter configs, write idempotently (KIP-430).
CLUSTER_OPERATIONS = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12

#: How a client may call itself (KIP-511).
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


async def api_versions(node: Node, request: Request) -> Answer:
    """The table of APIs; an unknown version is answered in version 0, which every client reads.

    No features are told: a cluster's finalized features are for what is not offered here (transactions, the group
    protocol of KIP-848), and clients take their absence for that.
    """
    if request.version < 0:
        own = {"api_key": API_VERSIONS.key, "min_version": 0, "max_version": API_VERSIONS.max_version}
        values: dict[str, Any] = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": [own]}
        return [request.head(), write_response(API_VERSIONS.key, 0, values)]
    if request.version >= 3:
        call = request.decode()
        if not all(map(_SOFTWARE.fullmatch, (call.client_software_name, call.client_software_version))):
            return request.encode(error_code=ErrorCode.INVALID_REQUEST)
    return [request.head(), _all_versions(request.version)]


@cache
def _all_versions(version: int) -> bytes:
    """The table of APIs as this version of the response has it: each connection of each client begins with it."""
    keys = [
        {
            "api_key": api.key,
            # As Kafka says it, though versions before 3 are not answered: older librdkafka wants to see version 0.
            "min_version": 0 if api is PRODUCE else api.min_version,
            "max_version": api.max_version,
        }
        for api in APIS.values()
    ]
    return write_response(API_VERSIONS.key, version, {"api_keys": keys})


def brokers(node: Node, image: ClusterImage) -> list[dict[str, Any]]:
    """The live nodes; before the first registration this node itself, so that a client finds somebody to ask again.

    This node stands there with the address it has now, which an image of its last start may not know.
    """
    own = {"node_id": node.id, "host": node.host, "port": node.port, "rack": node.config.rack or None}
    rows = [
        own
        if row.node == node.id
        else {"node_id": row.node, "host": row.host, "port": row.port, "rack": row.rack or None}
        for row in image.live_nodes()
    ]
    return rows or [own]


def _fenced(row: NodeImage) -> dict[str, Any]:
    return {"broker_id": row.node, "host": row.host, "port": row.port, "rack": row.rack or None, "is_fenced": True}


async def describe_cluster(node: Node, request: Request) -> Answer:
    """Cluster id and brokers; fenced ones only where the version can mark them and the client asks for them."""
    call = request.decode()
    image = node.metadata.image
    endpoint = getattr(call, "endpoint_type", 1)
    if endpoint != 1:
        known = endpoint == 2
        message = f"Unsupported endpoint type {endpoint}"
        if known:
            message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        return request.encode(error_code=error, error_message=message)
    rows = brokers(node, image)
    found = [{"broker_id": row.pop("node_id"), **row} for row in rows]
    if getattr(call, "include_fenced_brokers", False):
        fenced = (row for row in image.nodes.values() if row.fenced)
        found += [_fenced(row) for row in fenced]
    values = {"cluster_id": image.cluster or node.cluster_id, "controller_id": node.id, "brokers": found}
    if call.include_cluster_authorized_operations:
        values["cluster_authorized_operations"] = CLUSTER_OPERATIONS
    return request.encode(**values)


async def sasl_handshake(node: Node, request: Request) -> Answer:
    """Reject authentication as Apache Kafka does on a listener without SASL: ILLEGAL_SASL_STATE, no mechanisms."""
    request.decode()
    return request.encode(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])


async def sasl_authenticate(node: Node, request: Request) -> Answer:
    """Reject authentication as Apache Kafka does on a listener without SASL: ILLEGAL_SASL_STATE (KIP-152)."""
    request.decode()
    message = "This listener authenticates nobody: use security.protocol=PLAINTEXT."
    return request.encode(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=message, auth_bytes=b"")
