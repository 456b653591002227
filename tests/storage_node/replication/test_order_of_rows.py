"""Rows of the metadata and confirmations of AlterPartition reach a replica in any order: the newest leader epoch and
partition epoch hold, and what is acknowledged to all is on every member of the newest ISR.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_node.directories.directory import LogDirectory
from storage_node.errors import RequestRefused
from storage_node.log.batches.batch import build_batch
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.model.commands import IsrChange
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import PartitionImage
from storage_node.partitions.partition import Partition
from storage_node.ports import ChangeResult
from storage_node.replication import leading
from storage_node.replication.leading import LeaderState
from tests.support.nodes.static_image import row

TP = TopicPartition("t", 0)
ID = "A" * 22
BROKERS = {1: 1, 2: 1, 3: 1}
LAG = 10.0


@dataclass
class Host:
    lag: float = LAG
    brokers: dict[int, int] = field(default_factory=lambda: dict(BROKERS))

    def wants_change(self, state: LeaderState) -> None:
        """Do nothing: the test sends the requests itself."""

    def watch(self, state: LeaderState, due: float) -> None:
        """Do nothing: time does not advance in these tests."""


class Clock:
    """Replaces `time` in the module under test."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class World:
    """Node 1 with its replica, followers 2 and 3, and the controller with its history of rows."""

    def __init__(self, root: Path, clock: Clock, *, isr: tuple[int, ...] = (1, 2, 3), least: int = 1) -> None:
        self.clock = clock
        self.history: list[PartitionImage] = [row(isr=isr)]
        self.ends = {2: 0, 3: 0}
        self.responses: list[tuple[LeaderState, IsrChange, ChangeResult]] = []
        self.acknowledged = 0
        log = Log.open(root / "t-0", TP, LogConfig(min_insync_replicas=least), directory=str(root))
        self.partition = Partition(TP, ID, log, LogDirectory(root, "A"), is_leader=False)
        self.partition.host = Host()
        self.known = (-1, -1)
        self.assign(0)

    @property
    def truth(self) -> PartitionImage:
        return self.history[-1]

    @property
    def epochs(self) -> tuple[int, int]:
        """Return the epochs of the replica's state."""
        state, known = self.partition.leading, self.partition.row
        assert known is not None
        if state is not None:
            return state.leader_epoch, state.partition_epoch
        return known.leader_epoch, known.partition_epoch

    def assign(self, index: int) -> None:
        given = self.history[index % len(self.history)]
        self.partition.assign(given, ID, 1, BROKERS)
        assert self.epochs >= (given.leader_epoch, given.partition_epoch)

    def append(self) -> None:
        try:
            appended, state = self.partition.append_for_all(build_batch([b"x"]))
        except RequestRefused:
            return
        assert state is not None
        offset = appended.last_offset + 1
        state.when_replicated(offset, lambda code: self._acknowledged(offset, code))

    def _acknowledged(self, offset: int, code: ErrorCode) -> None:
        if code == ErrorCode.NONE:
            self.acknowledged = max(self.acknowledged, offset)

    def fetch(self, number: int, count: int = 1 << 30) -> None:
        """Fetch as a follower, which follows only the controller's leader and epoch."""
        state = self.partition.leading
        if state is None or (self.truth.leader, self.truth.leader_epoch) != (1, state.leader_epoch):
            return
        self.ends[number] = min(self.partition.log.log_end_offset, self.ends[number] + count)
        state.fetched(number, self.ends[number], 0, self.clock.now, 1)

    def request(self) -> None:
        """Send a change, which the controller applies at once; its response may come later or never."""
        state = self.partition.leading
        change = state.change(self.clock.now) if state is not None else None
        if state is None or change is None:
            return
        members, truth = tuple(number for number, _ in change.isr), self.truth
        result = ChangeResult(value=truth.partition_epoch)
        if (change.leader_epoch, 1) != (truth.leader_epoch, truth.leader):
            result = ChangeResult(error=int(ErrorCode.FENCED_LEADER_EPOCH))
        elif set(members) == set(truth.isr):
            pass
        elif change.partition_epoch != truth.partition_epoch:
            result = ChangeResult(error=int(ErrorCode.INVALID_UPDATE_VERSION))
        else:
            self._change(isr=members)
            result = ChangeResult(value=self.truth.partition_epoch)
        self.responses.append((state, change, result))

    def respond(self, index: int) -> None:
        if self.responses:
            state, change, result = self.responses.pop(index % len(self.responses))
            fits = (state.leader_epoch, state.partition_epoch) == (change.leader_epoch, change.partition_epoch)
            state.answered(change, result)
            if fits and not result.error and self.partition.leading is state:
                assert self.epochs >= (change.leader_epoch, result.value)

    def take_out(self, number: int) -> None:
        if number in self.truth.isr and number != self.truth.leader:
            self._change(isr=tuple(each for each in self.truth.isr if each != number))

    def elect(self, number: int) -> None:
        if number in self.truth.isr and number != self.truth.leader:
            self._change(leader=number, leader_epoch=self.truth.leader_epoch + 1)

    def _change(self, **values: object) -> None:
        epoch = self.truth.partition_epoch + 1
        self.history.append(replace(self.truth, partition_epoch=epoch, **values))  # type: ignore[arg-type]

    def check(self) -> None:
        assert self.epochs >= self.known, "an older row took the place of a newer one"
        self.known = self.epochs
        there = next(each for each in self.history if (each.leader_epoch, each.partition_epoch) == self.known)
        assert self.partition.leader == there.leader and self.partition.is_leader == (there.leader == 1)
        if (state := self.partition.leading) is not None:
            assert set(state.isr) == set(there.isr)
        for number in self.truth.isr:
            assert number == 1 or self.ends[number] >= self.acknowledged, (number, self.ends, self.truth.isr)


