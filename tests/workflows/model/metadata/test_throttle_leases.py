"""Throttles on lease: what is set, what is put back, and when an operator's value stays."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.model.fields import BadField
from storage_node.model.image import decode
from storage_node.model.packing import pack, unpack
from tests.workflows.model.replicated import replicated
from tests.workflows.model.support import done, refused
from workflows.model import throttles
from workflows.model.metadata import image, throttle_leases
from workflows.model.metadata.state import ClusterState
from workflows.model.move.throttle_request import parse as parse_lease
from workflows.model.reassignment.request import parse

LEADERS, FOLLOWERS = throttles.LISTS
OUT, IN = throttles.RATES
MOVES = throttles.MOVE_RATE


def set_configs(state: ClusterState, kind: str, name: str, values: dict[str, str | None]) -> ClusterState:
    return done(state, {"do": "alter_configs", "kind": kind, "name": name, "changes": values})


def hold(state: ClusterState, holder: str, **what: Any) -> ClusterState:
    return done(state, {"do": "hold_throttles", "holder": holder, **what})


def release(state: ClusterState, holder: str, **what: Any) -> ClusterState:
    return done(state, {"do": "release_throttles", "holder": holder, **what})


def throttled(state: ClusterState) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The topic's lists, and the nodes' rates."""
    nodes = {name: dict(held) for (kind, name), held in state.configs.items() if kind == "broker"}
    return dict(state.topics["t"].configs), {name: values for name, values in nodes.items() if values}


def rate(state: ClusterState, node: str = "1", key: str = MOVES) -> str | None:
    return state.configs.get(("broker", node), {}).get(key)


def record(state: ClusterState) -> dict[str, str]:
    return dict(state.configs[throttle_leases.RECORD])


RUN = "01234567-89ab-cdef-0123-456789abcdef"
#: What two partitions need, from node 1 to node 2.
PLAN: dict[str, Any] = {
    "topics": {"t": {LEADERS: ["0:1", "1:1"], FOLLOWERS: ["0:2", "1:2"]}},
    "nodes": {"1": {OUT: "100", IN: "100"}, "2": {OUT: "100", IN: "100"}},
}


def cluster() -> ClusterState:
    return replicated([1], [1], [1])


@pytest.mark.parametrize("before", [None, "7"])
def test_lease_sets_its_values_and_restores_the_old_ones(before: str | None) -> None:
    state = set_configs(cluster(), "broker", "1", {MOVES: before, OUT: before})
    state = set_configs(state, "topic", "t", {LEADERS: "2:1", "retention.ms": "5"})
    there = throttled(state)
    state = hold(state, "run", topics=PLAN["topics"], nodes={"1": {MOVES: "100", OUT: "100"}, "2": {IN: "9"}})
    assert throttled(state) == (
        {LEADERS: "2:1,0:1,1:1", FOLLOWERS: "0:2,1:2", "retention.ms": "5"},
        {"1": {MOVES: "100", OUT: "100"}, "2": {IN: "9"}},
    )
    assert throttle_leases.holders(state) == ["run"]
    assert hold(state, "run", topics=PLAN["topics"], nodes={"1": {MOVES: "100"}}) is state  # received twice
    state = release(state, "run")
    assert throttled(state) == there
    assert record(state) == {} and throttle_leases.holders(state) == []
    assert release(state, "run") is state  # received twice


@pytest.mark.parametrize("order", list(permutations(["first", "second", "third"])))
@pytest.mark.parametrize("before", [None, "7"])
def test_overlapping_leases_may_end_in_any_order(before: str | None, order: tuple[str, ...]) -> None:
    state = set_configs(cluster(), "broker", "1", {MOVES: before})
    wanted = {"first": "100", "second": "200", "third": "300"}
    for holder, value in wanted.items():
        state = hold(state, holder, nodes={"1": {MOVES: value}}, topics={"t": {LEADERS: ["0:1", f"{len(holder)}:9"]}})
        assert rate(state) == value, "the newest applies"
    left = dict(wanted)
    for holder in order:
        state = release(state, holder)
        del left[holder]
        assert rate(state) == (list(left.values())[-1] if left else before)
        assert ("0:1" in state.topics["t"].configs.get(LEADERS, "")) == bool(left)
    assert state.topics["t"].configs == {} and record(state) == {}


def test_runs_of_one_plan_share_its_rates_and_hold_their_own_entries() -> None:
    state = cluster()
    for index in (0, 1):
        state = hold(state, f"run {index}", **throttles.of_group(PLAN, [("t", index)]))
    state = release(state, "run 0")
    assert throttled(state) == ({LEADERS: "1:1", FOLLOWERS: "1:2"}, PLAN["nodes"])
    assert throttled(release(state, "run 1")) == ({}, {})


