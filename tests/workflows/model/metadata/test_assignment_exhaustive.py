"""Everything that can happen to one partition on up to five nodes, in every order up to some depth: what always holds.

States are walked breadth first and each once: two histories that end in the same row need not be gone on with twice.
What a walk reaches is small, since only the row counts: who holds the partition, who is in sync, who leads, who is up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import pytest

from storage_node.model.assignment import Assignment, after_cancel
from storage_node.model.metadata import DirectoryRegistration, NodeImage, OfflineReplica, PartitionImage
from tests.support.scale import FULL, tally
from workflows.model.metadata.election import decide

Nodes = tuple[int, ...]


@cache
def nodes_up(up: frozenset[int], count: int) -> dict[int, NodeImage]:
    return {
        node: NodeImage(node, "i", 1, "h", 1, (DirectoryRegistration(f"d{node}", "/a"),), fenced=node not in up)
        for node in range(1, count + 1)
    }


@cache
def marks(bad: frozenset[int]) -> tuple[OfflineReplica, ...]:
    return tuple(OfflineReplica(node, "a bad file") for node in sorted(bad))


@dataclass(frozen=True)
class Scene:
    """A partition's row without its epochs, who is up, and whose replicas are reported offline."""

    assignment: Assignment
    isr: Nodes
    leader: int
    up: frozenset[int]
    unclean: bool = False
    bad: frozenset[int] = frozenset()

    @property
    def row(self) -> PartitionImage:
        none = len(self.assignment.replicas)
        directories = tuple(f"d{node}" for node in self.assignment.replicas)
        return PartitionImage(
            0,
            self.assignment,
            directories,
            tuple(range(none)),
            self.isr,
            self.leader,
            leader_epoch=7,
            partition_epoch=7,
            offline=marks(self.bad),
        )


@dataclass(frozen=True)
class Step:
    """What was done and the row after it."""

    what: str
    after: PartitionImage
    up: frozenset[int]
    target: Nodes = ()

    @property
    def can(self) -> frozenset[int]:
        """The nodes that can serve the partition now."""
        return self.up - {each.node for each in self.after.offline}


def targets(count: int) -> list[Nodes]:
    """Every set of up to three nodes in two orders: order does not change who is added or removed."""
    found = [each for size in (1, 2, 3) for each in combinations(range(1, count + 1), size)]
    return found + [each[::-1] for each in found if len(each) > 1]


def steps(scene: Scene, count: int, wanted: list[Nodes], reports: bool) -> Iterator[Step]:
    """All that can happen next; with `reports` nodes report replicas offline, and online again."""
    row, nodes, up = scene.row, nodes_up(scene.up, count), scene.up
    for target in wanted:
        changed = row.assignment.reassign(target, row.isr)
        yield Step("reassign", decide(row, nodes, assignment=changed, unclean=scene.unclean), up, target)
    if row.assignment.reassigning:
        back, isr = after_cancel(row.assignment, row.isr)
        if isr or scene.unclean:
            after = decide(row, nodes, assignment=back, isr=isr or back.replicas[:1], unclean=scene.unclean)
            yield Step("cancel", after, up)
    if row.leader != -1:
        for node in row.replicas:
            if node not in row.isr and node in up - scene.bad:
                yield Step("expand", decide(row, nodes, isr=(*row.isr, node), unclean=scene.unclean), up, (node,))
            elif node in row.isr and node != row.leader:
                rest = tuple(each for each in row.isr if each != node)
                yield Step("shrink", decide(row, nodes, isr=rest, unclean=scene.unclean), up)
    for node in row.replicas:
        other = up ^ {node}
        yield Step(
            "fence" if node in up else "return", decide(row, nodes_up(other, count), unclean=scene.unclean), other
        )
        if node in up:
            yield Step("restart", decide(row, nodes, restarted=(node,), unclean=scene.unclean), up)
        if reports:
            told = marks(scene.bad ^ {node})
            what = "repair" if node in scene.bad else "report"
            yield Step(what, decide(row, nodes, offline=told, unclean=scene.unclean), up)


