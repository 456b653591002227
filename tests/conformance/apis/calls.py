"""What the tests of the APIs share: versions, error codes, records."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from storage_node.log.batches.batch import build_batch

NODE = 1
SOON = timedelta(seconds=15)

ILLEGAL_SASL_STATE, NOT_AUTHORIZED = 34, 53
OUT_OF_RANGE, UNKNOWN, NOT_LEADER, INVALID_TOPIC, BAD_ACKS = 1, 3, 6, 17, 21
UNSUPPORTED, EXISTS, PARTITIONS, FACTOR, ASSIGNMENT, INVALID, POLICY = 35, 36, 37, 38, 39, 42, 44
FENCED_EPOCH, UNKNOWN_EPOCH, NOT_NEEDED, NONE_MOVING, UNKNOWN_ID, WRONG_ENDPOINT, NO_ENDPOINT = (
    74,
    75,
    84,
    85,
    100,
    114,
    115,
)

#: What a 4.x client must find an overlap with.
CLIENTS = {
    "Produce": (3, 13),
    "Fetch": (4, 18),
    "ListOffsets": (1, 11),
    "Metadata": (0, 13),
    "OffsetCommit": (2, 10),
    "OffsetFetch": (1, 10),
    "FindCoordinator": (0, 6),
    "JoinGroup": (0, 9),
    "Heartbeat": (0, 4),
    "LeaveGroup": (0, 5),
    "SyncGroup": (0, 5),
    "DescribeGroups": (0, 6),
    "ListGroups": (0, 5),
    "SaslHandshake": (0, 1),
    "ApiVersions": (0, 4),
    "CreateTopics": (2, 7),
    "DeleteTopics": (1, 6),
    "DeleteRecords": (0, 2),
    "InitProducerId": (0, 5),
    "OffsetForLeaderEpoch": (2, 4),
    "DescribeConfigs": (1, 4),
    "AlterReplicaLogDirs": (1, 2),
    "DescribeLogDirs": (1, 4),
    "SaslAuthenticate": (0, 2),
    "CreatePartitions": (0, 3),
    "DeleteGroups": (0, 2),
    "ElectLeaders": (0, 2),
    "IncrementalAlterConfigs": (0, 1),
    "AlterPartitionReassignments": (0, 1),
    "ListPartitionReassignments": (0, 0),
    "OffsetDelete": (0, 0),
    "DescribeCluster": (0, 2),
    "DescribeProducers": (0, 0),
    "DescribeTopicPartitions": (0, 0),
}


def versions(api: str) -> range:
    low, high = CLIENTS[api]
    return range(low, high + 1)


def code(row: Any) -> int:
    return int(row.error_code)


def batch(*values: bytes, at: int = 0) -> bytes:
    """Records of now: older ones would be retention's."""
    return build_batch(list(values), timestamp=at or int(time.time() * 1000))
