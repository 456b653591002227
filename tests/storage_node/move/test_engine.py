"""A move as its users see it: made, copied, swapped, cancelled, paused, stopped, given another target, claimed."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories.atomic import NoRoom, rename_new
from storage_node.directories.directory import Usage
from storage_node.errors import (
    InvalidTopic,
    LogDirectoryOffline,
    LogDirNotFound,
    MovesStopped,
    NotEnoughSpace,
    ReplicaBusy,
    RequestRefused,
    StaleClaim,
    Superseded,
    UnknownTopicOrPartition,
)
from storage_node.log.config import LogConfig
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState
from storage_node.move import creator, swap
from storage_node.move.moving import Move
from storage_node.move.throttle import MIN_CHUNK
from storage_node.replicas import marker as markers
from storage_node.replicas.marker import Marker, State
from tests.storage_node.move.harness import TP, Make, SmallNode, appending, batch, eventually, plain, values


def restarted(node: SmallNode, make: Make, **options: object) -> SmallNode:
    node.close()
    return make(names=node.names, **options)


@pytest.mark.conformance(39)
@pytest.mark.feature("113-01", "113-02", "113-12", "113-13", "113-15", "113-16", "113-18")
def test_move_under_load_loses_nothing_and_keeps_every_offset(make: Make) -> None:
    node = make(config=LogConfig(segment_bytes=256 << 10, file_delete_delay_ms=300))
    partition = node.add()
    node.fill(1000)
    acked: dict[int, bytes] = {}
    with appending(partition, acked.__setitem__, pause=0.0):
        node.move("b")
        eventually(lambda: len(acked) > 50)
    data = values(partition.log)
    assert len(data) == partition.log.log_end_offset
    assert all(value in data[offset] for offset, value in acked.items())
    assert partition.directory is node.dir("b") and partition.future is None
    assert node.listing()["b"] == ["t-0"] and node.engine.statuses() == []
    eventually(lambda: node.listing()["a"] == [])
    assert node.engine.delete_now_if_due(TP) == 0.0
    # A swap that the source ran away from has written the target's once more.
    *before, source, target = node.checkpoints
    assert set(before) == {("b", True)} and {source, target} == {("a", False), ("b", False)}


@pytest.mark.feature("113-14", "113-15")
def test_swap_renames_the_source_to_delete_before_the_copy_to_the_replica(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make(config=LogConfig(segment_bytes=256 << 10, file_delete_delay_ms=60_000))
    partition = node.add()
    node.fill(100)
    seen: list[tuple[str, str, list[str], list[str], bool]] = []

    def noted(before: Path, after: Path) -> None:
        there = node.listing()
        seen.append((before.name, plain(after.name), there["a"], there["b"], partition.directory is node.dir("a")))
        rename_new(before, after)
        assert after.is_dir() and not before.exists()

    monkeypatch.setattr(swap, "rename_new", noted)
    node.move("b")
    assert seen == [
        ("t-0", "t-0.delete", ["t-0"], ["t-0.move"], True),
        ("t-0.move", "t-0", ["t-0.delete"], ["t-0.move"], True),
    ]
    assert node.listing() == {"a": ["t-0.delete"], "b": ["t-0"]} and partition.directory is node.dir("b")


@pytest.mark.feature("113-02", "113-04", "113-33", "113-34")
def test_copy_is_on_disk_and_visible_before_anything_is_copied(make: Make) -> None:
    node = make()
    partition = node.add()
    node.fill(10)
    status = node.engine.create(TP, node.path("b"), owner="run", run_id="r1")
    assert node.listing() == {"a": ["t-0"], "b": ["t-0.move"]}
    assert (status.state, status.claim, status.generation, status.lag) == (MoveState.QUEUED, 1, 1, 10)
    assert (status.source, status.directory) == (node.path("a"), node.path("b"))
    assert partition.future is not None
    marker = markers.read(node.dir("b").path / "t-0.move")
    assert marker is not None
    assert (marker.state, marker.owner, marker.run_id, marker.source_id, marker.target_id) == (
        State.COPYING, "run", "r1", "id-a", "id-b",
    )  # fmt: skip
    assert node.engine.statuses()[0].as_dict()["topic"] == "t"


def test_every_step_can_be_requested_again(make: Make) -> None:
    node = make()
    node.add()
    node.fill(100)
    first = node.engine.create(TP, node.path("b"), owner="run")
    second = node.engine.create(TP, node.path("b"), owner="run")
    assert (second.claim, second.generation, second.state) == (first.claim, first.generation, MoveState.QUEUED)
    node.finish(first.claim)
    assert node.engine.swap(TP, first.claim, first.generation).outcome == "swapped"
    again = node.engine.create(TP, node.path("b"), owner="run")
    assert (again.state, again.claim, again.generation) == (MoveState.IN_PLACE, first.claim, 1)
    assert node.engine.wait(TP, first.claim, 1).state is MoveState.IN_PLACE
    assert 0 < node.engine.delete_now_if_due(TP, 1) <= 60
    cancelled = node.engine.cancel(TP, first.claim)
    assert cancelled is None or cancelled.state is MoveState.IN_PLACE
    assert node.listing()["b"] == ["t-0"]


def test_facts(make: Make) -> None:
    node = make(rate=4_000_000)
    node.add()
    node.fill(1000)
    began = time.monotonic()
    status = node.engine.create(TP, node.path("b"))
    node.finish(status.claim)
    took = time.monotonic() - began
    status = node.engine.wait(TP, status.claim, 1)
    assert status.bytes_total == status.bytes_copied == node.partitions[TP].log.size
    # A busy machine may take most of the time that the limit would.
    assert status.seconds_throttled + status.seconds_copying > 0.2
    assert status.seconds_throttled > 0 and status.seconds_copying > 0 and status.seconds_locked > 0
    assert status.seconds_throttled + status.seconds_copying + status.seconds_locked < took
    assert status.attempt == 1 and status.bytes_resumed == 0


# Claims


def test_second_run_is_refused_by_the_name_of_the_first(make: Make) -> None:
    node = make(names="abc")
    node.add()
    node.engine.create(TP, node.path("b"), owner="first")
    for target in ("b", "c"):
        with pytest.raises(ReplicaBusy, match="first") as refused:
            node.engine.create(TP, node.path(target), owner="second")
        assert refused.value.owner == "first"


def test_claims_never_go_back(make: Make) -> None:
    node = make()
    node.add()
    seen = [node.engine.next_claim(TP), node.engine.next_claim(TP)]
    node = restarted(node, make)
    seen.append(node.engine.next_claim(TP))
    node.move("b")
    seen.append(node.engine.create(TP, node.path("a")).claim)
    node = restarted(node, make)
    node.engine.cancel(TP)
    seen.append(node.engine.next_claim(TP))
    node = restarted(node, make)
    seen.append(node.engine.next_claim(TP))
    assert seen == sorted(set(seen))


def test_older_claim_can_do_nothing(make: Make) -> None:
    node = make(rate=100_000)
    node.add()
    node.fill(500)
    old = node.engine.create(TP, node.path("b"), owner="old")
    node.engine.start_copy(TP, old.claim)
    new = node.engine.next_claim(TP)
    stopped = node.engine.wait(TP, old.claim, 10)
    assert (stopped.state, stopped.error) == (MoveState.FAILED, "StaleClaim")
    for call in (
        lambda: node.engine.start_copy(TP, old.claim),
        lambda: node.engine.swap(TP, old.claim),
        lambda: node.engine.create(TP, node.path("b"), claim=old.claim),
        lambda: node.engine.cancel(TP, 99),
    ):
        with pytest.raises(StaleClaim):
            call()
    node.engine.set_node_rate(None)
    adopted = node.engine.create(TP, node.path("b"), claim=new, owner="new")
    assert (adopted.claim, adopted.owner) == (new, "new")
    node.finish(new)
    assert node.listing()["b"] == ["t-0"]


@pytest.mark.parametrize("moment", ["before it is taken over", "while it is taken over", "after it was taken over"])
def test_copier_with_a_stale_claim_does_not_fail_the_newer_move(
    moment: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make()
    node.add()
    node.fill(300)
    old = node.engine.create(TP, node.path("b"), owner="old")
    copier, write = node.engine._movers._copier, creator.markers.write
    check = copier._check_claim
    found, go_on, written = threading.Event(), threading.Event(), threading.Event()

    def late(move: Move) -> None:
        """The copier finds a newer claim, and is held up before it can say so."""
        try:
            check(move)
        except StaleClaim:
            found.set()
            assert go_on.wait(30)
            raise

    def slowly(path: Path, wanted: Marker, *, name: bool = True) -> None:
        if wanted.state is State.COPYING and moment == "while it is taken over":
            go_on.set()
            eventually(lambda: node.engine.statuses()[0].state is MoveState.FAILED)
        write(path, wanted, name=name)
        written.set()

    new = node.engine.next_claim(TP)
    with monkeypatch.context() as patch:
        patch.setattr(copier, "_check_claim", late)
        patch.setattr(creator.markers, "write", slowly)
        move = node.engine._registry.get(TP)
        assert move is not None
        node.engine._movers.queue(move)
        assert found.wait(30)
        if moment == "before it is taken over":
            go_on.set()
            eventually(lambda: node.engine.statuses()[0].state is MoveState.FAILED)
        adopted = node.engine.create(TP, node.path("b"), claim=new, owner="new")
        go_on.set()
    assert (old.claim, adopted.claim, adopted.owner) == (1, new, "new") and written.is_set()
    node.finish(new)
    assert node.listing()["b"] == ["t-0"]


@pytest.mark.feature("113-08")
def test_new_target_cancels_the_old_copy(make: Make) -> None:
    node = make(names="abc")
    node.add()
    node.fill(100)
    first = node.engine.create(TP, node.path("b"), owner="run")
    second = node.engine.create(TP, node.path("c"), owner="run")
    assert second.claim > first.claim and second.directory == node.path("c")
    assert "t-0.move" not in node.listing()["b"]
    node.finish(second.claim)
    assert (node.listing()["c"], node.listing()["b"]) == (["t-0"], [])


def test_move_is_refused_while_a_higher_generation_is_on_disk(make: Make) -> None:
    node = make()
    partition = node.add()
    node.move("b")
    with pytest.raises(Superseded):
        node.engine.create(TP, node.path("a"), generation=1)
    assert node.listing()["a"] == ["t-0.delete"]
    status = node.engine.create(TP, node.path("a"), generation=7)
    node.finish(status.claim)
    assert partition.generation == 7
    with pytest.raises(Superseded):
        node.engine.swap(TP, status.claim, 5)


# Cancel, pause, stop


@pytest.mark.feature("113-05", "113-08")
@pytest.mark.parametrize("moment", ["queued", "copying", "caught up"])
def test_cancel(moment: str, make: Make) -> None:
    node = make(rate=None if moment == "caught up" else 200_000)
    partition = node.add()
    node.fill(500)
    status = node.engine.create(TP, node.path("b"))
    if moment != "queued":
        node.engine.start_copy(TP, status.claim)
        if moment == "copying":
            eventually(lambda: node.engine.statuses()[0].bytes_copied > 0)
        else:
            node.engine.wait(TP, status.claim, 10)
    cancelled = node.engine.cancel(TP, status.claim, "not wanted any more")
    assert cancelled is not None
    assert (cancelled.state, cancelled.message) == (MoveState.CANCELLED, "not wanted any more")
    assert node.engine.statuses() == [] and partition.future is None
    assert "t-0.move" not in node.listing()["b"]
    eventually(lambda: node.listing() == {"a": ["t-0"], "b": []})
    assert partition.append(batch(b"x")).base_offset == 500
    assert node.engine.cancel(TP, status.claim) == cancelled
    node.engine.set_node_rate(None)
    node.move("b")


def test_claim_after_another_is_issued_only_while_that_ones_move_is_under_way(make: Make) -> None:
    node = make()
    node.add()
    node.fill(10)
    claim = node.engine.create(TP, node.path("b")).claim
    assert node.engine.claim_orphan(TP, claim + 1) == 0
    after = node.engine.claim_orphan(TP, claim)
    assert after > claim
    node.engine.create(TP, node.path("b"), claim=after)
    assert node.engine.claim_orphan(TP, claim) == 0
    node.engine.cancel(TP, after)
    assert node.engine.claim_orphan(TP, after) == 0


def test_cancel_without_a_move(make: Make) -> None:
    node = make()
    node.add()
    assert node.engine.cancel(TP) is None


def test_cancel_comes_before_a_swap_that_is_waiting(make: Make) -> None:
    node = make()
    node.add()
    node.fill(100)
    status = node.engine.create(TP, node.path("b"))
    node.engine.start_copy(TP, status.claim)
    node.engine.wait(TP, status.claim, 10)
    # The cancel has said so and waits for the partition's guard, which the swap is about to take.
    node.engine._registry.all()[0].stop = "cancelled"
    assert node.engine.swap(TP, status.claim).outcome == "behind"
    node.engine.cancel(TP, status.claim)
    eventually(lambda: node.listing() == {"a": ["t-0"], "b": []})


def test_pause_and_resume(make: Make) -> None:
    node = make(rate=500_000)
    node.add()
    node.fill(1000)
    status = node.engine.create(TP, node.path("b"))
    node.engine.start_copy(TP, status.claim)
    eventually(lambda: node.engine.statuses()[0].bytes_copied > 0)
    paused = node.engine.pause_copy(TP, status.claim)
    assert paused.state is MoveState.STOPPED
    copied = node.engine.statuses()[0].bytes_copied
    node.engine.set_node_rate(None)
    assert node.engine.statuses()[0].bytes_copied == copied and "t-0.move" in node.listing()["b"]
    node.finish(status.claim)
    assert node.engine.status(TP).attempt == 2  # type: ignore[union-attr]


def test_stop_and_resume_over_a_restart(make: Make) -> None:
    node = make(rate=500_000)
    node.add()
    node.fill(1000)
    status = node.engine.create(TP, node.path("b"), owner="run")
    node.engine.start_copy(TP, status.claim)
    eventually(lambda: node.engine.statuses()[0].bytes_copied > 0)
    node.engine.stop_moves()
    stopped = node.engine.wait(TP, status.claim, 30)
    assert (stopped.state, stopped.error) == (MoveState.STOPPED, "MovesStopped")
    node = restarted(node, make)
    assert node.engine.moves_stopped
    assert node.engine.status(TP).state is MoveState.STOPPED  # type: ignore[union-attr]
    for call in (
        lambda: node.engine.start_copy(TP, status.claim),
        lambda: node.engine.swap(TP, status.claim),
        lambda: node.engine.create(TopicPartition("u", 0), node.path("b")),
    ):
        node.add(TopicPartition("u", 0)) if TopicPartition("u", 0) not in node.partitions else None
        with pytest.raises(MovesStopped):
            call()
    node.engine.resume_moves()
    assert node.engine.wait(TP, status.claim, 10).state is MoveState.CAUGHT_UP
    node.finish(status.claim)
    node = restarted(node, make)
    assert not node.engine.moves_stopped


def test_throttles_of_run_and_node(make: Make) -> None:
    node = make(rate=50_000)
    node.add()
    node.fill(1000)
    status = node.engine.create(TP, node.path("b"), throttle=10_000_000)
    node.engine.start_copy(TP, status.claim, 10_000_000)
    eventually(lambda: node.engine.statuses()[0].state is MoveState.THROTTLED)
    node.engine.set_throttle(TP, status.claim, 50_000)
    node.engine.set_node_rate(None)
    assert node.engine.wait(TP, status.claim, 0.3).state in (MoveState.THROTTLED, MoveState.COPYING)
    node.engine.set_throttle(TP, status.claim, None)
    assert node.engine.wait(TP, status.claim, 10).state is MoveState.CAUGHT_UP


@pytest.mark.feature("113-09", "113-38")
def test_what_has_no_mover_waits(make: Make) -> None:
    node = make(slots=1, rate=1)
    claims = {}
    for number in range(3):
        tp = TopicPartition("t", number)
        node.add(tp)
        node.fill(100, tp=tp)
        claims[tp] = node.engine.create(tp, node.path("b")).claim
        node.engine.start_copy(tp, claims[tp])
    eventually(lambda: [s.state for s in node.engine.statuses()].count(MoveState.QUEUED) == 2)
    node.engine.set_node_rate(None)
    for tp, claim in claims.items():
        assert node.engine.wait(tp, claim, 10).state is MoveState.CAUGHT_UP


@pytest.mark.feature("113-10", "113-37")
def test_movers_that_copy_at_the_same_time_stay_below_the_nodes_rate_together(make: Make) -> None:
    rate, movers, size = 400_000, 3, 400_000
    node = make(slots=movers, rate=rate)
    claims = {}
    for number in range(movers):
        tp = TopicPartition("t", number)
        node.add(tp)
        node.fill(size // 1000, tp=tp)
        claims[tp] = node.engine.create(tp, node.path("b")).claim
    allowed = movers * MIN_CHUNK  # which each may have taken without a wait
    together, throttled = 0, set()
    began = time.monotonic()
    for tp, claim in claims.items():
        node.engine.start_copy(tp, claim)

    def copied() -> int:
        nonlocal together
        found = node.engine.statuses()
        together = max(together, sum(0 < s.bytes_copied < s.bytes_total for s in found))
        throttled.update(s.tp for s in found if s.state is MoveState.THROTTLED)
        return sum(s.bytes_copied for s in found)

    while (count := copied()) < 2 * size:
        assert count <= 1.05 * rate * (time.monotonic() - began) + allowed
        time.sleep(0.01)
    assert together == movers and throttled == set(claims), "all of them copy, and sleep when over"
    node.engine.set_node_rate(None)
    for tp, claim in claims.items():
        assert node.engine.wait(tp, claim, 10).state is MoveState.CAUGHT_UP


# Restart


@pytest.mark.conformance(53)
@pytest.mark.feature("113-21")
def test_restart_resumes_from_what_is_valid_on_disk(make: Make) -> None:
    node = make(rate=2_000_000)
    node.add()
    node.fill(2000)
    status = node.engine.create(TP, node.path("b"), owner="run")
    node.engine.start_copy(TP, status.claim)
    eventually(lambda: node.engine.statuses()[0].bytes_copied > 500_000)
    node.close()
    log = max((node.dir("b").path / "t-0.move").glob("*.log"))
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 10)  # a torn batch
    node = make()
    caught = node.engine.wait(TP, status.claim, 10)
    assert caught.state is MoveState.CAUGHT_UP and caught.bytes_resumed > 400_000
    assert (caught.owner, caught.claim) == ("run", status.claim)
    node.finish(status.claim)
    assert len(values(node.partitions[TP].log)) == 2000


@pytest.mark.feature("113-21")
def test_copy_made_by_hand_is_gone_on_with(make: Make, tmp_path: Path) -> None:
    node = make()
    node.add()
    node.fill(50)
    node.close()
    (tmp_path / "b" / "t-0.move").mkdir()
    node = make()
    eventually(lambda: node.engine.statuses()[0].state is MoveState.CAUGHT_UP)
    claim = node.engine.create(TP, node.path("b"), owner="new").claim
    node.finish(claim)
    assert len(values(node.partitions[TP].log)) == 50


# Refusals


@pytest.mark.feature("113-08")
def test_what_cannot_be_moved(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make()
    node.add()
    node.fill(100)
    long = TopicPartition("t" * 249, 0)
    node.add(long)
    with pytest.raises(LogDirNotFound):
        node.engine.create(TP, "/nowhere")
    with pytest.raises(UnknownTopicOrPartition):
        node.engine.create(TopicPartition("u", 0), node.path("b"))
    with pytest.raises(InvalidTopic):
        node.engine.create(long, node.path("b"))
    monkeypatch.setattr(type(node.dirs[1]), "usage", lambda self: Usage(100, 10))
    with pytest.raises(NotEnoughSpace, match="10 bytes left"):
        node.engine.create(TP, node.path("b"))
    assert node.listing()["b"] == []


def fill_up(node: SmallNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.dir("c"), "usage", lambda: Usage(1 << 20, 100))
    monkeypatch.setattr(node.dir("c"), "shares_disk_with", lambda other: False)


#: What makes the directory `c` an invalid target, the error, and the move's request then: directory and generation.
REFUSALS: dict[str, tuple[Callable[[SmallNode, pytest.MonkeyPatch], object], type[Exception], str, int]] = {
    "full": (fill_up, NotEnoughSpace, "c", 2),
    "unknown": (lambda node, _: None, LogDirNotFound, "nowhere", 2),
    "offline": (lambda node, _: node.dir("c").fail("pulled out"), LogDirectoryOffline, "c", 2),
    "taken": (lambda node, _: (node.dir("c").path / "t-0").mkdir(), RequestRefused, "c", 2),
    "stopped": (lambda node, _: node.engine.stop_moves(), MovesStopped, "c", 2),
    "overtaken": (lambda node, _: setattr(node.partitions[TP], "generation", 2), Superseded, "c", 2),
}


@pytest.mark.parametrize("trouble", REFUSALS)
def test_new_target_that_is_refused_leaves_the_copy_to_the_old_one(
    make: Make, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    arrange, error, name, generation = REFUSALS[trouble]
    node = make(names=("a", "b", "c"))
    node.add()
    node.fill(300)
    claim = node.engine.create(TP, node.path("b"), owner="run", run_id="r").claim
    node.engine.start_copy(TP, claim)
    assert node.engine.wait(TP, claim, 20).state is MoveState.CAUGHT_UP
    arrange(node, monkeypatch)
    before, path = node.listing(), str(node.dir("c").path.parent / name)
    with pytest.raises(error):
        node.engine.create(TP, path, claim=claim, generation=generation, owner="run", run_id="r")
    if trouble != "overtaken":
        with pytest.raises(error):
            node.engine.admit(TP, path)
    assert node.listing() == before
    (status,) = node.engine.statuses()
    assert (status.claim, status.directory, status.owner) == (claim, node.path("b"), "run")
    node.partitions[TP].generation = 0
    if trouble == "stopped":
        node.engine.resume_moves()
    node.finish(claim)
    assert node.partitions[TP].directory is node.dir("b")


def room_for_one(node: SmallNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave room for one of the replicas in `c`, which is a disk of its own."""
    size = max(partition.log.size for partition in node.partitions.values())
    usable = size + size // 100 + (1 << 20) + size // 2
    monkeypatch.setattr(node.dir("c"), "usage", lambda: Usage(1 << 40, usable))
    monkeypatch.setattr(node.dir("c"), "shares_disk_with", lambda other: False)


