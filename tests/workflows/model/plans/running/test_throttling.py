"""Throttles as leases: whatever order runs hold and release them in, the cluster ends as it was before."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.model.fields import BadField
from storage_node.model.ids import TopicPartition
from workflows.model.plans.running.keeper_results import Holding
from workflows.model.plans.running.throttling import (
    FOLLOWER_LIST,
    LEADER_LIST,
    LEADER_RATE,
    MAX_OURS,
    Change,
    Current,
    Leases,
    entries_of,
    holding_of,
    leases_in,
    progress_of,
    rates_of,
)
from workflows.model.plans.values import MoveKind, PlannedMove
from workflows.model.throttles import MOVE_RATE, RATES


@dataclass
class Configs:
    """A cluster's configs, as the keeper reads and writes them."""

    rates: dict[str, dict[str, str]] = field(default_factory=dict)
    lists: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    #: What a broker shows that has not applied the latest writes.
    behind: dict[str, dict[str, str]] = field(default_factory=dict)

    def lag(self, node: str) -> None:
        """From now on the broker shows no further write, until the next call."""
        if self.behind.pop(node, None) is None:
            self.behind[node] = dict(self.rates.get(node, {}))

    def look(self, leases: Leases) -> list[Change]:
        """One look of the keeper: what it wrote."""
        now = Current(
            {node: dict(row) for node, row in {**self.rates, **self.behind}.items()},
            {topic: {key: list(each) for key, each in row.items()} for topic, row in self.lists.items()},
            self.silent,
        )
        changes = leases.changes(now)
        for change in changes:
            self.write(change)
        leases.written(changes)
        return changes

    def write(self, change: Change) -> None:
        if change.kind == "broker":
            assert change.name not in self.silent
            row = self.rates.setdefault(change.name, {})
            if change.operation == "SET":
                assert change.value is not None
                row[change.key] = change.value
            else:
                row.pop(change.key, None)
            return
        held = self.lists.setdefault(change.name, {}).setdefault(change.key, [])
        entries = (change.value or "").split(",")
        held[:] = (
            [*held, *(each for each in entries if each not in held)]
            if change.operation == "APPEND"
            else [each for each in held if each not in entries]
        )

    def set(self) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, list[str]]]]:
        """What is set, without empty rows."""
        return (
            {node: dict(row) for node, row in self.rates.items() if row},
            {
                topic: found
                for topic, row in self.lists.items()
                if (found := {k: sorted(v) for k, v in row.items() if v})
            },
        )


RATE = Holding({"1": {LEADER_RATE: "100"}})


def settled(configs: Configs, leases: Leases) -> None:
    for _ in range(3):
        configs.look(leases)


def test_absent_config_is_deleted_again() -> None:
    configs, leases = Configs(), Leases()
    leases.hold("a", RATE)
    assert configs.look(leases) == [Change("broker", "1", LEADER_RATE, "SET", "100")]
    assert configs.look(leases) == []
    leases.release("a")
    assert configs.look(leases) == [Change("broker", "1", LEADER_RATE, "DELETE", None)]
    assert leases.restoring and not leases.idle, "until the broker shows that it is deleted"
    assert configs.look(leases) == []
    assert leases.idle and not leases.restoring and configs.set() == ({}, {})


def test_earlier_value_of_its_own_is_not_taken_for_the_one_from_before() -> None:
    configs, leases = Configs(), Leases()
    leases.hold("a", RATE)
    settled(configs, leases)
    configs.lag("1")
    leases.release("a")
    configs.look(leases)
    assert configs.set() == ({}, {}) and leases.restoring
    leases.hold("b", Holding({"1": {LEADER_RATE: "200"}}))
    configs.look(leases)  # The broker still shows 100.
    assert configs.rates["1"][LEADER_RATE] == "200"
    leases.release("b")
    configs.look(leases)
    configs.lag("1")
    settled(configs, leases)
    assert configs.set() == ({}, {}) and leases.idle


def test_earlier_value_of_its_own_is_not_taken_for_another_clients() -> None:
    configs, leases = Configs({"1": {LEADER_RATE: "7"}}), Leases()
    leases.hold("a", RATE)
    configs.look(leases)
    leases.hold("a", Holding({"1": {LEADER_RATE: "200"}}))
    configs.look(leases)
    for shown in ("7", "100"):
        configs.behind["1"] = {LEADER_RATE: shown}
        configs.look(leases)
    configs.behind.clear()
    leases.release("a")
    settled(configs, leases)
    assert configs.rates["1"][LEADER_RATE] == "7" and leases.idle


def test_value_that_no_read_has_shown_yet_is_restored_all_the_same() -> None:
    configs, leases = Configs(), Leases()
    configs.lag("1")
    leases.hold("a", RATE)
    configs.look(leases)
    leases.release("a")
    settled(configs, leases)
    assert configs.set() == ({}, {}) and leases.idle