def check(scene: Scene, step: Step) -> None:
    """What holds for every step; `scene` is the row before it."""
    before, after, held = scene.row, step.after, step.after.assignment
    isr, original = set(after.isr), before.assignment.original or before.replicas
    assert isr and isr <= set(after.replicas), "somebody is in sync, always"
    assert len(set(after.isr)) == len(after.isr)
    can = step.can
    fenced = isr - can
    assert not fenced or (len(fenced) == len(isr) and after.leader == -1), "away and in sync: only who was the last"
    assert after.leader == -1 or after.leader in isr & can, "who leads is in sync and up"
    assert after.leader != -1 or not isr & can, "whoever can lead does"
    assert {each.node for each in after.offline} <= set(after.replicas), "a report goes with its replica"
    assert held.complete(after.isr) is None, "what is complete does not stay under way"
    assert held.adding == tuple(sorted(held.adding)) and held.removing == tuple(sorted(held.removing))
    assert held.replicas == (*held.target, *held.removing), "in Kafka's order"
    if held.reassigning:
        assert held.original == original, "the original set is kept, in its order"
        assert set(held.original) <= set(held.replicas), "none of the original set goes before the end"
        assert set(held.adding) == set(held.target) - set(original)
        extra = set(held.removing) - set(original)
        away = ("shrink", "fence", "restart", "expand", "return", "report", "repair")
        assert not extra or extra & set(after.isr) or step.what in away
    if step.what == "reassign":
        wanted = set(step.target)
        assert held.target == step.target
        assert len(isr) >= min(len(before.isr), len(wanted)), "no change of mind costs an in-sync replica"
        if held.reassigning:
            assert isr == set(before.isr), "nobody leaves the ISR before the target is reached"
            stay = set(before.replicas) & (wanted | set(original) | set(before.isr))
            assert set(held.replicas) == stay | wanted
    elif step.what == "cancel":
        assert held == Assignment(original), "the set from before, in its order"
        back = tuple(node for node in original if node in before.isr)
        assert after.isr == back or (not back and scene.unclean), "exactly its in-sync ones, in its order"
    elif step.what in ("expand", "return", "repair"):
        gone = set(before.replicas) - set(after.replicas)
        assert not gone or (not held.reassigning and gone <= set(before.assignment.removing))
        assert len(isr) >= min(len(before.isr), len(held.target))
    if before.leader in isr and before.leader in can and step.what != "restart":
        assert after.leader == before.leader, "a leader that can stay stays"
    if after != before:
        assert after.partition_epoch == 8
        left = set(before.replicas) - set(after.replicas)
        elected = after.leader != before.leader and after.leader != -1
        again = step.what == "restart" and before.leader == after.leader and len(before.isr) == 1
        if left or elected:
            assert after.leader_epoch == 8
        elif not again:
            assert after.leader_epoch == 7
        for node, directory in zip(after.replicas, after.directories, strict=True):
            assert directory == (f"d{node}" if node in before.replicas else "")
    may = set(before.isr) | (set(step.target) if step.what == "expand" else set())
    if not scene.unclean:
        assert isr <= may, "nobody is in sync who was not"
    elif not isr <= may and step.what != "cancel":
        assert after.isr == (after.leader,) and after.leader not in held.adding, "an unclean leader is alone"


def scenes(count: int, unclean: bool) -> list[Scene]:
    """Where a walk begins: a partition with one, two or three replicas, all up and in sync."""
    everybody = frozenset(range(1, count + 1))
    return [
        Scene(Assignment(replicas), replicas, replicas[0], everybody, unclean)
        for replicas in ((1,), (1, 2), (2, 1, 3))
        if max(replicas) <= count
    ]


def walk(count: int, depth: int | None, unclean: bool, reports: bool = False) -> int:
    """Check all steps from all scenes that `depth` steps reach, or (None) until no step leads to a scene that is new;
    answers how many steps that were.
    """
    wanted, frontier = targets(count), scenes(count, unclean)
    seen, checked, done = set(frontier), 0, 0
    while frontier and done != depth:
        done += 1
        found: list[Scene] = []
        for scene in frontier:
            for step in steps(scene, count, wanted, reports):
                check(scene, step)
                checked += 1
                after = step.after
                bad = frozenset(each.node for each in after.offline)
                next_ = Scene(after.assignment, after.isr, after.leader, step.up, unclean, bad)
                if next_ not in seen:
                    seen.add(next_)
                    found.append(next_)
        frontier = found
    assert frontier if depth else not frontier, "to the end, and no further than is said"
    return checked


@pytest.mark.timeout(900)
@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize(
    ("count", "small", "full"),
    [(2, None, None), (3, None, None), (4, 3, 6), (5, 2, 4)],  # how deep; on two and three nodes to the end
    ids=str,
)
@pytest.mark.conformance(143, 144, 145, 146, 147, 148, 149, 150, 157, 158)
@pytest.mark.feature("455-21", "455-23", "455-24")
def test_reassignment_events_in_any_order_keep_the_invariants(
    count: int, small: int | None, full: int | None, unclean: bool
) -> None:
    with tally("steps of reassignments, every order") as t:
        t.count = walk(count, full if FULL else small, unclean)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize(("count", "small", "full"), [(2, None, None), (3, 3, 6), (4, 2, 4)], ids=str)
def test_offline_reports_in_any_order_keep_the_invariants(
    count: int, small: int | None, full: int | None, unclean: bool
) -> None:
    with tally("steps with replicas that are offline, every order") as t:
        t.count = walk(count, full if FULL else small, unclean, reports=True)
