"""Which throttles are left over: all that the keeper does not hold, and whether they slow something now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ops.cli.plan import leftovers
from ops.cli.plan.leftovers import Leftover, Throttled
from storage_node.model.ids import TopicPartition
from tests.workflows.model.plans.support import cluster
from workflows.model.plans.running.throttling import HeldEntry, HeldValue, Leases
from workflows.model.plans.values import PlacedReplica
from workflows.model.throttles import LISTS, MOVE_RATE, RATES

LEADER, FOLLOWER = LISTS
VIEW = cluster({"t-0": ["1:/a"], "u-0": ["2:/a"]}, disks=["1:/a", "1:/b", "2:/a", "3:/a"])
TP = TopicPartition("t", 0)
COPYING = replace(VIEW, futures={(1, TP): PlacedReplica("/b", 0)})
REASSIGNING = replace(
    VIEW, partitions={**VIEW.partitions, TP: replace(VIEW.partitions[TP], replicas=(1, 3), adding=(3,))}
)


@pytest.mark.parametrize(
    ("found", "leases", "expected"),
    [
        (Throttled(), Leases(), []),
        (
            Throttled({"1": {RATES[0]: "5"}}, {"t": {LEADER: "0:1,0:2", FOLLOWER: ""}}),
            Leases(),
            [Leftover("broker", "1", RATES[0], "5"), Leftover("topic", "t", LEADER, "0:1,0:2")],
        ),
        # What the keeper holds is not left over, not even where another tool has set another value.
        (Throttled({"1": {MOVE_RATE: "5"}}), Leases(values={("1", MOVE_RATE): HeldValue(None, (("p", "5"),))}), []),
        (
            Throttled({"1": {MOVE_RATE: "7"}}),
            Leases(values={("1", MOVE_RATE): HeldValue(None, (("p", "5"),), "5", True)}),
            [],
        ),
        # Of a list only the entries that it does not hold.
        (
            Throttled(topics={"t": {LEADER: "0:1, 0:2,*"}}),
            Leases(entries={("t", LEADER, "0:2"): HeldEntry(("p",), True)}),
            [Leftover("topic", "t", LEADER, "0:1,*")],
        ),
        (
            Throttled({"10": {MOVE_RATE: "1"}, "9": {MOVE_RATE: "1"}}),
            Leases(),
            [Leftover("broker", "9", MOVE_RATE, "1"), Leftover("broker", "10", MOVE_RATE, "1")],
        ),
    ],
)
def test_leftovers_are_what_no_lease_holds(found: Throttled, leases: Leases, expected: list[Leftover]) -> None:
    assert leftovers.leftovers(found, leases, VIEW) == expected


def test_throttle_of_a_move_in_progress_is_in_use() -> None:
    found = Throttled({"1": {RATES[0]: "5", MOVE_RATE: "6"}, "2": {RATES[0]: "5"}}, {"t": {LEADER: "0:1"}})
    copying = leftovers.leftovers(found, Leases(), COPYING)
    assert [(each.name, each.key) for each in copying if each.in_use] == [("1", MOVE_RATE)]
    moving = leftovers.leftovers(found, Leases(), REASSIGNING)
    assert [(each.name, each.key) for each in moving if each.in_use] == [("1", RATES[0]), ("t", LEADER)]
    assert moving[0].in_use == "the reassignment of t-0 is in progress"


def test_only_what_is_unchanged_and_not_in_use_is_removed() -> None:
    rate, entries = Leftover("broker", "1", MOVE_RATE, "5"), Leftover("topic", "t", LEADER, "0:1")
    assert leftovers.still([rate, entries], [replace(rate, value="6"), entries]) == [entries]
    assert leftovers.still([rate], [replace(rate, in_use="a move")]) == []
    assert leftovers.still([replace(rate, in_use="a move")], [replace(rate, in_use="a move")]) == []


def test_removal_deletes_rates_and_takes_entries_off_their_lists() -> None:
    chosen = [Leftover("broker", "1", key, "5") for key in RATES] + [Leftover("topic", "t", LEADER, "0:1,0:2")]
    assert leftovers.changes(chosen) == {
        "broker": {"1": {key: ("DELETE", None) for key in RATES}},
        "topic": {"t": {LEADER: ("SUBTRACT", "0:1,0:2")}},
    }
