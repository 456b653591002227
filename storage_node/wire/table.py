"""The table of APIs: keys, names and supported versions.

The version ranges are those that both Apache Kafka 4.x and kio support. The APIs of transactions (24 to 28), share
groups and the like are missing: from their absence in ApiVersions clients know that the cluster does not support them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its key, kio's module name, the supported versions, and the first version with flexible headers."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible: int


PRODUCE = Api(0, "produce", 3, 13, 9)
FETCH = Api(1, "fetch", 4, 18, 12)
LIST_OFFSETS = Api(2, "list_offsets", 1, 11, 6)
METADATA = Api(3, "metadata", 0, 13, 9)
OFFSET_COMMIT = Api(8, "offset_commit", 2, 10, 8)
OFFSET_FETCH = Api(9, "offset_fetch", 1, 10, 6)
FIND_COORDINATOR = Api(10, "find_coordinator", 0, 6, 3)
JOIN_GROUP = Api(11, "join_group", 0, 9, 6)
HEARTBEAT = Api(12, "heartbeat", 0, 4, 4)
LEAVE_GROUP = Api(13, "leave_group", 0, 5, 4)
SYNC_GROUP = Api(14, "sync_group", 0, 5, 4)
DESCRIBE_GROUPS = Api(15, "describe_groups", 0, 6, 5)
LIST_GROUPS = Api(16, "list_groups", 0, 5, 3)
SASL_HANDSHAKE = Api(17, "sasl_handshake", 0, 1, 1 << 15)
API_VERSIONS = Api(18, "api_versions", 0, 4, 3)
CREATE_TOPICS = Api(19, "create_topics", 2, 7, 5)
DELETE_TOPICS = Api(20, "delete_topics", 1, 6, 4)
DELETE_RECORDS = Api(21, "delete_records", 0, 2, 2)
INIT_PRODUCER_ID = Api(22, "init_producer_id", 0, 6, 2)
OFFSET_FOR_LEADER_EPOCH = Api(23, "offset_for_leader_epoch", 2, 4, 4)
DESCRIBE_CONFIGS = Api(32, "describe_configs", 1, 4, 4)
ALTER_CONFIGS = Api(33, "alter_configs", 0, 2, 2)
ALTER_REPLICA_LOG_DIRS = Api(34, "alter_replica_log_dirs", 1, 2, 2)
DESCRIBE_LOG_DIRS = Api(35, "describe_log_dirs", 1, 5, 2)
SASL_AUTHENTICATE = Api(36, "sasl_authenticate", 0, 2, 2)
CREATE_PARTITIONS = Api(37, "create_partitions", 0, 3, 2)
DELETE_GROUPS = Api(42, "delete_groups", 0, 2, 2)
ELECT_LEADERS = Api(43, "elect_leaders", 0, 2, 2)
INCREMENTAL_ALTER_CONFIGS = Api(44, "incremental_alter_configs", 0, 1, 1)
ALTER_PARTITION_REASSIGNMENTS = Api(45, "alter_partition_reassignments", 0, 1, 0)
LIST_PARTITION_REASSIGNMENTS = Api(46, "list_partition_reassignments", 0, 0, 0)
OFFSET_DELETE = Api(47, "offset_delete", 0, 0, 1 << 15)
DESCRIBE_CLUSTER = Api(60, "describe_cluster", 0, 2, 0)
DESCRIBE_PRODUCERS = Api(61, "describe_producers", 0, 0, 0)
LIST_CONFIG_RESOURCES = Api(74, "list_config_resources", 0, 1, 0)
DESCRIBE_TOPIC_PARTITIONS = Api(75, "describe_topic_partitions", 0, 0, 0)

#: Not advertised: JSON objects between the processes of this project, for clients on the loopback.
PRIVATE = Api(32001, "private", 0, 0, 1 << 15)

APIS: dict[int, Api] = {
    api.key: api
    for api in (
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        METADATA,
        OFFSET_COMMIT,
        OFFSET_FETCH,
        FIND_COORDINATOR,
        JOIN_GROUP,
        HEARTBEAT,
        LEAVE_GROUP,
        SYNC_GROUP,
        DESCRIBE_GROUPS,
        LIST_GROUPS,
        SASL_HANDSHAKE,
        API_VERSIONS,
        CREATE_TOPICS,
        DELETE_TOPICS,
        DELETE_RECORDS,
        INIT_PRODUCER_ID,
        OFFSET_FOR_LEADER_EPOCH,
        DESCRIBE_CONFIGS,
        ALTER_CONFIGS,
        ALTER_REPLICA_LOG_DIRS,
        DESCRIBE_LOG_DIRS,
        SASL_AUTHENTICATE,
        CREATE_PARTITIONS,
        DELETE_GROUPS,
        ELECT_LEADERS,
        INCREMENTAL_ALTER_CONFIGS,
        ALTER_PARTITION_REASSIGNMENTS,
        LIST_PARTITION_REASSIGNMENTS,
        OFFSET_DELETE,
        DESCRIBE_CLUSTER,
        DESCRIBE_PRODUCERS,
        LIST_CONFIG_RESOURCES,
        DESCRIBE_TOPIC_PARTITIONS,
    )
}

#: APIs with effects: the node handles their requests even if the client has disconnected.
CHANGING = frozenset(
    {
        PRODUCE,
        OFFSET_COMMIT,
        HEARTBEAT,
        LEAVE_GROUP,
        CREATE_TOPICS,
        DELETE_TOPICS,
        DELETE_RECORDS,
        ALTER_CONFIGS,
        ALTER_REPLICA_LOG_DIRS,
        CREATE_PARTITIONS,
        DELETE_GROUPS,
        ELECT_LEADERS,
        INCREMENTAL_ALTER_CONFIGS,
        ALTER_PARTITION_REASSIGNMENTS,
        OFFSET_DELETE,
        PRIVATE,
    }
)
#: APIs that make a client a member of a group, while it waits for the response.
JOINING = frozenset({JOIN_GROUP, SYNC_GROUP})
