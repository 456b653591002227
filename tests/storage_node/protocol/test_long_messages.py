"""A response that repeats a client's input stays valid: no string in it is longer than Kafka allows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.wire.codec import LONGEST_STRING, read_response
from storage_node.wire.primitives import LONGEST_MESSAGE, short_message
from storage_node.wire.table import APIS
from tests.support.nodes.node_harness import Harness, raw_connection
from tests.support.wire import encode_request, key_of, receive_frame

LONGEST_NAME = "n" * LONGEST_STRING
SECOND = timedelta(seconds=1)
ASSIGNED = {"partition_index": 0, "replicas": [1]}

#: By API: a request with the longest name that a client can send.
REQUESTS: dict[str, dict[str, Any]] = {
    "produce": {
        "acks": -1,
        "timeout": SECOND,
        "topic_data": [{"name": LONGEST_NAME, "partition_data": [{"index": 0, "records": build_batch([b"x"])}]}],
    },
    "find_coordinator": {"key_type": 99, "coordinator_keys": [LONGEST_NAME]},
    "delete_groups": {"groups_names": [LONGEST_NAME]},
    "describe_groups": {"groups": [LONGEST_NAME]},
    "create_topics": {
        "topics": [{"name": LONGEST_NAME, "num_partitions": 1, "replication_factor": 1}],
        "timeout": SECOND,
    },
    "delete_topics": {"topics": [{"name": LONGEST_NAME, "topic_id": None}], "timeout": SECOND},
    "create_partitions": {"topics": [{"name": LONGEST_NAME, "count": 2, "assignments": None}], "timeout": SECOND},
    "describe_configs": {"resources": [{"resource_type": 4, "resource_name": LONGEST_NAME}]},
    "incremental_alter_configs": {
        "resources": [
            {
                "resource_type": 2,
                "resource_name": "t",
                "configs": [{"name": LONGEST_NAME, "config_operation": 0, "value": LONGEST_NAME}],
            }
        ]
    },
    "alter_configs": {"resources": [{"resource_type": 4, "resource_name": LONGEST_NAME, "configs": []}]},
    "elect_leaders": {"topic_partitions": [{"topic": LONGEST_NAME, "partitions": [0]}], "timeout": SECOND},
    "alter_partition_reassignments": {
        "topics": [{"name": LONGEST_NAME, "partitions": [ASSIGNED]}],
        "timeout": SECOND,
    },
    "describe_producers": {"topics": [{"name": LONGEST_NAME, "partition_indexes": [0]}]},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_response_to_the_longest_name_can_be_read(harness: Harness, name: str) -> None:
    key = key_of(name)
    version = 12 if name == "produce" else APIS[key].max_version
    with raw_connection(harness) as connection:
        connection.sendall(encode_request(key, version, REQUESTS[name]))
        response = read_response(key, version, receive_frame(connection)[4:])
    assert response is not None


@pytest.mark.parametrize("version", [8, 12])
def test_message_of_a_rejected_produce_is_cut(harness: Harness, version: int) -> None:
    with raw_connection(harness) as connection:
        connection.sendall(encode_request(0, version, REQUESTS["produce"]))
        response = read_response(0, version, receive_frame(connection)[4:])
    (row,) = response.responses[0].partition_responses
    assert row.error_code.value == 3
    assert len(row.error_message) <= LONGEST_MESSAGE


SHORTENED = {
    "no such topic": "no such topic",
    "x" * LONGEST_MESSAGE: "x" * LONGEST_MESSAGE,
    "x" * (LONGEST_MESSAGE + 1): "x" * (LONGEST_MESSAGE - 3) + "...",
}


@pytest.mark.parametrize("text", SHORTENED, ids=len)
def test_messages_are_cut_where_they_are_too_long(text: str) -> None:
    assert short_message(text) == SHORTENED[text]
