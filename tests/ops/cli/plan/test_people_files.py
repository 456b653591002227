"""Plans as people's files have them: taken as Kafka's own tool takes them, and what may be a mistake is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ops.cli.plan.people_files import tolerant
from storage_node.model.fields import BadField
from workflows.model.plans import document

ROW = {"topic": "t", "partition": 0, "replicas": [1]}


def test_file_without_version_and_with_other_fields_is_taken_with_a_note() -> None:
    rows = [{**ROW, "partition": number, "comment": "x", "size": 3} for number in range(2)]
    found, notes = tolerant(json.dumps({"partitions": rows, "generated_by": "us", "options": {"lane_moves": 7}}))
    read = document.read(found)
    assert len(read.partitions) == 2 and read.options.lane_moves == 7
    assert notes == (
        'has no "version", which is taken as 1',
        "has fields that are not used: $.generated_by, $.partitions[*].comment (2 times), "
        "$.partitions[*].size (2 times)",
    )
    text = document.to_text(read)
    assert "comment" not in text and "generated_by" not in text, "nothing of it is in the run's parameter"
    plain = json.dumps({"version": 1, "partitions": [ROW]})
    assert tolerant(plain) == (json.loads(plain), ())


@pytest.mark.parametrize(
    ("plan", "path"),
    [
        ({"version": 2, "partitions": [ROW]}, "$.version"),
        ({"version": None, "partitions": [ROW]}, "$.version"),
        ({"partitions": [{**ROW, "logDirs": ["/a"]}]}, "$.partitions[0].logDirs"),
        ({"partitions": [{**ROW, "log_dir": ["/a"]}]}, "$.partitions[0].log_dir"),
        ({"partitions": [ROW], "option": {}}, "$.option"),
        ({"partitions": [ROW], "throttle_between_brokers": 5}, "$.throttle_between_brokers"),
        ({"partitions": [ROW], "throttle-between-broker": 5}, "$.throttle-between-broker"),
        ({"partitions": [ROW], "options": {"throttle_betwen_brokers": 5}}, "$.options.throttle_betwen_brokers"),
        ({"partition": [ROW]}, "$.partition"),
        ([], "$"),
        ({"partitions": 3}, "$.partitions"),
        ({"partitions": [3]}, "$.partitions[0]"),
    ],
)
def test_what_may_be_meant_otherwise_is_refused(plan: Any, path: str) -> None:
    with pytest.raises(BadField) as caught:
        document.read(tolerant(json.dumps(plan))[0])
    assert caught.value.path == path


def test_fields_that_appear_twice_are_still_refused() -> None:
    with pytest.raises(BadField, match="appears twice"):
        document.read(tolerant('{"partitions": [{"topic": "t", "topic": "u", "partition": 0, "replicas": [1]}]}')[0])


def test_options_are_not_ignored_by_a_reader_without_options() -> None:
    with pytest.raises(BadField, match=r"\$.options is not known"):
        document.parse_reassignment(tolerant(json.dumps({"partitions": [ROW], "options": {}}))[0])
