"""ApiVersions, DescribeCluster, and the SASL requests, which this listener rejects."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from storage_node.model.error_codes import ErrorCode
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import NodeImage
from storage_node.protocol.host import MetadataHost
from storage_node.protocol.network.framing import Answer
from storage_node.protocol.request import Request
from storage_node.wire.codec import write_response
from storage_node.wire.table import API_VERSIONS, APIS, PRODUCE

#: The authorized operations of a cluster without an authorizer (KIP-430): create, alter, describe, cluster actions,
#: describe and alter configs, idempotent write.
CLUSTER_OPERATIONS = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12

#: The valid names and versions of client software (KIP-511).
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


async def api_versions(node: MetadataHost, request: Request) -> Answer:
    """Return the supported APIs; the response to an unknown version is in version 0, which every client can read.

    The response has no finalized features: those announce transactions and the group protocol of KIP-848, which this
    node does not support.
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
    """Return the encoded table of APIs. Cached, since every connection of a client begins with this request."""
    keys = [
        {
            "api_key": api.key,
            # Kafka advertises Produce from version 0 too (KAFKA-18659): older librdkafka releases require it.
            "min_version": 0 if api is PRODUCE else api.min_version,
            "max_version": api.max_version,
        }
        for api in APIS.values()
    ]
    return write_response(API_VERSIONS.key, version, {"api_keys": keys})


def brokers(node: MetadataHost, image: ClusterImage) -> list[dict[str, Any]]:
    """Return the live nodes; before the first registration this node alone, so that a client has a broker to retry.

    This node's row has its current address: an image from before its last start may have an older one.
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


async def describe_cluster(node: MetadataHost, request: Request) -> Answer:
    """Return the cluster id and the brokers; fenced ones if the client requests them (KIP-1073, from version 2 on)."""
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


async def sasl_handshake(node: MetadataHost, request: Request) -> Answer:
    """Reject authentication as Apache Kafka does on a listener without SASL: ILLEGAL_SASL_STATE, no mechanisms."""
    request.decode()
    return request.encode(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])


async def sasl_authenticate(node: MetadataHost, request: Request) -> Answer:
    """Reject authentication as Apache Kafka does on a listener without SASL: ILLEGAL_SASL_STATE (KIP-152)."""
    request.decode()
    message = "This listener does not support authentication: set security.protocol=PLAINTEXT."
    return request.encode(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=message, auth_bytes=b"")
