"""Where a copy begins, what it takes of its source, what it finds after a while, and who holds whom up meanwhile."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories import partition_metadata
from storage_node.errors import StaleClaim
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState
from storage_node.move.copying import copier
from storage_node.move.future import FutureLog
from storage_node.move.moving import OpenMove
from storage_node.replicas.deletion import wall_clock_ms
from tests.storage_node.move.harness import (
    CONFIG,
    TOPIC_ID,
    TP,
    Make,
    SmallNode,
    appending,
    batch,
    eventually,
    values,
)
from tests.support.nodes.leading import lead

OTHER = TopicPartition("u", 0)
MOVING = (MoveState.COPYING, MoveState.THROTTLED)


def copied(node: SmallNode, **options: object) -> int:
    """Begin a move to `b` and copy all there is; answers the claim."""
    claim = node.engine.create(TP, node.path("b"), owner="run", **options).claim  # type: ignore[arg-type]
    node.engine.start_copy(TP, claim)
    assert node.engine.wait(TP, claim, 10).state is MoveState.CAUGHT_UP
    return claim


def copy_of(node: SmallNode) -> FutureLog:
    copy = node.partitions[TP].future
    assert isinstance(copy, FutureLog)
    return copy


# What it takes along


@pytest.mark.conformance(9, 61)
def test_source_that_lost_its_beginning_is_copied_from_where_it_begins(make: Make) -> None:
    node = make(config=LogConfig(segment_bytes=5_000, file_delete_delay_ms=200))
    partition = node.add()
    node.fill(60)
    partition.delete_records(30)
    assert partition.delete_old_segments(0) > 0
    first = partition.log.segments[0].base_offset
    assert 0 < first <= 30 and list(partition.log.path.glob("*.deleted")), "retention has marked what it took"
    node.move("b")
    log = partition.log
    assert (log.log_start_offset, log.log_end_offset) == (30, 60) and len(values(log)) == 30
    assert log.path.parent == node.dir("b").path
    assert min(int(path.stem) for path in log.path.glob("*.log")) == 30
    partition.tidy(10**15)
    assert not list(log.path.glob("*.deleted")), "what the source had so is not here, and nobody purges it here"
    eventually(lambda: node.listing() == {"a": [], "b": ["t-0"]})


@pytest.mark.conformance(15, 74)
@pytest.mark.parametrize("topic_id", [TOPIC_ID, ""])
def test_topic_id_goes_along(topic_id: str, make: Make) -> None:
    node = make()
    partition = node.add()
    partition.topic_id = topic_id
    node.fill(10)
    copied(node)
    there = node.dir("b").path

    def told(name: str) -> str | None:
        return partition_metadata.read(there / name, directory=str(there))

    assert told("t-0.move") == (topic_id or None)
    node.finish(1)
    assert told("t-0") == (topic_id or None)


@pytest.mark.conformance(16)
def test_copy_resumes_at_its_end_under_the_current_epoch(make: Make) -> None:
    node = make()
    partition = node.add()
    lead(partition, 3, True)
    node.fill(50)
    claim = copied(node)
    before = node.engine.statuses()[0].bytes_copied
    lead(partition, 7, True)
    node.fill(1)
    node.engine.start_copy(TP, claim)
    status = node.engine.wait(TP, claim, 10)
    one = len(values(partition.log)[-1])
    assert (status.state, status.bytes_copied - before, status.attempt) == (MoveState.CAUGHT_UP, one, 2)
    copy = partition.future
    assert isinstance(copy, FutureLog) and values(copy) == values(partition.log)
    assert copy.leader_epochs.entries == ((3, 0), (7, 50))


# What it finds after a while


@pytest.mark.conformance(43, 44)
@pytest.mark.parametrize("rewritten", [False, True], ids=["shorter", "written anew"])
def test_copy_that_has_more_than_its_source_is_cut(rewritten: bool, make: Make, tmp_path: Path) -> None:
    node = make()
    node.add()
    node.fill(50)
    copied(node)
    node.close()
    # The source was not flushed when the power went; the copy was.
    source = Log.open(tmp_path / "a" / "t-0", TP, CONFIG, directory=str(tmp_path / "a"))
    source.truncate_to(30)
    for number in range(40 if rewritten else 0):
        source.append_as_leader(batch(b"anew %d" % number), 1)
    kept = values(source)
    source.close()
    ends: list[int] = []
    with failpoints.active({"copy.after_chunk": lambda: ends.append(copy_of(node).log_end_offset)}):
        node = make()
        eventually(lambda: node.engine.statuses()[0].state is MoveState.CAUGHT_UP)
    assert (min(ends) > 30) if rewritten else not ends, "what both have is not copied again"
    assert values(copy_of(node)) == kept
    node.finish(1)
    assert values(node.partitions[TP].log) == kept
    assert node.partitions[TP].append(batch(b"x")).base_offset == (70 if rewritten else 30)


@pytest.mark.conformance(46)
def test_source_that_is_missing_for_a_while_costs_nothing_of_the_copy(make: Make) -> None:
    node = make(rate=1_000_000)
    node.add()
    node.fill(1000)
    claim = node.engine.create(TP, node.path("b"), owner="run").claim
    node.engine.start_copy(TP, claim)
    eventually(lambda: node.engine.statuses()[0].bytes_copied > 200_000)
    node.dir("a").fail("unplugged")
    assert node.engine.wait(TP, claim, 10).state is MoveState.FAILED
    node.close()

    def there() -> dict[str, int]:
        folder = node.root / "b" / "t-0.move"
        return {path.name: path.stat().st_size for path in folder.iterdir() if path.suffix == ".log"}

    before = there()
    without = make(names="b", missing=frozenset({"id-a"}), assigned="id-a")
    assert TP not in without.partitions and there() == before, "left as it is while its source is away"
    without.close()
    again = make()
    caught = again.engine.wait(TP, claim, 10)
    assert caught.state is MoveState.CAUGHT_UP and caught.bytes_resumed > 190_000
    again.finish(claim)
    assert len(values(again.partitions[TP].log)) == 1000


@pytest.mark.conformance(47)
def test_copy_and_source_compare_themselves_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    original = copier.fit_to_source

    def counting(opened: OpenMove) -> None:
        compared.append(opened.future.log_end_offset)
        original(opened)

    monkeypatch.setattr(copier, "fit_to_source", counting)
    node = make(rate=3_000_000, config=LogConfig(segment_bytes=50_000))
    node.add()
    node.fill(600)
    chunks: list[int] = []
    with failpoints.active({"copy.after_chunk": lambda: chunks.append(1)}):
        copied(node)
    assert compared == [0] and len(chunks) > 10


# Who waits for whom


@pytest.mark.conformance(37)
def test_copy_that_is_cancelled_before_its_mover_comes_is_never_begun(make: Make) -> None:
    node = make(slots=1, rate=1)
    claims = {}
    for tp in (TP, OTHER):
        node.add(tp)
        node.fill(100, tp=tp)
        claims[tp] = node.engine.create(tp, node.path("b")).claim
        node.engine.start_copy(tp, claims[tp])
    eventually(lambda: sum(s.state in MOVING for s in node.engine.statuses()) == 1)
    waiting = next(s.tp for s in node.engine.statuses() if s.state is MoveState.QUEUED)
    cancelled = node.engine.cancel(waiting, claims[waiting])
    assert cancelled is not None and cancelled.bytes_copied == 0
    node.engine.set_node_rate(None)
    (busy,) = set(claims) - {waiting}
    assert node.engine.wait(busy, claims[busy], 10).state is MoveState.CAUGHT_UP
    with pytest.raises(StaleClaim):
        node.engine.start_copy(waiting, claims[waiting])
    assert node.partitions[waiting].future is None
    assert not (node.dir("b").path / f"{waiting}.move").exists()
    assert [status.tp for status in node.engine.statuses()] == [busy]


@pytest.mark.conformance(49)
def test_mover_passes_over_what_has_to_wait(make: Make) -> None:
    node = make(slots=1)
    for tp in (TP, OTHER):
        node.add(tp)
        node.fill(100, tp=tp)
    first = node.engine.create(TP, node.path("b"), throttle=1).claim
    node.engine.start_copy(TP, first, 1)
    eventually(lambda: node.engine.statuses()[0].state in MOVING)
    second = node.engine.create(OTHER, node.path("b")).claim
    node.engine.start_copy(OTHER, second)
    held = node.engine.pause_copy(TP, first).bytes_copied
    assert node.engine.wait(OTHER, second, 10).state is MoveState.CAUGHT_UP
    status = node.engine.status(TP)
    assert status is not None and (status.state, status.bytes_copied) == (MoveState.STOPPED, held)
    node.engine.set_throttle(TP, first, None)
    node.finish(first)


@pytest.mark.conformance(50)
def test_cancel_and_a_swap_race_and_either_way_one_replica_is_left(make: Make) -> None:
    node = make(config=LogConfig(segment_bytes=20_000, file_delete_delay_ms=0))
    partition = node.add()
    node.fill(20)
    ends: list[str] = []
    for number in range(12):
        here, there = ("a", "b") if partition.directory is node.dir("a") else ("b", "a")
        claim = node.engine.create(TP, node.path(there), owner="run").claim
        node.engine.start_copy(TP, claim)
        assert node.engine.wait(TP, claim, 10).state is MoveState.CAUGHT_UP
        ready = threading.Barrier(2)

        def cancel(claim: int = claim, ready: threading.Barrier = ready, pause: float = number % 4 / 2000) -> None:
            ready.wait(10)
            time.sleep(pause)  # time: the two shall meet at different steps
            node.engine.cancel(TP, claim)

        def swap(claim: int = claim, ready: threading.Barrier = ready) -> None:
            ready.wait(10)
            try:
                node.engine.swap(TP, claim)
            except StaleClaim:
                return  # the cancel was first

        threads = [threading.Thread(target=work) for work in (cancel, swap)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        ends.append(there if partition.directory is node.dir(there) else here)
        assert partition.future is None and node.engine.statuses() == []
        eventually(lambda end=ends[-1]: node.listing() == {"a": [], "b": []} | {end: ["t-0"]})  # type: ignore[misc]
        assert partition.append(batch(b"x")).base_offset == 20 + number
    assert len(values(partition.log)) == 32


@pytest.mark.conformance(57)
def test_appends_wait_for_the_swap_and_never_for_the_copy(make: Make) -> None:
    node = make()
    partition = node.add()
    node.fill(1000)
    acked: dict[int, bytes] = {}
    during: list[tuple[int, int]] = []

    def look() -> None:
        before = len(acked)
        time.sleep(0.1)  # time: nothing may happen now
        during.append((before, len(acked)))

    with appending(partition, acked.__setitem__):
        claim = node.engine.create(TP, node.path("b"), owner="run", throttle=500_000).claim
        node.engine.start_copy(TP, claim, 500_000)
        eventually(lambda: node.engine.statuses()[0].bytes_copied > 0)
        for _ in range(3):
            so_far = len(acked)
            eventually(lambda so_far=so_far: len(acked) > so_far + 20)  # type: ignore[misc]
        status = node.engine.statuses()[0]
        assert status.state.under_way and 0 < status.bytes_copied < status.bytes_total
        node.engine.set_throttle(TP, claim, None)
        with failpoints.active({"swap.after_seal": look}):
            node.finish(claim)
        so_far = len(acked)
        eventually(lambda: len(acked) > so_far + 20)
    (seen,) = during
    assert seen[1] - seen[0] <= 1, "nothing but what had been appended already is answered under the lock"
    assert all(acked[offset] in values(partition.log)[offset] for offset in (min(acked), max(acked)))


# The replica that goes


@pytest.mark.conformance(75, 76)
def test_deleted_replica_is_renamed_at_once_and_can_be_used_until_it_is_due(make: Make) -> None:
    now = [wall_clock_ms()]
    node = make(config=LogConfig(segment_bytes=5_000, file_delete_delay_ms=400), now_ms=lambda: now[0])
    partition = node.add()
    node.fill(20)
    log = partition.log
    partition.delete()
    node.engine.discard(TP)
    assert node.listing()["a"] == ["t-0.delete"] and log.path.name.endswith(".delete") and log.path.is_dir()
    assert len(values(log)) == 20
    log.append_as_leader(batch(b"late"), 0)
    log.flush()
    sizes = {path.name: path.stat().st_size for path in log.path.glob("*.log")}
    assert sum(sizes.values()) == log.size and len(sizes) > 1
    assert node.engine.delete_now_if_due(TP) == 0.4
    now[0] += 400
    assert node.engine.delete_now_if_due(TP) == 0.0 and node.listing()["a"] == []