def test_room_that_is_reserved_for_one_move_is_not_given_to_another(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make(names=("a", "b", "c"))
    tps = [TopicPartition("t", number) for number in range(3)]
    for tp in tps:
        node.add(tp)
        node.fill(50, tp=tp)
        node.engine.create(tp, node.path("b"), owner="run", run_id=str(tp))
    room_for_one(node, monkeypatch)
    room = node.engine.admit(tps[0], node.path("c"))
    for tp in tps[1:]:
        with pytest.raises(NotEnoughSpace):
            node.engine.admit(tp, node.path("c"))
        with pytest.raises(NotEnoughSpace):
            node.engine.create(tp, node.path("c"), owner="run", run_id=str(tp))
    assert {status.directory for status in node.engine.statuses()} == {node.path("b")}
    room.release()
    room = node.engine.admit(tps[1], node.path("c"))
    node.engine.create(tps[1], node.path("c"), owner="run", run_id=str(tps[1]), room=room)
    room.release()  # once more: from now on the move itself speaks for its bytes, and only once
    with pytest.raises(NotEnoughSpace):
        node.engine.admit(tps[2], node.path("c"))
    node.engine.cancel(tps[1])
    node.engine.admit(tps[2], node.path("c")).release()


@pytest.mark.parametrize("retargeted", [True, False])
def test_room_is_reserved_while_the_copy_is_being_made(
    make: Make, monkeypatch: pytest.MonkeyPatch, retargeted: bool
) -> None:
    node = make(names=("a", "b", "c"))
    other = TopicPartition("t", 1)
    for tp in (TP, other):
        node.add(tp)
        node.fill(50, tp=tp)
        if retargeted:
            node.engine.create(tp, node.path("b"), owner="run", run_id="r")
    room_for_one(node, monkeypatch)
    refused: list[Exception] = []
    asked: list[TopicPartition] = []

    def meanwhile() -> None:
        if asked:
            return
        asked.append(other)
        try:
            node.engine.create(other, node.path("c"), owner="run", run_id="r")
        except NotEnoughSpace as error:
            refused.append(error)
        raise NoRoom(errno.ENOSPC, "No space left on device")

    with failpoints.active({"create.after_mkdir": meanwhile}), pytest.raises(NotEnoughSpace):
        node.engine.create(TP, node.path("c"), owner="run", run_id="r")
    assert len(refused) == 1
    # What was not made holds no room.
    assert node.engine.create(other, node.path("c"), owner="run", run_id="r").directory == node.path("c")


def test_copy_makes_room_for_the_one_that_replaces_it_on_the_same_disk(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make(names=("a", "b", "c"))
    node.add()
    node.fill(3000)
    size = node.partitions[TP].log.size
    claim = node.engine.create(TP, node.path("b")).claim
    node.engine.start_copy(TP, claim)
    assert node.engine.wait(TP, claim, 20).state is MoveState.CAUGHT_UP
    monkeypatch.setattr(node.dir("c"), "usage", lambda: Usage(10 * size, size // 10 + (2 << 20)))
    monkeypatch.setattr(node.dir("c"), "shares_disk_with", lambda other: False)
    with pytest.raises(NotEnoughSpace):
        node.engine.create(TP, node.path("c"), claim=claim)
    monkeypatch.undo()
    monkeypatch.setattr(node.dir("c"), "usage", lambda: Usage(10 * size, size // 10 + (2 << 20)))
    assert node.dir("c").shares_disk_with(node.dir("b"))
    node.engine.create(TP, node.path("c"), claim=claim)
    node.finish(claim)
    assert node.partitions[TP].directory is node.dir("c")


@pytest.mark.conformance(65, 72)
def test_deleting_works_for_any_name_and_takes_the_copy_first(make: Make) -> None:
    node = make(config=LogConfig(file_delete_delay_ms=0))
    long = TopicPartition("t" * 249, 0)
    node.add(long)
    node.add()
    node.engine.create(TP, node.path("b"))
    for tp in (TP, long):
        node.engine.discard(tp)
        assert not any(str(tp) in names or f"{tp}.move" in names for names in node.listing().values())
        del node.partitions[tp]
    eventually(lambda: node.listing() == {"a": [], "b": []})


@pytest.mark.parametrize("moving", [False, True])
def test_no_move_of_a_replica_begins_once_it_is_being_deleted(make: Make, moving: bool) -> None:
    """A request that comes between the deletion of the log and the end of its service."""
    node = make(config=LogConfig(file_delete_delay_ms=0))
    partition = node.add()
    claim = node.engine.create(TP, node.path("b")).claim if moving else 0
    partition.delete()

    def refused() -> None:
        for request in (
            lambda: node.engine.create(TP, node.path("b"), claim=claim),
            lambda: node.engine.create(TP, node.path("b"), owner="run", run_id="r"),
            lambda: node.engine.admit(TP, node.path("b")),
        ):
            with pytest.raises(UnknownTopicOrPartition):
                request()

    refused()
    node.engine.discard(TP, partition=partition)
    refused()
    del node.partitions[TP]
    eventually(lambda: node.listing() == {"a": [], "b": []})


def test_cancel_never_waits_for_a_copier_that_waits_for_it(make: Make) -> None:
    node = make(rate=300_000)
    partition = node.add()
    node.fill(1000)
    status = node.engine.create(TP, node.path("b"))
    node.engine.start_copy(TP, status.claim)
    eventually(lambda: node.engine.statuses()[0].bytes_copied > 0)
    with node.engine._registry.guard(TP):  # as a cancel holds it
        partition.delete_records(900)
        partition.future.truncate_to(0)  # type: ignore[union-attr]
        assert node.engine.pause_copy(TP, status.claim).state is MoveState.STOPPED