def test_second_claim_of_a_holder_replaces_its_first() -> None:
    state = hold(hold(cluster(), "run", nodes={"1": {MOVES: "100"}}), "run", nodes={"1": {MOVES: "200"}})
    assert rate(state) == "200"
    assert rate(release(state, "run")) is None


@pytest.mark.parametrize("theirs", ["9", None])
def test_value_set_by_an_operator_during_a_lease_stays(theirs: str | None) -> None:
    state = hold(cluster(), "run", topics=PLAN["topics"], nodes={"1": {MOVES: "100", OUT: "100"}})
    state = set_configs(state, "broker", "1", {MOVES: theirs})
    state = set_configs(state, "topic", "t", {LEADERS: "1:1,2:2", FOLLOWERS: None})
    # Another lease on top of it puts back the operator's value, and the first one leaves it alone.
    later = hold(state, "later", nodes={"1": {MOVES: "300"}})
    assert rate(later) == "300"
    for order in (("run", "later"), ("later", "run")):
        after = release(release(later, order[0]), order[1])
        assert (rate(after), rate(after, key=OUT)) == (theirs, None)
    after = release(state, "run")
    assert (rate(after), rate(after, key=OUT)) == (theirs, None)
    assert after.topics["t"].configs == {LEADERS: "2:2"} and record(after) == {}


def test_value_set_by_an_operator_to_the_leases_own_stays() -> None:
    leased = hold(
        hold(cluster(), "first", nodes={"1": {MOVES: "100", OUT: "5"}}), "second", nodes={"1": {MOVES: "200"}}
    )
    state = set_configs(leased, "broker", "1", {MOVES: "200"})
    for holder in ("second", "first"):
        state = release(state, holder)
        assert rate(state) == "200"
    assert rate(state, key=OUT) is None and record(state) == {}
    checked = {"do": "alter_configs", "kind": "broker", "name": "1", "changes": {MOVES: "200"}, "validate_only": True}
    assert done(leased, checked) is leased


#: Rows as a damaged disk may have them.
UNREADABLE: dict[str, str] = {
    "": "",
    "x": "y",
    "broker": "[]",
    f"broker/1/{MOVES}": "x",
    f"broker/2/{MOVES}": '[null,[["run","5","6"]]]',
    f"broker/3/{MOVES}": '[7,[["run","5"]]]',
    f"broker/1/{OUT}": "[null,[]]",
    f"broker/2/{OUT}": '[null,[["\\ud800","5"]]]',
    f"broker/3/{OUT}": '[null,{"run":"5"}]',
    "broker/1/log.retention.ms": '[null,[["run","5"]]]',
    f"topic/t/{LEADERS}": '["id",[["0:1",["run",5]]]]',
    f"topic/t/{FOLLOWERS}": "[" * 100_000,
    f"topic/u/{LEADERS}": '["id",[["0:1","run"]]]',
    "topic/t/retention.ms": '["id",[["5",["run"]]]]',
    f"disk/1/{MOVES}": '[null,[["run","5"]]]',
}


def test_unreadable_rows_of_the_record_are_skipped() -> None:
    state = cluster().with_configs(*throttle_leases.RECORD, UNREADABLE)
    assert throttle_leases.holders(state) == []
    held = hold(state, "run", nodes={"1": {MOVES: "100"}})
    assert throttle_leases.holders(held) == ["run"] and len(record(held)) == 1
    assert throttled(release(held, "run")) == ({}, {})


@pytest.mark.parametrize("holder", ["me", " ", f" {RUN}", "run me", f"{'w' * 1_001} {RUN}", f"{RUN}", f"w {RUN}0"])
def test_run_of_a_holder_without_valid_ids_is_none(holder: str) -> None:
    assert throttle_leases.run_of(holder) is None
    assert throttle_leases.run_of(f"a b {RUN}") == ("a b", RUN)


def test_entries_and_stars_of_an_operator_are_not_the_leases() -> None:
    state = set_configs(cluster(), "topic", "t", {LEADERS: "0:1,7:7", FOLLOWERS: "*"})
    held = hold(state, "run", topics=PLAN["topics"])
    assert held.topics["t"].configs == {LEADERS: "0:1,7:7,1:1", FOLLOWERS: "*"}
    assert release(held, "run").topics["t"].configs == {LEADERS: "0:1,7:7", FOLLOWERS: "*"}


def test_part_of_a_lease_ends_with_a_node() -> None:
    state = hold(cluster(), "run", topics=PLAN["topics"], nodes={"1": {MOVES: "5"}, "2": {MOVES: "5"}})
    state = release(state, "run", nodes=[2])
    assert throttled(state)[1] == {"1": {MOVES: "5"}} and state.topics["t"].configs
    assert throttled(release(state, "run")) == ({}, {})


