"""A leader's state while the controller's responses and images are late or lost.

No replica that the controller may elect ever lacks a committed record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_node.model.commands import IsrChange
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import PartitionImage
from storage_node.ports import ChangeResult
from storage_node.replication import leading
from storage_node.replication.leading import LeaderState
from tests.support.nodes.model_partition import TOPIC_ID, ModelPartition
from tests.support.nodes.static_image import row

TP = TopicPartition("t", 0)
LAG = 10.0


@dataclass
class Host:
    lag: float = LAG
    brokers: dict[int, int] = field(default_factory=lambda: {1: 1, 2: 1, 3: 1})

    def wants_change(self, state: LeaderState) -> None:
        """Do nothing: the tests send the requests."""

    def watch(self, state: LeaderState, due: float) -> None:
        """Do nothing: the tests call `look`."""


class Clock:
    """Replaces `time` in the module under test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class World:
    """Leader 1 with followers 2 and 3, and a controller that is ahead of the leader's metadata."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, isr: tuple[int, ...] = (1, 2, 3), least: int = 1) -> None:
        self.clock = Clock()
        monkeypatch.setattr(leading, "time", self.clock)
        self.end = 0
        self.ends = {2: 0, 3: 0}
        self.host = Host()
        self.controller = ModelPartition(isr)
        self.epochs = {2: 1, 3: 1}
        """The followers' broker epochs, as they know them."""
        self.told: list[int] = []
        self.changes: list[IsrChange] = []
        self.state = LeaderState(
            TP,
            TOPIC_ID,
            1,
            self.truth,
            self.host,
            log_end=lambda: self.end,
            high_watermark=0,
            min_in_sync=least,
            advanced=self.told.append,
        )

    @property
    def truth(self) -> PartitionImage:
        """Return the controller's row of the partition."""
        return self.controller.row

    def append(self, count: int) -> None:
        self.end += count
        self.state.appended(10 * count)

    def fetch(self, number: int, count: int | None = None) -> None:
        """Fetch as a follower that has `count` more records, or all of them."""
        at = self.end if count is None else min(self.end, self.ends[number] + count)
        self.ends[number] = at
        self.state.fetched(number, at, 0, self.clock.now, self.epochs[number])

    def later(self, seconds: float) -> None:
        self.clock.now += seconds
        self.state.look(self.clock.now)

    def decide(self, change: IsrChange) -> ChangeResult:
        """Return the controller's response."""
        return self.controller.alter(1, change)

    def take_out(self, number: int, *, leader_epoch: int | None = None) -> None:
        """Remove a follower from the ISR at the controller: its replica has failed, its node is up."""
        self.controller.report(number, "failed")
        if leader_epoch not in (None, self.truth.leader_epoch):
            self.controller.at_epoch(leader_epoch or 0)

    def fence(self, number: int) -> None:
        """Let the lease of a follower's node expire."""
        self.controller.fence(number)

    def back(self, number: int) -> None:
        """Register a follower's node again, with a usable replica."""
        self.epochs[number] = self.controller.register(number)
        self.controller.report(number, "")

    def learn_brokers(self) -> None:
        """Deliver the live brokers to the leader's node."""
        self.host.brokers.clear()
        self.host.brokers.update(self.controller.brokers)

    def request(self) -> IsrChange | None:
        return self.state.change(self.clock.now)

    def check(self) -> None:
        """Check that every member of the controller's ISR has the committed records."""
        hw = self.state.high_watermark
        assert hw <= self.end
        for number in self.truth.isr:
            assert number == 1 or self.ends[number] >= hw, (number, self.ends, hw, self.truth.isr)


