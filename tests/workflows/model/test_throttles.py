"""Throttles that end with a reassignment: what is taken back, when, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workflows.model.replicated import reassign, replicated, with_isr
from tests.workflows.model.support import done, refused
from workflows.model import throttles
from workflows.model.fields import BadField
from workflows.model.reassignment_request import parse
from workflows.model.state import ClusterState

LEADERS, FOLLOWERS = throttles.LISTS
OUT, IN = throttles.RATES


def set_configs(state: ClusterState, kind: str, name: str, values: dict[str, str]) -> ClusterState:
    return done(state, {"do": "alter_configs", "kind": kind, "name": name, "changes": values})


def throttled(state: ClusterState) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The topic's lists, and the nodes' rates."""
    nodes = {name: dict(held.values) for (kind, name), held in state.configs.items() if kind == "broker"}
    return dict(state.topics["t"].configs), {name: values for name, values in nodes.items() if values}


#: What was set for two partitions, from node 1 to node 2.
PLAN: dict[str, Any] = {
    "topics": {"t": {LEADERS: ["0:1", "1:1"], FOLLOWERS: ["0:2", "1:2"]}},
    "nodes": {"1": {OUT: "100", IN: "100"}, "2": {OUT: "100", IN: "100"}},
}


def before(**hand: str) -> ClusterState:
    state = done(replicated([1], [1], [1]), reassign((0, [2]), (1, [2])))
    lists = {key: ",".join(entries) for key, entries in PLAN["topics"]["t"].items()}
    lists |= {key: f"{lists[key]},{entry}" for key, entry in hand.items()}
    state = set_configs(state, "topic", "t", lists)
    for node, rates in PLAN["nodes"].items():
        state = set_configs(state, "broker", node, rates)
    return state


def release(*partitions: int) -> dict[str, Any]:
    return {"do": "release_throttles", **throttles.of_group(PLAN, [("t", index) for index in partitions])}


def test_all_of_it_goes_with_the_last_run_of_the_plan() -> None:
    state = with_isr(before(), [1, 2], 0)
    state = done(state, release(0))
    assert throttled(state) == ({LEADERS: "1:1", FOLLOWERS: "1:2"}, PLAN["nodes"])
    state = done(with_isr(state, [1, 2], 1), release(1))
    assert throttled(state) == ({}, {})
    assert done(state, release(1)) is state  # heard again


def test_a_run_that_has_not_begun_keeps_the_rates() -> None:
    """The runs of a plan are started one after the other; the first may have ended before the last has asked."""
    state = done(before(), reassign((1, None)))
    state = done(with_isr(state, [1, 2], 0), release(0))
    assert throttled(state)[1] == PLAN["nodes"]


def test_what_others_have_set_stays() -> None:
    state = set_configs(before(**{LEADERS: "2:1"}), "broker", "1", {OUT: "5"})
    state = set_configs(state, "broker", "3", {OUT: "7"})
    state = with_isr(with_isr(state, [1, 2], 0), [1, 2], 1)
    assert throttled(done(state, release(0, 1))) == ({LEADERS: "2:1"}, {"1": {OUT: "5"}, "3": {OUT: "7"}})
    # A list that says all is somebody's wish, and no reason to keep a rate.
    state = set_configs(before(), "topic", "t", {LEADERS: "*", FOLLOWERS: "0:2,1:2"})
    state = with_isr(with_isr(state, [1, 2], 0), [1, 2], 1)
    assert throttled(done(state, release(0, 1))) == ({LEADERS: "*"}, {})


def test_another_plan_under_way_keeps_the_rate_of_its_nodes() -> None:
    state = before(**{LEADERS: "2:1", FOLLOWERS: "2:4"})
    state = with_isr(with_isr(done(state, reassign((2, [4]))), [1, 2], 0), [1, 2], 1)
    state = done(state, release(0, 1))
    assert throttled(state) == ({LEADERS: "2:1", FOLLOWERS: "2:4"}, {"1": PLAN["nodes"]["1"]})
    theirs = {"topics": {"t": {LEADERS: ["2:1"], FOLLOWERS: ["2:4"]}}, "nodes": {"1": PLAN["nodes"]["1"]}}
    state = done(with_isr(state, [1, 4], 2), {"do": "release_throttles", **theirs})
    assert throttled(state) == ({}, {})


def test_a_topic_that_is_gone_is_no_reason_to_keep_anything() -> None:
    state = done(before(), {"do": "delete_topics", "names": ["t"]})
    state = done(state, release(0, 1))
    assert {name for (kind, name), held in state.configs.items() if held.values} == set()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([], "$.throttles"),
        ({"rates": {}}, "$.throttles"),
        ({"topics": {"t": {"retention.ms": ["0:1"]}}}, "$.throttles.topics.t"),
        ({"nodes": {"1": {OUT: 5}}}, f"$.throttles.nodes.1.{OUT}"),
        ({"others": {"t": ["x"]}}, "$.throttles.others.t"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_path(value: Any, path: str) -> None:
    rows = [{"topic": "t", "partition": 0, "replicas": [2]}]
    with pytest.raises(BadField) as caught:
        parse({"version": 1, "partitions": rows, "throttles": value})
    assert caught.value.path.startswith(path)
    assert parse({"version": 1, "partitions": rows}).throttles == {}
    if isinstance(value, dict):
        error, message = refused(replicated([1]), {"do": "release_throttles", "nodes": {"1": {OUT: 5}}})
        assert error == 42 and OUT in message