def test_nodes_and_topics_that_do_not_exist_are_skipped() -> None:
    state = hold(cluster(), "run", topics={"gone": {LEADERS: ["0:1"]}}, nodes={"77": {MOVES: "5"}})
    assert state.version == cluster().version
    state = hold(cluster(), "run", topics=PLAN["topics"])
    state = done(state, {"do": "delete_topics", "names": ["t"]})
    topic = {"name": "t", "partitions": 1, "replication_factor": 1, "configs": {LEADERS: "0:1"}, "assignment": []}
    again = done(state, {"do": "create_topics", "topics": [topic], "validate_only": False})
    after = release(again, "run")
    assert after.topics["t"].configs == {LEADERS: "0:1"} and record(after) == {}, "it is another topic"
    assert record(release(state, "run")) == {}


def test_leases_outlive_the_controller_and_what_is_rebuilt_from_its_images() -> None:
    state = hold(cluster(), "run", **PLAN)
    assert throttled(release(ClusterState.of(unpack(pack(state.rows()))), "run")) == ({}, {})
    held = decode(image.whole(state)[0])
    assert held.configs[throttle_leases.RECORD] == state.configs[throttle_leases.RECORD]


def test_no_part_of_an_image_holds_a_throttle_without_its_record() -> None:
    """An image may be cut between any two rows, and a node be lost behind each part."""
    before = cluster()
    state = hold(before, "run", **PLAN)
    recorded = state.stamps.configs[throttle_leases.RECORD]
    assert all(stamp > recorded for (kind, _), stamp in state.stamps.configs.items() if kind == "broker")
    assert state.stamps.topics["t"].changed > recorded
    after = release(state, "run")
    assert after.stamps.configs[throttle_leases.RECORD] == after.version


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), st.sampled_from("abc"), st.sampled_from(["100", "200"])),
        st.tuples(st.just("release"), st.sampled_from("abc"), st.none()),
        st.tuples(st.just("operator"), st.none(), st.sampled_from(["7", "100", "200", None])),
    ),
    max_size=12,
)


@given(STEPS)
def test_operators_last_value_applies_after_all_leases(steps: list[tuple[str, str | None, str | None]]) -> None:
    state, theirs = cluster(), None
    for what, holder, value in steps:
        if what == "hold":
            state = hold(state, holder or "", nodes={"1": {MOVES: value}})
        elif what == "release":
            state = release(state, holder or "")
        else:
            state, theirs = set_configs(state, "broker", "1", {MOVES: value}), value
    for holder in "cab":
        state = release(state, holder)
    assert rate(state) == theirs
    assert throttle_leases.holders(state) == []


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([], "$.throttles"),
        ({"rates": {}}, "$.throttles.rates"),
        ({"topics": {"t": {"retention.ms": ["0:1"]}}}, "$.throttles.topics.t.retention.ms"),
        ({"topics": {"t": {LEADERS: ["0"]}}}, f"$.throttles.topics.t.{LEADERS}"),
        ({"topics": {"t": {LEADERS: ["0:1,1:1"]}}}, f"$.throttles.topics.t.{LEADERS}"),
        ({"nodes": {"1": {OUT: 5}}}, f"$.throttles.nodes.1.{OUT}"),
        ({"nodes": {"1": {OUT: "much"}}}, f"$.throttles.nodes.1.{OUT}"),
        ({"nodes": {"1": {OUT: "0"}}}, f"$.throttles.nodes.1.{OUT}"),
        ({"nodes": {"one": {}}}, "$.throttles.nodes.one"),
        ({"nodes": {"1": {"log.retention.ms": "5"}}}, "$.throttles.nodes.1.log.retention.ms"),
    ],
)
def test_invalid_throttles_are_rejected_with_the_path(value: Any, path: str) -> None:
    rows = [{"topic": "t", "partition": 0, "replicas": [2]}]
    for read in (
        lambda: parse({"version": 1, "partitions": rows, "throttles": value}),
        lambda: parse_lease({"throttles": value, "replicas": []}),
    ):
        with pytest.raises(BadField) as caught:
            read()
        assert caught.value.path == path
    assert parse({"version": 1, "partitions": rows}).throttles == {}
    if isinstance(value, dict) and "rates" not in value:
        error, message = refused(replicated([1]), {"do": "hold_throttles", "holder": "run", **value})
        assert error == 42 and path.replace("$.throttles", "$") in message


@pytest.mark.parametrize(
    ("parameter", "path"),
    [
        (None, "$"),
        ({}, "$.throttles"),
        ({"throttles": {}}, "$.replicas"),
        ({"throttles": {}, "replicas": [[1, "t"]]}, "$.replicas[0]"),
        ({"throttles": {}, "replicas": [["1", "t", 0]]}, "$.replicas[0][0]"),
        ({"throttles": {}, "replicas": [], "patience": -1}, "$.patience"),
    ],
)
def test_malformed_lease_is_rejected_with_the_fields_path(parameter: Any, path: str) -> None:
    with pytest.raises(BadField) as caught:
        parse_lease(parameter)
    assert caught.value.path == path