@pytest.fixture
def patch() -> pytest.MonkeyPatch:
    return pytest.MonkeyPatch()


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5)),
    st.tuples(st.just("fetch"), st.sampled_from([2, 3]), st.integers(0, 6)),
    st.tuples(st.just("end"), st.sampled_from([2, 3])),
    st.tuples(st.just("later"), st.sampled_from([0.1, 1.5, 6.0, 11.0])),
    st.tuples(st.just("request"), st.sampled_from(["responded", "lost", "never came", "image first"])),
    st.tuples(st.just("image")),
    st.tuples(st.just("brokers")),
    st.tuples(st.just("fence"), st.sampled_from([2, 3])),
    st.tuples(st.just("back"), st.sampled_from([2, 3])),
    st.tuples(st.just("take out"), st.sampled_from([2, 3])),
)


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=60), st.sampled_from([1, 2]), st.sampled_from([(1,), (1, 2), (1, 2, 3)]))
@example([("end", 3), ("request", "lost"), ("append", 1), ("later", 11.0), ("end", 2)], 1, (1, 2))
@example(
    [("end", 2), ("request", "lost"), ("later", 11.0), ("append", 1), ("request", "never came"), ("append", 1)], 1, (1,)
)
def test_high_watermark_never_passes_an_electable_replica(
    steps: list[tuple[object, ...]], least: int, isr: tuple[int, ...]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world = World(patch, isr=isr, least=least)
        high = 0
        for step in steps:
            _do(world, step)
            world.check()
            assert world.state.high_watermark >= high
            high = world.state.high_watermark
        # Once everything is delivered and the followers are back, all are in sync and everything is committed.
        for number in (2, 3):
            world.back(number)
        world.learn_brokers()
        for _ in range(6):
            world.later(1.5)
            for number in (2, 3):
                world.fetch(number)
            change = world.request()
            if change is not None:
                world.state.answered(change, world.decide(change))
            world.state.update(world.truth)
            world.check()
        assert set(world.truth.isr) == {1, 2, 3} and world.state.high_watermark == world.end


def _do(world: World, step: tuple[object, ...]) -> None:
    state = world.state
    match step:
        case "append", int(count):
            world.append(count)
        case "fetch", int(number), int(count):
            world.fetch(number, count)
        case "end", int(number):
            world.fetch(number)
        case "later", float(seconds):
            world.later(seconds)
        case ("image",):
            world.learn_brokers()
            state.update(world.truth)
        case ("brokers",):
            world.learn_brokers()
        case "fence", int(number):
            world.fence(number)
        case "take out", int(number):
            world.take_out(number)
        case "back", int(number):
            world.back(number)
        case "request", how:
            change = world.request()
            if change is None:
                return
            if how == "never came":
                return
            result = world.decide(change)
            if how == "image first":
                state.update(world.truth)
            if how != "lost":
                state.answered(change, result)


def test_high_watermark_is_the_log_end_if_the_leader_is_alone(patch: pytest.MonkeyPatch) -> None:
    with patch.context() as context:
        world = World(context, isr=(1,))
        assert world.state.alone
        world.append(5)
        assert world.state.high_watermark == 5 and world.state.appended(1)


def test_joining_follower_holds_back_the_high_watermark_until_it_lags(patch: pytest.MonkeyPatch) -> None:
    with patch.context() as context:
        world = World(context, isr=(1,))
        world.append(5)
        world.fetch(2)
        world.append(5)
        assert world.state.high_watermark == 5
        world.later(LAG + 1)
        assert world.state.high_watermark == 10 and world.state.alone


def test_shrink_counts_when_it_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    with patch.context() as context:
        world = World(context)
        world.append(5)
        world.fetch(2)
        world.later(LAG - 1)
        world.fetch(2)
        world.later(2)
        change = world.request()
        assert change is not None and [number for number, _ in change.isr] == [1, 2]
        assert dict(change.isr)[2] == 1 and change.partition_epoch == 0
        assert world.state.high_watermark == 0
        world.state.answered(change, world.decide(change))
        assert world.state.high_watermark == 5 and world.state.isr == (1, 2)
        assert sum(world.told) == 50


@pytest.mark.parametrize("leader_epoch", [1, 2])
@pytest.mark.parametrize("appended", ["before", "after", "both"])
def test_follower_with_failed_directory_does_not_hold_back_the_high_watermark(
    patch: pytest.MonkeyPatch, appended: str, leader_epoch: int
) -> None:
    """Its node is up, and it was caught up a moment ago: the leader waits for it only from its next fetch on."""
    with patch.context() as context:
        world = World(context)
        world.append(4)
        world.fetch(2)
        world.fetch(3)
        if appended != "after":
            world.append(2)
            world.fetch(2)
            assert world.state.high_watermark == 4
        world.take_out(3, leader_epoch=leader_epoch)
        world.state.update(world.truth)
        if appended != "before":
            world.append(2)
            world.fetch(2)
        assert world.state.high_watermark == world.end
        world.append(1)
        world.fetch(2)
        assert world.state.high_watermark == world.end
        # It fetches again; acks=all does not count it before it is a member.
        world.fetch(3)
        change = world.request()
        assert change is not None and [number for number, _ in change.isr] == [1, 2, 3]
        world.append(1)
        world.fetch(2)
        assert world.state.high_watermark == world.end - 1


def test_high_watermark_is_the_log_end_after_the_isr_shrinks_to_the_leader(patch: pytest.MonkeyPatch) -> None:
    with patch.context() as context:
        world = World(context, isr=(1, 2))
        world.append(3)
        world.fetch(2)
        world.take_out(2)
        world.state.update(world.truth)
        world.append(3)
        assert world.state.alone and world.state.high_watermark == 6


def test_ineligible_replica_does_not_hold_back_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    with patch.context() as context:
        world = World(context, isr=(1, 2))
        world.append(2)
        world.fetch(2)
        world.fetch(3)
        change = world.request()
        assert change is not None and 3 in world.state.maximal_isr
        world.state.answered(change, ChangeResult(error=int(ErrorCode.INELIGIBLE_REPLICA)))
        assert world.state.maximal_isr == {1, 2}
        # The leader does not request it again at once either.
        world.fetch(3)
        assert world.request() is None


@pytest.mark.parametrize(
    "code",
    [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NEW_LEADER_ELECTED],
)
def test_rejection_for_newer_metadata_waits_for_it(patch: pytest.MonkeyPatch, code: ErrorCode) -> None:
    with patch.context() as context:
        world = World(context, isr=(1, 2))
        world.append(2)
        for number in (2, 3):
            world.fetch(number)
        change = world.request()
        assert change is not None
        world.state.answered(change, ChangeResult(error=int(code)))
        # It may be in the ISR of the newer metadata.
        assert world.state.maximal_isr == {1, 2, 3} and world.request() is None
        world.state.update(row(isr=(1, 2), partition_epoch=1))
        assert world.state.maximal_isr == {1, 2}


def test_late_response_to_an_outdated_change_is_ignored(patch: pytest.MonkeyPatch) -> None:
    with patch.context() as context:
        world = World(context, isr=(1, 2))
        world.append(2)
        for number in (2, 3):
            world.fetch(number)
        change = world.request()
        assert change is not None
        world.state.update(row(epoch=2, isr=(1,), partition_epoch=4))
        world.state.answered(change, ChangeResult(value=1))
        assert world.state.isr == (1,) and world.state.partition_epoch == 4


def test_another_epoch_of_the_same_leader_keeps_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    with patch.context() as context:
        world = World(context)
        world.append(4)
        world.fetch(2)
        world.fetch(3, 3)
        assert world.state.high_watermark == 3
        world.append(1)
        world.state.update(row((1, 2), epoch=2, isr=(1, 2), partition_epoch=1))
        assert world.state.epoch_start == 5 and not world.state.knows(3)
        assert world.state.high_watermark == 4
        world.fetch(2)
        assert world.state.high_watermark == 5


@dataclass
class Vouching:
    """A follower's session, as the leader sees it."""

    fetched_at: float = float("-inf")
    named: bool = False

    def changed(self) -> None:
        self.named = True


class Twins:
    """Two leaders: one records every fetch, the other only those that a session must name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, isr: tuple[int, ...] = (1, 2, 3)) -> None:
        self.plain, self.lazy = World(monkeypatch, isr=isr), World(monkeypatch, isr=isr)
        self.clock = self.lazy.clock = self.plain.clock
        monkeypatch.setattr(leading, "time", self.clock)
        self.vouchers = {2: Vouching(), 3: Vouching()}
        self.told = {2: -1, 3: -1}
        self.noted = 0

    def append(self, count: int) -> None:
        began = self.clock.now
        for world in (self.plain, self.lazy):
            world.end += count
            world.state.appended(10 * count, began)
        for voucher in self.vouchers.values():
            voucher.named = True

    def fetch(self, number: int, count: int | None = None) -> None:
        self.plain.fetch(number, count)
        at = self.lazy.ends[number] = self.plain.ends[number]
        voucher = self.vouchers[number]
        if voucher.named or at != self.told[number]:
            self.noted += 1
            voucher.named = False
            rests = self.lazy.state.fetched(number, at, 0, self.clock.now, 1, voucher)
            voucher.named = voucher.named or not rests
            self.told[number] = at
        voucher.fetched_at = self.clock.now

    def later(self, seconds: float) -> None:
        self.clock.now += seconds
        for world in (self.plain, self.lazy):
            world.state.look(self.clock.now)

    def change(self, lost: bool) -> None:
        changes = self.plain.request(), self.lazy.request()
        assert changes[0] == changes[1]
        for world, change in zip((self.plain, self.lazy), changes, strict=True):
            if change is not None:
                result = world.decide(change)
                if not lost:
                    world.state.answered(change, result)
        self.check()

    def image(self) -> None:
        for world in (self.plain, self.lazy):
            world.state.update(world.truth)
        for voucher in self.vouchers.values():
            voucher.named = True  # as the partition's waiters are called

    def check(self) -> None:
        plain, lazy = self.plain.state, self.lazy.state
        assert lazy.high_watermark == plain.high_watermark
        assert (lazy.isr, lazy.maximal_isr, lazy.alone) == (plain.isr, plain.maximal_isr, plain.alone)
        for number, known in plain.followers.items():
            found = lazy.followers[number]
            assert (found.end, found.caught_up, found.fetched) == (known.end, known.caught_up, known.fetched)
        for world in (self.plain, self.lazy):
            world.check()


TWIN_STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5)),
    st.tuples(st.just("fetch"), st.sampled_from([2, 3]), st.one_of(st.none(), st.integers(0, 3))),
    st.tuples(st.just("later"), st.floats(0.0, LAG)),
    st.tuples(st.just("change"), st.booleans()),
    st.tuples(st.just("image")),
    st.tuples(st.just("take_out"), st.sampled_from([2, 3])),
)


@settings(max_examples=400, deadline=None)
@given(steps=st.lists(TWIN_STEPS, max_size=40), isr=st.sampled_from([(1, 2, 3), (1, 2), (1,)]))
def test_session_naming_only_changes_is_equivalent_to_all_its_fetches(
    steps: list[tuple[Any, ...]], isr: tuple[int, ...]
) -> None:
    """Both decide the same in any order of appends, fetches, time, ISR changes and images."""
    with pytest.MonkeyPatch.context() as patch:
        twins = Twins(patch, isr=isr)
        for name, *given_ in steps:
            if name == "take_out":
                for world in (twins.plain, twins.lazy):
                    world.take_out(given_[0])
            else:
                getattr(twins, name)(*given_)
            twins.check()


def test_idle_session_is_in_sync_for_as_long_as_it_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(monkeypatch)
    for number in (2, 3):
        twins.fetch(number)
    for _ in range(10):
        twins.later(LAG)
        twins.fetch(2)
    assert twins.noted == 2, "idle fetches are noted in the session alone"
    twins.append(1)
    # 3 has not fetched for long, 2 has until now: both lack the new record.
    assert twins.lazy.state.look(twins.clock.now)
    change = twins.lazy.request()
    assert change is not None and [number for number, _ in change.isr] == [1, 2]


def test_fetch_between_the_publication_of_an_append_and_its_note_claims_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The follower had everything when the append began, and not later."""
    world = World(monkeypatch)
    voucher = Vouching()
    assert world.state.fetched(2, 0, 0, world.clock.now, 1, voucher)
    began = world.clock.now = 1010.0
    world.end += 1  # published, but not recorded yet
    world.clock.now = 1015.0
    voucher.fetched_at = world.clock.now
    world.state.appended(10, began)
    assert world.state.followers[2].caught_up == began
    assert not world.state.fetched(2, 0, 0, 1016.0, 1, voucher), "it is behind: each of its fetches counts"


def test_session_that_ends_vouches_for_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    old, new = Vouching(), Vouching()
    assert world.state.fetched(2, 0, 0, 1000.0, 1, old)
    old.fetched_at = 1005.0
    world.state.release(2, old)
    old.fetched_at = 2000.0
    assert world.state.followers[2].caught_up == 1005.0
    assert world.state.fetched(2, 0, 0, 1006.0, 1, new)
    new.fetched_at = 1007.0
    world.state.release(2, old)  # the earlier session's late release
    assert world.state.followers[2].caught_up == 1007.0


def test_only_partitions_that_time_may_change_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for number in (2, 3):
        world.fetch(number)
    world.later(LAG)
    assert world.state.due == leading.NOT_DUE, "all replicas have all records"
    world.append(1)
    assert world.state.due == 1000.0 + LAG or world.state.due <= world.clock.now + LAG
    first = world.state.due
    world.append(1)
    assert world.state.due == first
    for number in (2, 3):
        world.fetch(number)
    world.later(LAG)
    assert world.state.due == leading.NOT_DUE