def test_confirmed_value_is_restored_however_many_writes_were_rejected_since() -> None:
    configs, leases = Configs({"1": {LEADER_RATE: "7"}}), Leases()
    leases.hold("a", RATE)
    configs.look(leases)
    for value in range(200, 200 + 2 * MAX_OURS):
        leases.hold("a", Holding({"1": {LEADER_RATE: str(value)}}))
        assert leases.changes(Current({"1": {LEADER_RATE: "100"}})), "it is tried, and the broker rejects it"
    leases.release("a")
    settled(configs, leases)
    assert configs.rates["1"][LEADER_RATE] == "7" and leases.idle


@pytest.mark.parametrize("theirs", ["55", None])
def test_restored_value_that_another_client_changes_is_forgotten(theirs: str | None) -> None:
    configs, leases = Configs({"1": {LEADER_RATE: "7"}}), Leases()
    leases.hold("a", RATE)
    configs.look(leases)
    leases.release("a")
    configs.look(leases)
    configs.rates["1"] = {} if theirs is None else {LEADER_RATE: theirs}
    assert configs.look(leases) == [] and leases.idle


def test_broker_that_does_not_come_back_is_forgotten_on_request() -> None:
    configs, leases = Configs({"1": {LEADER_RATE: "7"}}), Leases()
    leases.hold("a", RATE)
    configs.look(leases)
    assert leases.holders_of("1") == ["a"]
    configs.silent = ("1",)
    leases.release("a")
    settled(configs, leases)
    assert not leases.idle
    assert leases.forget("1") == {LEADER_RATE: "7"} and leases.idle


def test_value_from_before_is_restored_after_the_last_holder() -> None:
    configs, leases = Configs({"1": {LEADER_RATE: "7"}}), Leases()
    leases.hold("a", RATE)
    configs.look(leases)
    leases.hold("b", Holding({"1": {LEADER_RATE: "200"}}))
    configs.look(leases)
    assert configs.rates["1"][LEADER_RATE] == "200"
    leases.release("b")
    configs.look(leases)
    assert configs.rates["1"][LEADER_RATE] == "100"
    leases.release("a")
    settled(configs, leases)
    assert configs.rates["1"][LEADER_RATE] == "7" and leases.idle


def test_removed_throttle_is_set_again_and_a_foreign_value_is_left_alone() -> None:
    configs, leases = Configs(), Leases()
    leases.hold("a", RATE)
    configs.look(leases)
    del configs.rates["1"][LEADER_RATE]
    configs.look(leases)
    assert configs.rates["1"][LEADER_RATE] == "100"
    configs.rates["1"][LEADER_RATE] = "55"
    assert configs.look(leases) == []
    leases.release("a")
    settled(configs, leases)
    assert configs.rates["1"][LEADER_RATE] == "55" and leases.idle


def test_throttle_is_set_again_once_the_foreign_value_is_removed() -> None:
    configs, leases = Configs({"1": {LEADER_RATE: "7"}}), Leases()
    leases.hold("a", RATE)
    settled(configs, leases)
    configs.rates["1"][LEADER_RATE] = "55"
    assert configs.look(leases) == []
    del configs.rates["1"][LEADER_RATE]  # As kafka-reassign-partitions --verify does.
    settled(configs, leases)
    assert configs.rates["1"][LEADER_RATE] == "100"
    leases.hold("a", Holding({"1": {LEADER_RATE: "20"}}))
    settled(configs, leases)
    assert configs.rates["1"][LEADER_RATE] == "20"
    leases.release("a")
    settled(configs, leases)
    assert configs.set() == ({}, {}) and leases.idle, "the other client has removed what stood there before"


def test_silent_broker_gets_its_values_once_it_responds() -> None:
    configs, leases = Configs({"1": {LEADER_RATE: "7"}}, silent=("1",)), Leases()
    leases.hold("a", RATE)
    assert configs.look(leases) == []
    configs.silent = ()
    configs.look(leases)
    assert configs.rates["1"][LEADER_RATE] == "100"
    configs.silent = ("1",)
    leases.release("a")
    assert configs.look(leases) == [] and not leases.idle
    configs.silent = ()
    settled(configs, leases)
    assert configs.rates["1"][LEADER_RATE] == "7" and leases.idle


def test_entry_that_somebody_else_has_listed_stays() -> None:
    configs, leases = Configs(lists={"t": {LEADER_LIST: ["0:1"]}}), Leases()
    leases.hold("a", Holding(entries={"t": {LEADER_LIST: ["0:1", "1:1"]}}))
    configs.look(leases)
    assert configs.lists["t"][LEADER_LIST] == ["0:1", "1:1"]
    leases.release("a")
    settled(configs, leases)
    assert configs.lists["t"][LEADER_LIST] == ["0:1"] and leases.idle


