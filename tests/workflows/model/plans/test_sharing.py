"""The keys under which plans share slots, and their limits."""

from __future__ import annotations

import pytest

from tests.workflows.model.plans.support import copy, disk
from workflows.model.plans import options
from workflows.model.plans.sharing import keys_of, limits_of, taken_of
from workflows.model.plans.values import Lane


def test_lane_uses_its_disks_its_nodes_once_and_the_cluster() -> None:
    assert keys_of(copy(0, 5, ["1:/a"], ["1:/b", "2:any"])) == ("1:/a", "1:/b", "2:any", "1", "2", "")
    assert keys_of(Lane(0, ())) == ("",)


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({}, {"1:/a": 1, "2:any": 2}),
        ({"slots_per_disk": 3, "slots_cluster": 5}, {"1:/a": 3, "2:any": 6, "": 5}),
        ({"slots_per_broker": 4}, {"1:/a": 1, "2:any": 4, "1": 4, "2": 4}),
    ],
)
def test_limits_are_those_of_the_plan(given: dict[str, int], limits: dict[str, int]) -> None:
    free = [disk("1:/a"), disk("2:/a"), disk("2:/b")]
    assert limits_of(options.read(given), [disk("1:/a"), disk("2:any")], free) == limits


def test_only_disks_of_the_plan_count_as_taken() -> None:
    assert taken_of({"1:/a": 2, "9:/x": 1, "1": 2, "": 3}, [disk("1:/a"), disk("1:/b")]) == {disk("1:/a"): 2}
