"""The seed determines the nemesis' decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import pytest

from ops.torture.nemesis.book import Book
from ops.torture.nemesis.decisions import BY_ENGINE, ON_DISKS, REPLICATED, WEIGHTS, Decision, Every, decisions
from ops.torture.nemesis.faults import CANCEL_PREFIXES, MOVE_PREFIXES, OTHER_PREFIXES, points
from ops.torture.nemesis.moving import Moving
from ops.torture.nemesis.nemesis import Nemesis
from ops.torture.roles import LocalRoles
from ops.torture.topics import Side
from ops.torture.workload import Workload
from storage_node import failpoints
from tests.support.programs.binary import ensure_temporal


def some(seed: int, count: int = 2000) -> list[Decision]:
    return list(islice(decisions(seed), count))


def test_same_seed_decides_the_same() -> None:
    assert some(7) == some(7)
    assert some(7)[:50] != some(8)[:50]


@pytest.mark.parametrize(
    ("options", "own"),
    [({}, {}), ({"by_engine": True}, BY_ENGINE), ({"replicated": True}, REPLICATED), ({"disks": True}, ON_DISKS)],
    ids=["always", "engine", "replicas", "disks"],
)
def test_every_action_occurs_where_it_is_possible_and_only_there(
    options: dict[str, bool], own: Mapping[str, int]
) -> None:
    seen = Counter(decision.action for decision in islice(decisions(3, **options), 2000))
    assert set(seen) == set(WEIGHTS) | set(own)
    assert seen["move-by-sdk"] > 3 * seen["kill-temporal"]


def test_an_action_happens_every_so_many_seconds_in_place_of_the_seeds() -> None:
    every = Every({"disk-replaced": 20.0, "kill-controller": 30.0}, began=100.0)
    chosen = [every.chosen(decision, float(now)) for now, decision in zip(range(101, 221), some(7), strict=False)]
    pairs = enumerate(zip(chosen, some(7), strict=False))
    forced = [(101 + at, made.action) for at, (made, own) in pairs if made != own]
    assert forced == [
        (120, "disk-replaced"), (130, "kill-controller"), (140, "disk-replaced"), (160, "disk-replaced"),
        (161, "kill-controller"), (180, "disk-replaced"), (190, "kill-controller"), (200, "disk-replaced"),
        (220, "disk-replaced"),
    ]  # fmt: skip
    assert [made.picks for made in chosen] == [own.picks for own in some(7)[:120]]


def test_every_decision_can_be_carried_out(tmp_path: Path) -> None:
    """Each action has a method: otherwise a run would fail only when its seed decides on that action."""
    ensure_temporal()
    roles = LocalRoles(tmp_path, lambda _line: None)
    roles.stack.make_folder()
    roles.stack.prepare({"nodes": 3, "dirs": 3, "port": 31000, "temporal_port": 31003})
    book = Book(tmp_path, lambda _line: None)
    nemesis = Nemesis(roles, Moving(roles), Workload(roles, tmp_path, 1), Side(roles), book, 1)
    assert sorted(nemesis.actions) == sorted([*WEIGHTS, *BY_ENGINE, *REPLICATED, *ON_DISKS])
    nemesis.stop()
    book.close()


@pytest.mark.parametrize("family", [MOVE_PREFIXES, CANCEL_PREFIXES, OTHER_PREFIXES])
def test_nodes_die_at_points_that_exist(family: tuple[str, ...]) -> None:
    found = points(family)
    assert len(found) >= 6
    assert set(found) <= set(failpoints.registered())
