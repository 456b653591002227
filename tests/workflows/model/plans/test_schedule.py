"""Which lanes begin: no disk, node or cluster beyond its slots, no disk beyond its space, every lane in the end, and in
all hardly longer than the busiest disk needs.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.model.ids import TopicPartition
from tests.workflows.model.plans.support import copy, disk
from workflows.model.move.parameter import ANY
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.schedule import PATIENCE, Scheduler, choose, waiting_for
from workflows.model.plans.values import Disk, Lane, MoveKind, PlannedMove


def run(lanes: Sequence[Lane], options: PlanOptions, free: Mapping[Disk, int] | None = None) -> tuple[float, list[int]]:
    """Carry a plan out with a simulated clock, and return the time of its end and the order in which lanes began.

    Each slot of a disk copies a byte in a unit of time. Checks with every begin what must never be exceeded.
    """
    scheduler = Scheduler(lanes, options)
    loads, needs = ({lane.number: held(lane) for lane in lanes} for held in (attrgetter("loads"), attrgetter("needs")))
    slots = Slots(options)
    left, now, began = dict(free or {}), 0, []
    ends: list[tuple[int, int]] = []
    while True:
        for number in scheduler.choose(left, {}):
            began.append(number)
            slots.take(loads[number], 1)
            for target, need in needs[number].items():
                if target in left:
                    left[target] -= need
                    assert left[target] >= 0, f"{target} is overfull"
            heapq.heappush(ends, (now + max(loads[number].values(), default=0), number))
        if not ends:
            assert not scheduler.pending or free, "a lane never began"
            return now, began
        now, number = heapq.heappop(ends)
        scheduler.end(number)
        slots.take(loads[number], -1)
        if free and lanes[number].moves[0].kind == MoveKind.DIRECTORY:
            (source,) = lanes[number].reads
            left[source] += loads[number][source]


class Slots:
    """The slots in use."""

    def __init__(self, options: PlanOptions) -> None:
        self.options, self.disks, self.nodes, self.all = options, Counter[Disk](), Counter[int](), 0

    def take(self, loads: Mapping[Disk, int], change: int) -> None:
        """Count a lane, and check that no slot is used twice."""
        nodes = {each.node for each in loads}
        self.disks.update(dict.fromkeys(loads, change))
        self.nodes.update(dict.fromkeys(nodes, change))
        self.all += change
        assert all(self.disks[each] <= self.options.slots_per_disk for each in loads)
        assert self.options.slots_per_broker is None or all(
            self.nodes[each] <= self.options.slots_per_broker for each in nodes
        )
        assert self.options.slots_cluster is None or self.all <= self.options.slots_cluster


def random_lanes(
    chance: random.Random, nodes: int, disks: int, count: int, largest: int, groups: int = 1
) -> list[Lane]:
    """Return moves between random disks of a broker and random reassignments to one or two brokers."""
    lanes = []
    for number in range(count):
        size = chance.randint(1, largest)
        held = [Disk(node, f"/d{chance.randrange(disks)}") for node in chance.sample(range(nodes), min(nodes, 3))]
        if chance.random() < 0.5 or nodes == 1:
            source, target = (Disk(held[0].node, f"/d{each}") for each in chance.sample(range(disks), 2))
            kind, reads, writes = MoveKind.DIRECTORY, (source,), (target,)
        else:
            kind, reads, writes = MoveKind.REPLICAS, (held[0],), tuple(held[1 : chance.choice([2, 3])])
        move = PlannedMove(kind, TopicPartition("t", number), size, reads=reads, writes=writes)
        lanes.append(Lane(number, (move,), chance.randrange(groups)))
    return lanes


@pytest.mark.parametrize("sizes", ["mixed", "small first", "large first"])
@pytest.mark.parametrize(
    ("nodes", "disks", "count", "slots"), [(1, 4, 300, 1), (3, 4, 400, 1), (8, 4, 1_000, 1), (4, 3, 600, 3)]
)
def test_duration_is_near_that_of_the_busiest_disk(nodes: int, disks: int, count: int, slots: int, sizes: str) -> None:
    lanes = random_lanes(random.Random(7), nodes, disks, count, 1_000_000)
    if sizes != "mixed":
        lanes.sort(key=lambda lane: lane.size, reverse=sizes == "large first")
        lanes = [Lane(number, lane.moves) for number, lane in enumerate(lanes)]
    load: dict[Disk, int] = {}
    for lane in lanes:
        for where, size in lane.loads.items():
            load[where] = load.get(where, 0) + size
    took, began = run(lanes, PlanOptions(slots_per_disk=slots))
    assert len(began) == count
    assert took <= 1.1 * max(load.values()) / slots


@settings(max_examples=40)
@given(
    st.randoms(use_true_random=False),
    st.integers(1, 4),
    st.integers(2, 4),
    st.integers(1, 40),
    st.integers(1, 3),
    st.none() | st.integers(1, 4),
    st.none() | st.integers(1, 6),
)
def test_every_lane_runs_and_no_slot_is_exceeded(
    chance: random.Random, nodes: int, disks: int, count: int, per_disk: int, per_node: int | None, all_: int | None
) -> None:
    lanes = random_lanes(chance, nodes, disks, count, 100, groups=3)
    options = PlanOptions(slots_per_disk=per_disk, slots_per_broker=per_node, slots_cluster=all_)
    _, began = run(lanes, options)
    assert sorted(began) == list(range(count))
    assert run(lanes, options)[1] == began, "the same lanes in the same order"


@settings(max_examples=40)
@given(st.randoms(use_true_random=False), st.integers(1, 25), st.integers(0, 300))
def test_no_disk_is_filled_beyond_its_space(chance: random.Random, count: int, room: int) -> None:
    lanes = random_lanes(chance, 2, 3, count, 100)
    free = {Disk(node, f"/d{each}"): chance.randint(0, room) for node in range(2) for each in range(3)}
    _, began = run(lanes, PlanOptions(slots_per_disk=2), free)
    assert len(began) == len(set(began))


def test_lane_that_fits_passes_one_that_does_not_and_space_that_comes_back_is_used() -> None:
    big, small = copy(0, 100, ["1:/a"], ["2:/a"]), copy(1, 10, ["1:/a"], ["2:/a"])
    scheduler = Scheduler([big, small], PlanOptions(slots_per_disk=2))
    target = disk("2:/a")
    assert scheduler.choose({target: 50}, {}) == (1,)
    assert scheduler.choose({target: 40}, {}) == ()
    assert "needs 100 bytes, has 40" in scheduler.waiting_for(0, {target: 40}, {})
    assert scheduler.choose({target: 100}, {}) == (0,)


def test_two_lanes_reserve_their_space_in_one_decision() -> None:
    lanes = [copy(number, 60, [f"{number}:/a"], ["9:/a"]) for number in (1, 2)]
    options = PlanOptions(slots_per_disk=2)
    assert choose(lanes, done=set(), running=set(), options=options, free={disk("9:/a"): 100}) == (1,)


def test_lower_group_begins_first_and_the_rest_fills_what_it_leaves() -> None:
    lanes = [
        copy(0, 1_000, ["1:/a"], ["2:/a"], group=1),
        copy(1, 1, ["1:/a"], ["3:/a"], group=0),
        copy(2, 1, ["4:/a"], ["2:/a"], group=2),
    ]
    assert choose(lanes, done=set(), running=set(), options=PlanOptions(), free={}) == (1, 2)


def test_lane_of_several_disks_is_not_passed_over_by_higher_groups_for_ever() -> None:
    lanes = [copy(0, 1, ["1:/a"], ["2:/a", "3:/a"])]
    lanes += [copy(each, 10 + each % 7, [f"{1 + each % 3}:/a"], [f"{100 + each}:/a"], group=1) for each in range(1, 91)]
    scheduler, began = Scheduler(lanes, PlanOptions(), running={1, 2, 3}), []
    ends = [(3, 1), (6, 2), (9, 3)]  # the three disks are never idle at once
    while ends:
        now, number = heapq.heappop(ends)
        scheduler.end(number)
        for each in scheduler.choose({}, {}):
            began.append(each)
            heapq.heappush(ends, (now + lanes[each].size, each))
    assert sorted(began) == [0, *range(4, 91)]
    assert began.index(0) <= 3 * PATIENCE, "each of the disks is kept for it after so many others"


def test_busiest_disk_begins_first_within_a_group() -> None:
    lanes = [copy(0, 10, ["1:/a"], ["2:/a"]), copy(1, 9, ["1:/a"], ["3:/a"]), copy(2, 8, ["3:/a"], ["4:/a"])]
    lanes.append(copy(3, 50, ["3:/a"], ["5:/a"]))
    assert choose(lanes, done=set(), running=set(), options=PlanOptions(), free={})[0] == 1, "3:/a has 67 bytes left"


def test_state_follows_from_done_and_running() -> None:
    lanes = random_lanes(random.Random(3), 3, 3, 50, 100)
    scheduler = Scheduler(lanes, PlanOptions())
    done: set[int] = set()
    for _ in range(30):
        scheduler.choose({}, {})
        first = min(scheduler.running)
        scheduler.end(first)
        done.add(first)
        again = Scheduler(lanes, PlanOptions(), done=done, running=set(scheduler.running))
        assert again.choose({}, {}) == scheduler.choose({}, {})


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 25), st.sampled_from([None, 1, 3]))
def test_kept_scheduler_chooses_what_a_new_one_does(chance: random.Random, count: int, most: int | None) -> None:
    lanes = random_lanes(chance, 3, 3, count, 100)
    kept = Scheduler(lanes, PlanOptions())
    done: set[int] = set()
    running: set[int] = set()
    for _ in range(20):
        for number in sorted(running):
            fate = chance.choice(["goes on", "ends", "waits again"])
            if fate != "goes on":
                running.discard(number)
            if fate == "ends":
                done.add(number)
        kept.sync(done, running)
        new = Scheduler(lanes, PlanOptions(), done=done, running=running)
        chosen = kept.choose({}, {}, most)
        assert chosen == new.choose({}, {}, most) and len(chosen) <= (most or count)
        running |= {number for number in chosen if chance.random() < 0.8}


def test_lane_put_back_begins_again() -> None:
    lanes = [copy(0, 1, ["1:/a"], ["2:/a"]), copy(1, 1, ["1:/a"], ["2:/a"])]
    scheduler = Scheduler(lanes, PlanOptions())
    assert scheduler.choose({}, {}) == (0,)
    scheduler.put_back(0)
    assert (scheduler.pending, scheduler.choose({}, {})) == (2, (0,))
    scheduler.end(1)
    scheduler.end(0)
    assert (scheduler.pending, scheduler.choose({}, {})) == (0, ())


def test_slots_of_other_plans_count_and_come_back() -> None:
    lane = copy(0, 1, ["1:/a"], ["2:/a"])
    scheduler = Scheduler([lane], PlanOptions())
    assert scheduler.choose({}, {disk("2:/a"): 1}) == ()
    assert "1 by other plans" in scheduler.waiting_for(0, {}, {disk("2:/a"): 1})
    assert scheduler.choose({}, {}) == (0,)


def test_directory_that_the_broker_chooses_counts_against_the_node() -> None:
    lanes = [copy(number, 10, [f"{number}:/a"], [f"9:{ANY}"]) for number in (1, 2, 3)]
    free = {disk("9:/a"): 100, disk("9:/b"): 100}
    assert choose(lanes, done=set(), running=set(), options=PlanOptions(), free=free) == (1, 2), "a slot per directory"
    options = PlanOptions(slots_per_broker=3)
    assert choose(lanes, done=set(), running=set(), options=options, free=free) == (1, 2, 3)
    assert choose(lanes, done=set(), running=set(), options=options, free=free | {disk("9:/b"): 15}) == (1,)
    words = waiting_for(lanes[1], lanes, done=set(), running={1}, options=options, free=free | {disk("9:/b"): 5})
    assert "broker 9, which chooses the directory" in words and "9:/b has 5" in words and "log_dirs" in words


def test_reasons_to_wait_are_in_words() -> None:
    lanes = [copy(number, 1, ["1:/a"], [f"{number}:/a"]) for number in (2, 3, 4)]

    def words(options: PlanOptions) -> str:
        return waiting_for(lanes[1], lanes, done=set(), running={2}, options=options, free={})

    assert words(PlanOptions()) == "waiting for a slot of disk 1:/a: its only slot is in use, 1 by lanes of this plan"
    assert "slot of broker 1" in words(PlanOptions(slots_per_disk=9, slots_per_broker=1))
    assert "slot of the cluster" in words(PlanOptions(slots_per_disk=9, slots_cluster=1))
    assert words(PlanOptions(slots_per_disk=9)) == ""


def test_lanes_that_copy_nothing_begin_without_disks() -> None:
    lanes = [Lane(at, (PlannedMove(MoveKind.REPLICAS, TopicPartition("t", at), 5),)) for at in range(3)]
    assert run(lanes, PlanOptions())[1] == [0, 1, 2]


def test_decision_costs_what_has_changed_and_not_the_whole_plan() -> None:
    lanes = random_lanes(random.Random(5), 30, 8, 5_000, 1_000)
    scheduler = Scheduler(lanes, PlanOptions())
    running = list(scheduler.choose({}, {}))
    begin = time.process_time()
    for _ in range(200):
        scheduler.end(running.pop(0))
        running += scheduler.choose({}, {})
    assert time.process_time() - begin < 200 * 0.05
