"""Who copies next."""

from __future__ import annotations

import threading

import pytest

from storage_node.model.ids import TopicPartition
from storage_node.move.scheduler import MoveScheduler, QueuedMove, choose
from storage_node.move.stall import queued_behind


def move(source: str, target: str, topic: str, partition: int = 0) -> QueuedMove:
    return QueuedMove(source, target, TopicPartition(topic, partition))


@pytest.mark.conformance(48)
@pytest.mark.feature("113-57")
def test_by_disks_then_topic_and_partition() -> None:
    moves = [
        move("b", "a", "a"),
        move("a", "c", "a"),
        move("a", "b", "z"),
        move("a", "b", "t", 10),
        move("a", "b", "t", 9),
    ]
    order = []
    waiting = list(moves)
    while (chosen := choose(waiting, [], 1)) is not None:
        order.append(chosen)
        waiting.remove(chosen)
    assert order == [moves[4], moves[3], moves[2], moves[1], moves[0]]


def test_movers_keep_off_each_others_disks() -> None:
    running = [move("a", "b", "t")]
    assert choose([move("a", "b", "u"), move("c", "d", "z")], running, 2) == move("c", "d", "z")
    assert choose([move("a", "b", "u"), move("a", "c", "z")], running, 2) == move("a", "c", "z")
    assert choose([move("a", "b", "u")], running, 2) == move("a", "b", "u")


@pytest.mark.conformance(48)
@pytest.mark.feature("113-09", "113-38")
def test_at_most_as_many_as_there_are_movers() -> None:
    assert choose([move("a", "b", "u")], [move("c", "d", "t")], 1) is None
    scheduler = MoveScheduler(1)
    first, second = move("a", "b", "t"), move("a", "b", "u")
    scheduler.add(first)
    scheduler.add(second)
    assert scheduler.take() == first
    taken: list[QueuedMove | None] = []
    thread = threading.Thread(target=lambda: taken.append(scheduler.take()))
    thread.start()
    assert scheduler.waiting() == [second]
    scheduler.done(first)
    thread.join(5)
    assert taken == [second]


def test_partition_is_not_copied_twice_at_once() -> None:
    scheduler = MoveScheduler(2)
    scheduler.add(move("a", "b", "t"))
    assert scheduler.take() == move("a", "b", "t")
    scheduler.add(move("a", "c", "t"))
    scheduler.add(move("a", "c", "u"))
    assert scheduler.take() == move("a", "c", "u")


def test_closing_lets_movers_go() -> None:
    scheduler = MoveScheduler(1)
    scheduler.add(move("a", "b", "t"))
    scheduler.close()
    assert scheduler.take() is None
    with pytest.raises(ValueError, match="mover"):
        MoveScheduler(0)


def test_each_of_many_queued_moves_learns_its_place() -> None:
    scheduler = MoveScheduler(1)
    for partition in range(201):
        scheduler.add(move("a", "b", "t", partition))
    assert scheduler.take() == move("a", "b", "t", 0)
    told = scheduler.ahead(move("a", "b", "t", 150))
    assert told.running == ((TopicPartition("t", 0), "a", "b"),)
    assert [tp.partition for tp in told.before] == [1, 2, 3] and told.more == 146
    assert "t-1, t-2, t-3 and 146 more" in queued_behind(told)
    scheduler.remove(move("a", "b", "t", 2))
    scheduler.add(move("a", "b", "s", 7))
    told = scheduler.ahead(move("a", "b", "t", 4))
    assert [str(tp) for tp in told.before] == ["s-7", "t-1", "t-3"] and told.more == 0
    assert scheduler.ahead(move("a", "b", "s", 7)).before == ()
    scheduler.done(move("a", "b", "t", 0))
    assert scheduler.ahead(move("a", "b", "s", 7)).running == ()
