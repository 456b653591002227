"""What people type: what is taken, and the path of the field that is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.model.calls import ReplicaMove
from workflows.model.fields import BadField
from workflows.model.plan import lanes, parse_moves, parse_reassignment, size

ONE = {"topic": "t", "partition": 0, "node": 1, "directory": "/a"}


@pytest.mark.parametrize(
    ("typed", "bytes_"),
    [
        (1, 1),
        ("20MB", 20_000_000),
        ("20 mb", 20_000_000),
        ("1.5GiB", 3 << 29),
        ("64MiB/s", 64 << 20),
        ("512k", 512_000),
        ("7", 7),
        ("9B", 9),
    ],
)
def test_sizes(typed: Any, bytes_: int) -> None:
    assert size(typed) == bytes_


@pytest.mark.parametrize("typed", ["", "fast", "-5MB", "5 parsecs", 0, -1, 1.5, True, None, [], "0"])
def test_what_is_no_size(typed: Any) -> None:
    with pytest.raises(BadField):
        size(typed, "$.throttle")


def test_one_move_a_list_and_text_are_the_same_thing() -> None:
    plan = parse_moves(ONE)
    assert plan == parse_moves([ONE]) == parse_moves(json.dumps(ONE))
    assert plan.replicas == (ReplicaMove("t", 0, "/a"),) and (plan.throttle, plan.sla_seconds) == (None, None)


def test_a_lane_shares_node_throttle_and_sla() -> None:
    plan = parse_moves(
        [ONE | {"throttle": "1MB", "sla_seconds": 5, "claim": 3, "generation": 2}, ONE | {"partition": 1}]
    )
    assert (plan.node, plan.throttle, plan.sla_seconds) == (1, 1_000_000, 5.0)
    assert plan.replicas[0] == ReplicaMove("t", 0, "/a", 3, 2)
    assert parse_moves(ONE | {"deadline_seconds": 2.5}).sla_seconds == 2.5
    assert parse_moves(ONE | {"directory": "//disks//a/"}).replicas[0].directory == "/disks/a"


@pytest.mark.parametrize(
    ("parameter", "path"),
    [
        (None, "$"),
        ([], "$"),
        (3, "$"),
        ("{", "$"),
        ('{"topic": "t", "topic": "u"}', "$"),
        ("[" * 10_000, "$"),
        ({}, "$.topic"),
        (ONE | {"speed": 1}, "$.speed"),
        (ONE | {"topic": ""}, "$.topic"),
        (ONE | {"topic": "a b"}, "$.topic"),
        (ONE | {"partition": -1}, "$.partition"),
        (ONE | {"partition": True}, "$.partition"),
        (ONE | {"partition": 1.0}, "$.partition"),
        (ONE | {"node": "1"}, "$.node"),
        (ONE | {"directory": "any"}, "$.directory"),
        (ONE | {"directory": "a"}, "$.directory"),
        (ONE | {"directory": "/a\0b"}, "$.directory"),
        (ONE | {"throttle": "x"}, "$.throttle"),
        (ONE | {"sla_seconds": 0}, "$.sla_seconds"),
        (ONE | {"deadline_seconds": "1"}, "$.deadline_seconds"),
        ([ONE, ONE], "$[1]"),
        ([ONE, ONE | {"partition": 1, "node": 2}], "$[1].node"),
        ([ONE | {"throttle": 1}, ONE | {"partition": 1, "throttle": 2}], "$[1].throttle"),
        ([ONE, 3], "$[1]"),
        ([ONE] * 1001, "$"),
    ],
)
def test_the_path_of_the_bad_field(parameter: Any, path: str) -> None:
    with pytest.raises(BadField) as caught:
        parse_moves(parameter)
    assert caught.value.path == path
    assert str(caught.value).startswith(path)


def plan_of(*partitions: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": 1, "partitions": list(partitions), **more}


MOVED = {"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "/disk/b"]}


@pytest.mark.feature("113-25", "113-26")
def test_the_proposals_json() -> None:
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
def test_the_path_of_the_plans_bad_field(parameter: Any, path: str) -> None:
    with pytest.raises(BadField) as caught:
        parse_reassignment(parameter)
    assert caught.value.path == path


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["topic", "partition", "node", "directory", "version", "partitions"]), inner)
    ),
    max_leaves=10,
)


@given(_json)
def test_no_json_at_all_gets_through_as_anything_but_a_plan_or_a_refusal(typed: Any) -> None:
    for parse in (parse_moves, parse_reassignment):
        try:
            parse(typed)
        except BadField as bad:
            assert bad.path.startswith("$")
