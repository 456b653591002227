"""What a swap leaves to be written: later than the swap, soon all the same, and over nobody else's words."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.log.config import LogConfig
from storage_node.move import settling
from storage_node.replicas import marker as markers
from storage_node.replicas.boot.actions import ScheduleDelete
from storage_node.replicas.deletion import remove
from storage_node.replicas.marker import Marker, Reason, State
from tests.storage_node.move.harness import TP, SmallNode, eventually

CONFIG = LogConfig(segment_bytes=64 << 10, file_delete_delay_ms=60_000)


@pytest.fixture(autouse=True)
def _nothing_is_written_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test takes from the swap to a look at what it has left."""
    monkeypatch.setattr(settling, "QUIET", 60.0)
    monkeypatch.setattr(settling, "LONGEST", 60.0)


def swapped(root: Path) -> SmallNode:
    """A replica that was just moved from `a` to `b`."""
    node = SmallNode(root, config=CONFIG)
    node.add()
    node.fill(20)
    move(node, "b")
    return node


def move(node: SmallNode, target: str) -> None:
    """Without waiting for what `SmallNode.finish` waits for."""
    claim = node.engine.create(TP, node.path(target), owner="run").claim
    node.engine.start_copy(TP, claim)
    node.engine.wait(TP, claim, 30)
    assert node.engine.swap(TP, claim).outcome == "swapped"


def words(node: SmallNode) -> tuple[Marker, Marker]:
    """The markers of the replica and of the `.delete` it left."""
    (gone,) = node.engine._deletions.pending(TP)
    replica, source = markers.read(node.partitions[TP].log.path), markers.read(gone.path)
    assert replica is not None and source is not None
    return replica, source


def test_final_words_come_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = swapped(tmp_path)
    assert [marker.state for marker in words(node)] == [State.SEALED, State.CURRENT]
    monkeypatch.setattr(settling, "QUIET", 0.1)
    with node.engine._settler._changed:
        node.engine._settler._changed.notify_all()  # who waits looks again at how long
    eventually(lambda: [marker.state for marker in words(node)] == [State.CURRENT, State.DELETED])
    replica, source = words(node)
    (gone,) = node.engine._deletions.pending(TP)
    assert (replica.generation, replica.claim) == (1, 1)
    assert (source.reason, source.generation, source.delete_at_ms) == (Reason.SWAP, 0, gone.due_ms)
    # The source's are without it, the target's have what was deleted since the swap wrote them.
    assert set(node.checkpoints[-2:]) == {("a", False), ("b", False)}
    node.close()


def test_they_come_although_swaps_never_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "LONGEST", 0.3)
    node = swapped(tmp_path)
    eventually(lambda: words(node)[0].state is State.CURRENT)
    node.close()


def test_flush_waits_for_writes_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "QUIET", 0.0)
    go_on = threading.Event()
    with failpoints.active({"swap.after_settled": lambda: go_on.wait(30)}) as armed:
        node = swapped(tmp_path)
        assert armed.wait_hit("swap.after_settled", 1, 30)  # by itself
        settled = threading.Thread(target=node.engine.settle)
        settled.start()
        settled.join(0.1)  # nothing happens, which cannot be waited for
        assert settled.is_alive()
        go_on.set()
        settled.join(30)
        assert not settled.is_alive()
    assert [marker.state for marker in words(node)] == [State.CURRENT, State.DELETED]
    node.close()


def test_node_that_stops_writes_them(tmp_path: Path) -> None:
    node = swapped(tmp_path)
    due = node.engine._deletions.pending(TP)[0].due_ms
    node.close()
    again = SmallNode(tmp_path, config=CONFIG)
    (action,) = again.plans[0].actions  # nothing to be mended
    assert isinstance(action, ScheduleDelete) and action.delete_at_ms == due
    again.close()


def test_move_back_comes_first(tmp_path: Path) -> None:
    """What the next move has written since is newer than what the swap had to say."""
    node = swapped(tmp_path)
    move(node, "a")
    node.engine.settle()
    found = markers.read(node.partitions[TP].log.path)
    assert found is not None and (found.state, found.generation, found.claim) == (State.CURRENT, 2, 2)
    newest = max(node.engine._deletions.pending(TP), key=lambda deletion: deletion.generation)
    left = markers.read(newest.path)
    assert left is not None and (left.state, left.generation, left.claim) == (State.DELETED, 1, 2)
    assert node.engine.next_claim(TP) == 3
    node.close()


def test_final_states_of_two_swaps_of_a_replica_are_both_written(tmp_path: Path) -> None:
    """Each directory's thread writes its own, under the one lock of the partition."""
    node = swapped(tmp_path)
    move(node, "a")
    guard, held = node.engine._settler._guard(TP), threading.Event()

    def another_word() -> None:
        with guard:
            held.set()
            time.sleep(0.2)  # time: the other thread is to find it held

    thread = threading.Thread(target=another_word)
    thread.start()
    assert held.wait(30)
    node.engine.settle()
    thread.join()
    found = markers.read(node.partitions[TP].log.path)
    assert found is not None and (found.state, found.generation) == (State.CURRENT, 2)
    node.close()


def test_removal_that_has_begun_is_not_called_off(tmp_path: Path) -> None:
    node = swapped(tmp_path)
    (gone,) = node.engine._deletions.pending(TP)
    with failpoints.active({"delete.after_marker": "raise"}), pytest.raises(OSError):
        gone.tried = True
        remove(gone)
    node.engine.settle()
    source = words(node)[1]
    assert source.reason == Reason.REMOVING, "a start would take it for a whole copy"
    node.close()


def test_settling_does_not_wait_for_a_busy_replica(tmp_path: Path) -> None:
    node = swapped(tmp_path)
    with node.engine._registry.guard(TP):
        settled = node.engine._settler
        jobs = list(settled._jobs)
        assert len(jobs) == 2
        node.dirs[1].pool.submit(settled._write, node.dirs[1], jobs[:1]).result(10)
        assert words(node)[0].state is State.SEALED
    node.engine.settle()
    assert words(node)[0].state is State.CURRENT
    node.close()