@contextmanager
def world(isr: tuple[int, ...] = (1, 2, 3), least: int = 1) -> Iterator[World]:
    root = Path(tempfile.mkdtemp(prefix="order-of-rows-"))
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(leading, "time", clock)
        made = World(root, clock, isr=isr, least=least)
        try:
            yield made
        finally:
            made.partition.log.close()
            made.partition.directory.pool.shutdown()
            shutil.rmtree(root)


ANY = st.integers(0, 20)
STEPS = st.one_of(
    st.tuples(st.just("append")),
    st.tuples(st.just("fetch"), st.sampled_from([2, 3]), st.sampled_from([0, 1, 1 << 30])),
    st.tuples(st.just("later"), st.sampled_from([1, 6, 11])),
    st.tuples(st.just("request")),
    st.tuples(st.just("respond"), ANY),
    st.tuples(st.just("assign"), ANY),
    st.tuples(st.just("take_out"), st.sampled_from([2, 3])),
    st.tuples(st.just("elect"), st.sampled_from([1, 2, 3])),
)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=60), st.sampled_from([1, 2]), st.sampled_from([(1,), (1, 2), (1, 2, 3)]))
@example(
    [
        ("append",), ("fetch", 2, 9), ("request",), ("respond", 0), ("fetch", 3, 9), ("request",), ("respond", 0),
        ("assign", 1), ("append",), ("fetch", 2, 9),
    ],
    1,
    (1,),
)  # fmt: skip
def test_rows_and_confirmations_in_any_order_keep_the_newest(
    steps: list[tuple[str, ...]], least: int, isr: tuple[int, ...]
) -> None:
    with world(isr, least) as made:
        for name, *values in steps:
            if name == "later":
                made.clock.now += int(values[0])
                if (state := made.partition.leading) is not None:
                    state.look(made.clock.now)
            else:
                getattr(made, name)(*values)
            made.check()


def _take_both_in(made: World) -> LeaderState:
    """Return the leader's state after the controller has confirmed the ISR 1, 2 and then all, without an image."""
    made.append()
    for number in (2, 3):
        made.fetch(number)
        made.request()
        made.respond(0)
    state = made.partition.leading
    assert state is not None and set(state.isr) == {1, 2, 3} and made.epochs == (1, 2)
    return state


def test_image_older_than_a_confirmation_leaves_the_confirmed_member_in_the_isr() -> None:
    with world((1,), 1) as made:
        state = _take_both_in(made)
        made.assign(1)
        assert set(state.isr) == {1, 2, 3} and made.epochs == (1, 2)
        made.append()
        made.fetch(2)
        assert state.high_watermark == 1 and made.acknowledged == 1
        made.fetch(3)
        assert state.high_watermark == 2 and made.acknowledged == 2


def test_confirmation_during_the_assignment_of_an_older_row_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread applies the controller's response between the comparison of the epochs and the assignment."""
    with world((1,), 2) as made:
        made.append()
        made.fetch(2)
        made.request()
        made.respond(0)
        made.fetch(3)
        made.request()
        update = LeaderState.update

        def answered_first(state: LeaderState, *given: Any, **more: Any) -> Any:
            made.respond(0)
            return update(state, *given, **more)

        monkeypatch.setattr(LeaderState, "update", answered_first)
        made.assign(1)
        state = made.partition.leading
        assert state is not None and set(state.isr) == {1, 2, 3} and made.epochs == (1, 2)
        assert made.partition.row is not None and made.partition.row.partition_epoch == 0


def test_row_that_ends_the_leadership_counts_only_when_newer_than_the_confirmation() -> None:
    with world((1,), 1) as made:
        _take_both_in(made)
        older = replace(made.history[1], leader=-1)
        made.partition.assign(older, ID, 1, BROKERS)
        assert made.partition.is_leader and made.epochs == (1, 2)
        made.elect(2)
        made.assign(len(made.history) - 1)
        assert not made.partition.is_leader and made.partition.leader == 2


def test_response_for_a_leadership_that_another_row_ended_changes_nothing() -> None:
    with world((1,), 1) as made:
        state = made.partition.leading
        assert state is not None
        made.append()
        made.fetch(2)
        made.request()
        ended = replace(made.history[0], leader=2, leader_epoch=2, partition_epoch=4)
        assert state.update(ended, leads=False)
        made.responses[0][0].answered(made.responses[0][1], made.responses[0][2])
        assert state.isr == (1,) and state.partition_epoch == 0


def test_rebuilt_metadata_overrides_what_the_former_controller_confirmed() -> None:
    """A generation rebuilt from images lacks confirmations that no image had."""
    with world((1,), 1) as made:
        _take_both_in(made)
        rebuilt = replace(made.history[0], leader=-1, partition_epoch=1)
        made.partition.assign(rebuilt, ID, 1, BROKERS)
        assert made.partition.is_leader
        made.partition.assign(rebuilt, ID, 1, BROKERS, cluster_generation=1)
        assert not made.partition.is_leader and made.partition.leader == -1
