"""kill -9 at every failpoint of a move, with a producer at work; the next start comes to the same end all the same."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.log.batches.batch import headers
from tests.storage_node.move import harness
from tests.storage_node.move.harness import TP, SmallNode, eventually, values

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.storage_node.move.harness"])

#: What has to go wrong before a point is passed at all: lives before the one that is killed, and points armed with it.
CANCEL = ("cancel.",)
UNDO = ("undo.",)
BOOT = ("boot.",)
STOP = ("stop.",)
OURS = ("create.", "copy.", "swap.", "delete.", *CANCEL, *UNDO, *BOOT, *STOP)

#: Passed only while the `.delete` of a swap is kept.
KEPT = "swap.after_source_settled"

POINTS = [name for name in failpoints.registered() if name.startswith(OURS)]


def live(root: Path, step: str, points: str = "") -> int:
    """One life of the node in a process of its own; answers its exit code (-9 when it was killed)."""
    process = PROCESSES.Process(target=harness.life, args=(root, step, points))
    process.start()
    process.join(60)
    assert process.exitcode is not None, "the node hangs"
    return process.exitcode


def killed(root: Path, step: str, points: str) -> None:
    assert live(root, step, points) == -signal.SIGKILL, f"{points} was not passed"


def check(root: Path, wanted: str) -> None:
    """One current copy where it was wanted, nothing half done, every acknowledged record at its offset."""
    first = SmallNode(root, config=harness.LIFE)
    try:
        eventually(lambda: first.listing() == {"a": [], "b": [], wanted: ["t-0"]})
        partition = first.partitions[TP]
        assert partition.directory.path.name == wanted
        found = {}
        for data in values(partition.log):
            for _, header in headers(data):
                assert header.base_offset not in found
                found[header.base_offset] = data
        assert sorted(found) == list(range(partition.log.log_end_offset))
        acked = [line.split(b" ") for line in (root / "acked").read_bytes().splitlines()]
        assert acked
        for offset, value in acked:
            assert value in found[int(offset)]
        state = partition.generation, partition.log.log_end_offset, first.engine.next_claim(TP)
    finally:
        first.close()
    again = SmallNode(root, config=harness.LIFE)
    try:
        assert not again.plans[0].actions
        partition = again.partitions[TP]
        assert (partition.generation, partition.log.log_end_offset, again.engine.next_claim(TP) - 1) == state
    finally:
        again.close()


def lives(point: str) -> tuple[Sequence[tuple[str, str]], str, str]:
    """The lives that end by SIGKILL, the step of the one after them, and where the replica then has to be."""
    if point.startswith(CANCEL):
        return [("cancel", f"{point}=kill")], "boot", "a"
    if point.startswith(UNDO):
        return [("move", f"swap.after_target_renamed=raise,{point}=kill")], "move", "b"
    if point.startswith(BOOT):
        return [("move", "swap.after_source_flushed=kill"), ("boot", f"{point}=kill")], "move", "b"
    if point.startswith(STOP):
        return [("stop", f"{point}=kill")], "resume", "b"
    return [("keep" if point == KEPT else "move", f"{point}=kill")], "move", "b"


@pytest.mark.feature("113-14", "113-15", "113-21", "113-22", "113-24")
@pytest.mark.parametrize("point", POINTS)
def test_killed_at(point: str, tmp_path: Path) -> None:
    ends, then, wanted = lives(point)
    for step, points in ends:
        killed(tmp_path, step, points)
    assert live(tmp_path, then) == 0
    check(tmp_path, wanted)


@pytest.mark.feature("113-21")
@pytest.mark.parametrize("number", range(1, 13))
def test_killed_in_the_middle_of_a_small_file(number: int, tmp_path: Path) -> None:
    """Markers and checkpoints are written, flushed and renamed: killed between any two of these, too."""
    point = ("atomic.written", "atomic.flushed", "atomic.renamed")[number % 3]
    live(tmp_path, "move", f"{point}=kill@{number}")
    assert live(tmp_path, "move") == 0
    check(tmp_path, "b")


@pytest.mark.parametrize("point", failpoints.registered("discard."))
def test_killed_while_the_topic_is_deleted(point: str, tmp_path: Path) -> None:
    """The topic does not come back, neither from its log nor from the copy that was being made."""
    killed(tmp_path, "discard", f"{point}=kill")
    node = SmallNode(tmp_path, config=harness.LIFE, assigned=None)
    try:
        assert node.partitions == {} and [plan.state for plan in node.plans] == ["absent"]
    finally:
        node.close()
    again = SmallNode(tmp_path, config=harness.LIFE)
    try:
        assert again.partitions == {}
        assert not any("t-0" in names or "t-0.move" in names for names in again.listing().values())
    finally:
        again.close()


def test_every_failpoint_is_covered() -> None:
    assert len(POINTS) >= 30
    modules = {name.split(".")[0] + "." for name in POINTS}
    assert modules == set(OURS)


@pytest.mark.feature("113-21")
def test_killed_again_and_again(tmp_path: Path) -> None:
    """A move that is killed at one step after the other, each life going on where the last one died."""
    for point in ("create.after_marker", "copy.after_chunk", "copy.caught_up", "swap.after_seal", "swap.after_settled"):
        killed(tmp_path, "move", f"{point}=kill")
    assert live(tmp_path, "move") == 0
    check(tmp_path, "b")