def test_entries_of_a_deleted_topic_are_forgotten_once_the_controller_does_not_know_it() -> None:
    leases = Leases()
    leases.hold("a", Holding(entries={"t": {LEADER_LIST: ["0:1"]}, "u": {LEADER_LIST: ["0:1"]}}))
    changes = leases.changes(Current())
    leases.written(changes)
    leases.release("a")
    assert [change.operation for change in leases.changes(Current())] == ["SUBTRACT", "SUBTRACT"]
    leases.written([], gone=["t"])
    assert {topic for topic, _, _ in leases.entries} == {"u"} and not leases.idle


def test_topic_that_a_broker_does_not_list_yet_is_throttled_all_the_same() -> None:
    leases = Leases()
    leases.hold("a", Holding(entries={"t": {LEADER_LIST: ["0:1"]}}))
    (change,) = leases.changes(Current(lists={}))
    assert change == Change("topic", "t", LEADER_LIST, "APPEND", "0:1")
    leases.written([change])
    listed = Current(lists={"t": {LEADER_LIST: ["0:1"]}})
    assert leases.changes(listed) == []
    leases.release("a")
    assert leases.changes(listed) == [Change("topic", "t", LEADER_LIST, "SUBTRACT", "0:1")]


HOLDERS = st.sampled_from("abc")
HOLDINGS = st.builds(
    Holding,
    st.dictionaries(
        st.sampled_from(["1", "2"]),
        st.dictionaries(st.sampled_from([*RATES, MOVE_RATE]), st.sampled_from(["10", "20"]), max_size=2),
        max_size=2,
    ),
    st.dictionaries(
        st.sampled_from(["t", "u"]),
        st.dictionaries(
            st.sampled_from([LEADER_LIST, FOLLOWER_LIST]),
            st.lists(st.sampled_from(["0:1", "0:2", "1:1"]), max_size=3, unique=True),
            max_size=2,
        ),
        max_size=2,
    ),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), HOLDERS, HOLDINGS),
        st.tuples(st.just("release"), HOLDERS, st.none()),
        st.tuples(st.just("look"), st.none(), st.none()),
        st.tuples(st.just("silent"), st.sampled_from(["1", "2"]), st.none()),
        st.tuples(st.just("lag"), st.sampled_from(["1", "2"]), st.none()),
        st.tuples(st.just("carry"), st.none(), st.none()),
    ),
    max_size=25,
)


@given(
    st.dictionaries(
        st.sampled_from(["1", "2"]), st.dictionaries(st.sampled_from(RATES), st.just("7"), max_size=2), max_size=2
    ),
    st.dictionaries(st.just("t"), st.dictionaries(st.just(LEADER_LIST), st.just(["0:1"]), max_size=1), max_size=1),
    STEPS,
)
def test_cluster_ends_as_it_was_before(rates: dict, lists: dict, steps: list) -> None:  # type: ignore[type-arg]
    configs, leases = Configs(rates, lists), Leases()
    before = configs.set()
    for kind, name, holding in steps:
        if kind == "hold":
            leases.hold(name, holding)
        elif kind == "release":
            leases.release(name)
        elif kind == "silent":
            configs.silent = () if configs.silent else (name,)
        elif kind == "lag":
            configs.lag(name)
        elif kind == "carry":
            shown = leases_in(progress_of(leases, "c/throttles", {}))
            leases = Leases.of(leases.as_json())
            assert shown == leases
        else:
            configs.look(leases)
    configs.silent = ()
    for holder in "abc":
        leases.release(holder)
    configs.look(leases)
    configs.behind.clear()
    settled(configs, leases)
    assert configs.set() == before and leases.idle


def test_throttled_replicas_of_a_move_are_its_sources_and_its_added_ones() -> None:
    move = PlannedMove(MoveKind.REPLICAS, TopicPartition("t", 3), 1, before=(1, 2), after=(2, 4))
    disk = PlannedMove(MoveKind.DIRECTORY, TopicPartition("u", 0), 1, node=1, source="/a", target="/b")
    assert entries_of([move, disk]).entries == {"t": {LEADER_LIST: ["3:1", "3:2"], FOLLOWER_LIST: ["3:4"]}}


def test_rates_of_a_plan_without_throttles_hold_nothing() -> None:
    assert rates_of([1, 2], None, None) == Holding()
    assert rates_of([1], 5, None).rates == {"1": dict.fromkeys(RATES, "5")}


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"rates": {"x": {LEADER_RATE: "1"}}},
        {"rates": {"1": {LEADER_RATE: "0"}}},
        {"rates": {"1": {"retention.ms": "1"}}},
        {"entries": {"t": {"cleanup.policy": []}}},
        {"entries": {"t": {LEADER_LIST: [1]}}},
    ],
)
def test_invalid_holding_is_rejected(value: object) -> None:
    with pytest.raises(BadField):
        holding_of(value)
