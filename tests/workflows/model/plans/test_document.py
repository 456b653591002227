"""The JSON of kafka-reassign-partitions: what is read, every mistake with its path, and what is written."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.model.fields import BadField
from workflows.model.calls import ReplicaMove
from workflows.model.plans.document import (
    PlanDocument,
    PlannedPartition,
    lanes,
    parse,
    parse_partitions,
    parse_reassignment,
    sha256,
    to_text,
)
from workflows.model.plans.options import Approval, OrderRule, PlanOptions
from workflows.model.plans.problems import PlanProblems


def plan_of(*partitions: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": 1, "partitions": list(partitions), **more}


MOVED = {"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "/disk/b"]}


@pytest.mark.feature("113-25", "113-26")
def test_kip113_json_is_parsed() -> None:
    first, second = parse_reassignment(plan_of(MOVED, {"topic": "t", "partition": 1, "replicas": [3]}))
    assert (first.replicas, first.log_dirs) == ((1, 2), ("any", "/disk/b"))
    assert second.log_dirs == ("any",), "without log_dirs every replica may go anywhere"
    assert parse_reassignment(json.dumps(plan_of(MOVED))) == (first,)
    assert lanes((second, first)) == {2: (ReplicaMove("t", 0, "/disk/b"),)}


@pytest.mark.parametrize(
    ("parameter", "path"),
    [
        ([], "$"),
        ({"partitions": []}, "$.version"),
        (plan_of(version=2), "$.version"),
        (plan_of(), "$.partitions"),
        ({"version": 1}, "$.partitions"),
        ({"version": 1, "partitions": {}}, "$.partitions"),
        (plan_of(MOVED, extra=1), "$.extra"),
        (plan_of(MOVED | {"color": 1}), "$.partitions[0].color"),
        (plan_of(MOVED | {"topic": 3}), "$.partitions[0].topic"),
        (plan_of(MOVED | {"replicas": []}), "$.partitions[0].replicas"),
        (plan_of(MOVED | {"replicas": [1, 1]}), "$.partitions[0].replicas[1]"),
        (plan_of(MOVED | {"replicas": [1, -2]}), "$.partitions[0].replicas[1]"),
        (plan_of(MOVED | {"log_dirs": ["any"]}), "$.partitions[0].log_dirs"),
        (plan_of(MOVED | {"log_dirs": ["any", "disk"]}), "$.partitions[0].log_dirs[1]"),
        (plan_of(MOVED | {"log_dirs": ["any", None]}), "$.partitions[0].log_dirs[1]"),
        (plan_of(MOVED, MOVED), "$.partitions[1]"),
    ],
)
def test_invalid_plan_is_rejected_with_the_path(parameter: Any, path: str) -> None:
    with pytest.raises(BadField) as caught:
        parse_reassignment(parameter)
    assert caught.value.path == path


def test_every_mistake_is_reported_with_its_path() -> None:
    row = {"topic": "t", "partition": 0, "replicas": [1, 2]}
    text = json.dumps(
        {
            "version": 2,
            "colour": 1,
            "partitions": [
                row,
                {**row, "replicas": [1, "2", 1], "log_dirs": ["any", "b"], "size": 3},
                {"topic": "a/b", "replicas": []},
                7,
            ],
            "options": {"slots_per_disk": 0, "speed": 1, "order": ["leaders_last", "fast"]},
        }
    )
    with pytest.raises(PlanProblems) as caught:
        parse(text)
    assert [bad.path for bad in caught.value.problems] == [
        "$.colour",
        "$.options.speed",
        "$.options.slots_per_disk",
        "$.options.order[1]",
        "$.version",
        "$.partitions[1].size",
        "$.partitions[1].replicas[1]",
        "$.partitions[1].replicas[2]",
        "$.partitions[1].log_dirs",
        "$.partitions[1].log_dirs[1]",
        "$.partitions[1]",
        "$.partitions[2].partition",
        "$.partitions[2].topic",
        "$.partitions[2].replicas",
        "$.partitions[3]",
    ]
    assert str(caught.value).startswith("15 mistakes: $.colour is not known")


def test_message_shows_twenty_mistakes_and_the_count() -> None:
    text = json.dumps(plan_of(*({"topic": "t", "partition": number, "replicas": [-1]} for number in range(1000))))
    with pytest.raises(PlanProblems) as caught:
        parse(text)
    message = str(caught.value)
    assert len(caught.value.problems) == 1000 and message.startswith("1000 mistakes: ")
    assert "$.partitions[19]." in message and "$.partitions[20]." not in message and message.endswith("; and 980 more")


def test_fields_that_appear_twice_are_reported_with_their_path() -> None:
    text = '{"version": 1, "version": 1, "partitions": [{"topic": "t", "topic": "u", "partition": 0, "replicas": [1]}]}'
    with pytest.raises(PlanProblems) as caught:
        parse(text)
    assert [bad.path for bad in caught.value.problems] == ["$.version", "$.partitions[0].topic"]


def test_options_stand_beside_the_partitions() -> None:
    options = {"throttle_between_brokers": "20MB", "order": ["large_first"], "approval": "two_persons", "verify": None}
    document = parse(json.dumps(plan_of(MOVED, options=options)))
    assert document.options == PlanOptions(
        throttle_between_brokers=20_000_000, order=(OrderRule.LARGE_FIRST,), approval=Approval.TWO_PERSONS
    )
    with pytest.raises(BadField, match=r"\$.options is not known"):
        parse_reassignment(plan_of(MOVED, options=options))


def test_one_partition_or_a_list_is_read() -> None:
    (one,) = parse_partitions(MOVED)
    assert parse_partitions([MOVED]) == (one,) == parse_reassignment(plan_of(MOVED))
    for wrong, path in ((MOVED | {"replicas": 1}, "$.replicas"), ([MOVED, MOVED], "$[1]"), ([], "$"), (3, "$")):
        with pytest.raises(BadField) as caught:
            parse_partitions(wrong)
        assert caught.value.path == path


_partitions = st.lists(
    st.builds(
        lambda topic, partition, held: PlannedPartition(
            topic, partition, tuple(node for node, _ in held), tuple(path for _, path in held)
        ),
        st.sampled_from(["a", "b-1", "c.d_e"]),
        st.integers(0, 9),
        st.lists(
            st.tuples(st.integers(0, 9), st.sampled_from(["any", "/d", '/e "f"/ü'])),
            min_size=1,
            max_size=3,
            unique_by=lambda pair: pair[0],
        ),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda each: (each.topic, each.partition),
)


@given(_partitions, st.sampled_from([PlanOptions(), PlanOptions(lane_moves=7, order=(), deadline="2026-01-01T00:00Z")]))
def test_what_is_written_is_read_again(partitions: list[PlannedPartition], options: PlanOptions) -> None:
    text = to_text(PlanDocument(tuple(partitions), options))
    again = parse(text)
    assert set(again.partitions) == set(partitions) and again.options == options
    assert to_text(again) == text == to_text(PlanDocument(tuple(reversed(partitions)), options))


def test_digest_is_that_of_sha256sum() -> None:
    text = to_text(PlanDocument((PlannedPartition("t", 0, (1,), ("/ü",)),)))
    printed = subprocess.run(["sha256sum"], input=text.encode(), capture_output=True, check=True, timeout=10).stdout
    assert printed.decode().split()[0] == sha256(text)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["topic", "partition", "replicas", "log_dirs", "version", "partitions", "options"]), inner
        )
    ),
    max_leaves=10,
)


@given(_json)
def test_any_json_is_a_plan_or_rejected(typed: Any) -> None:
    for read in (parse_reassignment, parse_partitions, lambda each: parse(json.dumps(each))):
        try:
            read(typed)
        except BadField as bad:
            assert bad.path.startswith("$")
