"""Why a move does not advance, by what the admin API shows of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from storage_node.model.ids import NO_LEADER, TopicPartition
from workflows.model.plans.running.following import Seen, seen
from workflows.model.plans.running.stalls import OUTPACED_AFTER, STALLED_AFTER, Evidence, Pace, StallReason, stall_of
from workflows.model.plans.values import (
    ClusterView,
    DirectoryView,
    Disk,
    MoveKind,
    NodeView,
    PartitionState,
    PlacedReplica,
    PlannedMove,
)
from workflows.model.throttles import LISTS, MOVE_RATE, RATES

T0, T1, T9 = (TopicPartition("t", number) for number in (0, 1, 9))
DISK = PlannedMove(MoveKind.DIRECTORY, T1, 100, node=1, source="/a", target="/b")
BROKERS = PlannedMove(MoveKind.REPLICAS, T1, 100, before=(1,), after=(2,), directories={2: "/b"})
NOW = 1_000_000.0
IDLE = Pace(40, 60, NOW - 300, NOW - 300)
LOSING = Pace(40, 60, NOW - 1, NOW - OUTPACED_AFTER)
LISTED = {"t": {LISTS[0]: ("1:1",), LISTS[1]: ("1:2",)}}


@dataclass(frozen=True)
class Scene:
    """A move under way whose bytes stand still, in a healthy cluster."""

    move: PlannedMove
    view: ClusterView

    def but(self, **changes: Any) -> Scene:
        return replace(self, view=replace(self.view, **changes))

    def stall(self, evidence: Evidence | None = None, pace: Pace = IDLE) -> Any:
        return stall_of(self.move, seen(self.move, self.view), self.view, pace, NOW, evidence or Evidence())


def cluster(**more: Any) -> ClusterView:
    directories = [Disk(node, path) for node in (1, 2, 3) for path in ("/a", "/b")]
    return ClusterView(
        "c",
        {node: NodeView(node) for node in (1, 2, 3)},
        {disk: DirectoryView(disk, 1_000, 500) for disk in directories},
        {T1: PartitionState((1,), (1,), 1)} | more.pop("partitions", {}),
        **more,
    )


MOVING = Scene(DISK, cluster(replicas={(1, T1): PlacedReplica("/a", 100)}, futures={(1, T1): PlacedReplica("/b", 40)}))
REASSIGNING = Scene(
    BROKERS,
    cluster(
        partitions={T1: PartitionState((2, 1), (1,), 1, adding=(2,), removing=(1,))},
        replicas={(1, T1): PlacedReplica("/a", 100), (2, T1): PlacedReplica("/b", 40)},
    ),
)
SILENT = {node: NodeView(node, responds=node != 1) for node in (1, 2, 3)}


def offline(node: int, path: str) -> dict[Disk, DirectoryView]:
    return {**MOVING.view.directories, Disk(node, path): DirectoryView(Disk(node, path), error="KAFKA_STORAGE_ERROR")}


def partition(**changes: Any) -> dict[TopicPartition, PartitionState]:
    return {T1: replace(REASSIGNING.view.partitions[T1], **changes)}


WHOLE = {(1, T1): PlacedReplica("/b", 100)}
RATES_2 = {1: {RATES[0]: 1_000}, 2: {RATES[1]: 2_000}}


@pytest.mark.parametrize(
    ("scene", "evidence", "reason", "says"),
    [
        (MOVING.but(nodes={**SILENT}), {}, "target_silent", "broker 1 does not respond; start it"),
        (MOVING.but(nodes={2: NodeView(2)}), {}, "target_silent", "broker 1 is not registered"),
        (MOVING.but(directories=offline(1, "/b")), {}, "directory_offline", "directory /b of broker 1 is offline"),
        (MOVING.but(directories=offline(1, "/a")), {}, "directory_offline", "directory /a of broker 1 is offline"),
        (MOVING.but(futures=WHOLE), {}, "promoting", "KAFKA-16297"),
        (MOVING, {"copies": {1: {T1: False, T9: True}}}, "queued", "broker 1 copies t-9 first, as one of 1 other"),
        (MOVING, {"copies": {1: {T1: None, T0: None}}}, "queued", "broker 1 copies t-0 first"),
        (MOVING, {"rates": {1: {MOVE_RATE: 1_000}}}, "throttled", "at 1000 bytes/s, one fetch takes 1049 s; raise"),
        (MOVING, {"rates": {1: {MOVE_RATE: 10_000_000}}}, "not_advancing", "KAFKA-9087"),
        (MOVING, {"copies": {1: {T1: False, T9: False}}}, "not_advancing", "it is cancelled and requested again"),
        (MOVING.but(directories=offline(1, "/c")), {}, "not_advancing", "1:/c is offline, so that the broker would"),
        (REASSIGNING.but(nodes={1: NodeView(1)}), {}, "target_silent", "broker 2 is not registered"),
        (REASSIGNING.but(directories=offline(2, "/b")), {}, "directory_offline", "directory /b of broker 2 is offline"),
        (REASSIGNING.but(partitions=partition(leader=NO_LEADER)), {}, "source_offline", "t-1 has no leader"),
        (REASSIGNING.but(nodes=SILENT), {}, "source_offline", "the leader of t-1: broker 1 does not respond"),
        (REASSIGNING, {"rates": RATES_2, "lists": LISTED}, "throttled", "broker 1 is throttled: at 1000 bytes/s"),
        (REASSIGNING, {"rates": {2: RATES_2[2]}, "lists": {"t": {LISTS[1]: ("*",)}}}, "throttled", "broker 2"),
        (REASSIGNING, {"rates": RATES_2}, "not_advancing", "broker 2 does not fetch t-1 from broker 1"),
        (REASSIGNING.but(partitions=partition(isr=(1, 2))), {}, "promoting", "has not completed the reassignment"),
    ],
)  # fmt: skip
def test_stalled_move_has_a_reason_and_a_step(scene: Scene, evidence: dict[str, Any], reason: str, says: str) -> None:
    found = scene.stall(Evidence(**evidence))
    assert found.reason == reason and says in found.sentence, found


@pytest.mark.parametrize(
    ("scene", "evidence", "step"),
    [
        (MOVING, {"rates": {1: {MOVE_RATE: 9_000_000}}}, "at the throttle of 9000000 bytes/s; raise"),
        (MOVING, {}, "lower the traffic of the topic"),
        (REASSIGNING, {"rates": {2: {RATES[1]: 9_000_000}}, "lists": LISTED}, "raise throttle_between_brokers"),
        (REASSIGNING, {"rates": {2: {RATES[1]: 9_000_000}}}, "lower the traffic of the topic"),
    ],
)
def test_copy_that_never_comes_closer_to_its_source_is_outpaced(
    scene: Scene, evidence: dict[str, Any], step: str
) -> None:
    found = scene.stall(Evidence(**evidence), LOSING)
    assert found.reason == StallReason.OUTPACED and step in found.sentence, found


def test_only_a_copy_that_the_broker_would_take_again_is_repeated() -> None:
    alone = Evidence(copies={1: {T1: False}})
    assert MOVING.stall(alone).repeats
    assert not MOVING.but(directories=offline(1, "/c")).stall(alone).repeats, "it would reject the request"
    assert not MOVING.but(futures=WHOLE).stall(alone).repeats, "the copy is complete"
    assert not MOVING.stall(Evidence(copies={1: {T9: True}})).repeats
    assert not REASSIGNING.stall(alone).repeats


@pytest.mark.parametrize(
    ("copies", "repeats"),
    [
        ({}, False),
        ({1: {T1: None, T9: None}}, False),
        ({1: {T1: False, T9: None}}, False),
        ({1: {T1: False, T9: False}}, True),
        ({1: {T1: None}}, True),
    ],
    ids=["the broker was not read", "was read once", "another copy has just begun", "no copy advances", "is alone"],
)
def test_copy_is_repeated_only_once_no_other_copy_is_known_to_advance(copies: dict[int, Any], repeats: bool) -> None:
    found = MOVING.stall(Evidence(copies=copies))
    assert (found.reason, found.repeats) == ("not_advancing", repeats)


def test_move_has_stalled_after_a_while_without_a_byte_or_without_fewer_left() -> None:
    pace = Pace.begin(Seen(copied=10, total=100), NOW)
    assert not pace.stalled(NOW + STALLED_AFTER - 1) and pace.stalled(NOW + STALLED_AFTER)
    grown = pace.then(Seen(copied=20, total=110), NOW + 100)
    assert not grown.stalled(NOW + STALLED_AFTER), "a byte"
    assert grown.then(Seen(copied=30, total=120), NOW + OUTPACED_AFTER).stalled(NOW + OUTPACED_AFTER), "none fewer left"
    closer = grown.then(Seen(copied=30, total=119), NOW + 200)
    assert not closer.then(Seen(copied=31, total=119), NOW + OUTPACED_AFTER).stalled(NOW + OUTPACED_AFTER)
    assert Pace.begin(Seen(copied=10, total=100), NOW, NOW - 500).stalled(NOW), "since an earlier step"
