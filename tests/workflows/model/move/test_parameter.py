"""What people type: what is taken, and the path of the field that is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.model.fields import BadField
from workflows.model.calls import ReplicaMove
from workflows.model.move.parameter import parse_moves, size

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
def test_invalid_size_is_rejected(typed: Any) -> None:
    with pytest.raises(BadField):
        size(typed, "$.throttle")


def test_parameter_may_be_one_move_a_list_or_json() -> None:
    plan = parse_moves(ONE)
    assert plan == parse_moves([ONE]) == parse_moves(json.dumps(ONE))
    assert plan.replicas == (ReplicaMove("t", 0, "/a"),) and (plan.throttle, plan.sla_seconds) == (None, None)


def test_lane_shares_node_throttle_and_sla() -> None:
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
def test_invalid_move_is_rejected_with_the_path(parameter: Any, path: str) -> None:
    with pytest.raises(BadField) as caught:
        parse_moves(parameter)
    assert caught.value.path == path
    assert str(caught.value).startswith(path)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["topic", "partition", "node", "directory"]), inner)
    ),
    max_leaves=10,
)


@given(_json)
def test_any_json_is_a_move_or_rejected(typed: Any) -> None:
    try:
        parse_moves(typed)
    except BadField as bad:
        assert bad.path.startswith("$")
