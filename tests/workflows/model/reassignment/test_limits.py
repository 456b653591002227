"""The throttles of a limited and of a paused run of reassignments."""

from __future__ import annotations

from workflows.model import throttles
from workflows.model.reassignment import limits
from workflows.model.reassignment.runs import PartitionRun

LEADERS, FOLLOWERS = throttles.LISTS
LEADER_RATE, FOLLOWER_RATE = throttles.RATES
PARTS = [
    PartitionRun("t", 0, (2, 3), original=(1, 2), adding=(3,)),
    PartitionRun("t", 1, (4,), original=(1,), adding=(4,)),
]


def test_limit_is_on_both_sides_of_each_copy() -> None:
    both = {LEADER_RATE: "500", FOLLOWER_RATE: "500"}
    found = limits.limited(PARTS, 500)
    assert found == {
        "topics": {"t": {LEADERS: ["0:1", "0:2", "1:1"], FOLLOWERS: ["0:3", "1:4"]}},
        "nodes": {"1": both, "2": both, "3": both, "4": both},
    }
    assert throttles.parse(found) == found and limits.rate_of(found) == 500


def test_pause_holds_the_replicas_that_copy_alone() -> None:
    found = limits.paused(PARTS)
    assert found == {
        "topics": {"t": {FOLLOWERS: ["0:3", "1:4"]}},
        "nodes": {"3": {FOLLOWER_RATE: "1"}, "4": {FOLLOWER_RATE: "1"}},
    }
    assert throttles.parse(found) == found


def test_no_throttles_have_no_rate() -> None:
    assert limits.rate_of({}) is None and limits.rate_of({"topics": {}, "nodes": {}}) is None
