"""What a look at the cluster says about a requested move, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage_node.model.ids import TopicPartition
from workflows.model.plans.running.following import MoveOutcome, MoveState, Seen, in_place, seen
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

TP = TopicPartition("orders", 0)
TO_DIRECTORY = PlannedMove(MoveKind.DIRECTORY, TP, 100, node=1, source="/a", target="/b")
TO_BROKER = PlannedMove(MoveKind.REPLICAS, TP, 100, before=(1, 2), after=(1, 3), directories={3: "/b"})


def view(
    replicas: tuple[int, ...] = (1, 2),
    *,
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
    held: dict[int, tuple[str, int]] | None = None,
    futures: dict[int, tuple[str, int]] | None = None,
    silent: tuple[int, ...] = (),
    topic: bool = True,
) -> ClusterView:
    state = PartitionState(replicas, replicas, replicas[0], adding, removing)
    held = {1: ("/a", 100), 2: ("/a", 100)} if held is None else held
    return ClusterView(
        "c",
        {node: NodeView(node, responds=node not in silent) for node in (1, 2, 3)},
        {Disk(node, path): DirectoryView(Disk(node, path)) for node in (1, 2, 3) for path in ("/a", "/b")},
        {TP: state} if topic else {},
        {(node, TP): PlacedReplica(*each) for node, each in held.items()},
        {(node, TP): PlacedReplica(*each) for node, each in (futures or {}).items()},
    )


@pytest.mark.parametrize(
    ("look", "state", "outcome", "copied"),
    [
        (view(), MoveState.NOT_REQUESTED, None, 0),
        (view(futures={1: ("/b", 40)}), MoveState.COPYING, None, 40),
        (view(futures={1: ("/b", 100)}), MoveState.PROMOTING, None, 100),
        (view(held={1: ("/b", 100)}), None, MoveOutcome.MOVED, 100),
        (view(held={1: ("/b", 100)}, futures={1: ("/c", 1)}), None, MoveOutcome.SUPERSEDED, 0),
        (view((2, 3)), None, MoveOutcome.SUPERSEDED, 0),
        (view(topic=False), None, MoveOutcome.TOPIC_DELETED, 0),
        (view(silent=(1,)), MoveState.UNKNOWN, None, 0),
    ],
)
def test_move_between_directories(
    look: ClusterView, state: MoveState | None, outcome: MoveOutcome | None, copied: int
) -> None:
    found = seen(TO_DIRECTORY, look)
    assert (found.outcome, found.copied) == (outcome, copied)
    assert state is None or found.state == state


def test_copy_out_of_a_disk_that_has_failed_ends_as_failed() -> None:
    """The broker goes on to report the copy, and no longer its source."""
    without = view(held={2: ("/a", 100)}, futures={1: ("/b", 40)})
    assert seen(TO_DIRECTORY, without).state == MoveState.COPYING, "it may be starting"
    offline = DirectoryView(Disk(1, "/a"), error="KAFKA_STORAGE_ERROR")
    found = seen(TO_DIRECTORY, replace(without, directories={**without.directories, offline.disk: offline}))
    assert (found.outcome, found.copied) == (MoveOutcome.FAILED, 40)
    assert found.why == (
        "log directory /a of broker 1, from which orders-0 was copied, is offline (KAFKA_STORAGE_ERROR)"
    )


@pytest.mark.parametrize(
    ("look", "state", "outcome", "copied"),
    [
        (view(), MoveState.NOT_REQUESTED, None, 0),
        (view((1, 3, 2), adding=(3,), removing=(2,)), MoveState.COPYING, None, 0),
        (
            view((1, 3, 2), adding=(3,), removing=(2,), held={1: ("/a", 100), 3: ("/b", 60)}),
            MoveState.COPYING,
            None,
            60,
        ),
        (view((1, 3, 2), held={1: ("/a", 100), 3: ("/b", 100)}), MoveState.PROMOTING, None, 100),
        (view((1, 3), held={1: ("/a", 100), 3: ("/b", 100)}), None, MoveOutcome.MOVED, 100),
        (view((1, 3), held={1: ("/a", 100), 3: ("/a", 100)}), MoveState.DIRECTING, None, 100),
        (view((1, 3), held={1: ("/a", 100), 3: ("/b", 100)}, futures={3: ("/a", 1)}), MoveState.DIRECTING, None, 100),
        (view((1, 2, 3), adding=(3,)), None, MoveOutcome.SUPERSEDED, 0),
        (view((3, 2)), None, MoveOutcome.SUPERSEDED, 0),
        (view((1, 3, 2), adding=(3,), removing=(2,), silent=(3,)), MoveState.UNKNOWN, None, 0),
    ],
)
def test_move_between_brokers(
    look: ClusterView, state: MoveState | None, outcome: MoveOutcome | None, copied: int
) -> None:
    found = seen(TO_BROKER, look)
    assert (found.outcome, found.copied) == (outcome, copied)
    assert state is None or found.state == state


def test_other_order_of_the_same_replicas_is_a_move() -> None:
    reorder = replace(TO_BROKER, after=(2, 1), directories={})
    assert seen(reorder, view()).state == MoveState.NOT_REQUESTED
    assert seen(reorder, view((2, 1))).outcome == MoveOutcome.MOVED


def test_removal_of_a_replica_is_not_requested_until_the_controller_has_it() -> None:
    remove = replace(TO_BROKER, after=(1,), directories={})
    assert seen(remove, view()).state == MoveState.NOT_REQUESTED
    assert seen(remove, view(removing=(2,))).state == MoveState.COPYING
    assert seen(remove, view((1,))).outcome == MoveOutcome.MOVED


def test_move_that_ended_before_its_request_was_in_place() -> None:
    assert in_place(Seen(MoveOutcome.MOVED)).outcome == MoveOutcome.IN_PLACE
    assert in_place(Seen(MoveOutcome.SUPERSEDED)).outcome == MoveOutcome.SUPERSEDED
    assert in_place(Seen()).outcome is None
