"""Repairs, undos and offline moves that stop anywhere: killed, or the power gone, and run again.

The disks are simulated (tests/simulation): before every operation on them the process dies, and the disks keep all (a
kill), or any part that a power loss may leave. What must hold on the disks at that moment is checked, the command
runs again, and what must hold at its end is checked.
"""

from __future__ import annotations

import errno
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.disks import copying, offline_move, repair, scanning
from ops.disks.duplicates import duplicates
from ops.disks.offline_move import Move
from storage_node.directories.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, OffsetCheckpoint
from storage_node.model.ids import TopicPartition
from storage_node.replicas import marker as markers
from tests.simulation.crash.world import Truth, World, power_losses
from tests.simulation.disks import WRITES, Crash, State
from tests.simulation.machine import Machine
from tests.simulation.patching import simulated
from tests.support.scale import FULL, scaled, tally
from tests.support.stopped_disks import batches, format_disks, tree, write_replica

A, B = Path("/sim/a"), Path("/sim/b")
TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
States = dict[str, State]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_pieces(monkeypatch)


def in_small_pieces(patch: pytest.MonkeyPatch) -> None:
    """A copy of several pieces and flushes, and no threads: the machine is one thread's."""
    patch.setattr(copying, "CHUNK", 1200)
    patch.setattr(copying, "FLUSH_BYTES", 1200)
    patch.setattr(scanning, "ThreadPoolExecutor", _Inline)


class _Inline:
    def __init__(self, **_: object) -> None:
        pass

    def __enter__(self) -> _Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    map = staticmethod(map)


class Case(ABC):
    """A command on two disks: `run` it; `holds` of the disks whenever it was stopped; `done` at its end."""

    def __init__(self, *, version: int = 1, clean: bool = True) -> None:
        # A flush makes durable what POSIX says, not what a journal keeps besides.
        self.machine = Machine("a", "b", names_follow=False)
        with simulated(self.machine):
            format_disks([A, B], version=version, clean=clean)
            self.prepare()
            for disk in self.machine.disks.values():
                disk.sync()
            self.before = {path: tree(path) for path in (A, B)}
        self.start = self.machine.snapshot()

    @abstractmethod
    def prepare(self) -> None: ...

    @abstractmethod
    def run(self) -> None: ...

    @abstractmethod
    def holds(self) -> None: ...

    @abstractmethod
    def done(self) -> None: ...


LONG, SHORT = [batches(0, 4), batches(20, 3)], [batches(0, 6)]


class Repair(Case):
    """The replica is in both directories, and the one in b is longer; another replica shares a."""

    def prepare(self) -> None:
        write_replica(A, TP, SHORT)
        write_replica(B, TP, LONG, checkpoints=False)
        write_replica(A, OTHER, SHORT)
        OffsetCheckpoint(A, LOG_START_OFFSETS).update({TP: 5})

    def run(self) -> None:
        found = scanning.read_logs(scanning.look([str(A), str(B)]))
        steps, left = repair.plan(duplicates(found))
        assert not left
        for step in steps:
            repair.set_aside(step, [str(A), str(B)])

    def holds(self) -> None:
        assert tree(B / str(TP)) == prefixed(self.before[B], str(TP))
        asides = [path / str(TP) for path in A.glob("*-stray")]
        kept = [tree(path) for path in (A / str(TP), *asides) if path.is_dir()]
        assert kept == [prefixed(self.before[A], str(TP))]
        assert tree(A / str(OTHER)) == prefixed(self.before[A], str(OTHER))

    def done(self) -> None:
        self.holds()
        assert not (A / str(TP)).exists()
        assert OffsetCheckpoint(B, LOG_START_OFFSETS).read() == {TP: 5}
        assert OffsetCheckpoint(B, HIGH_WATERMARKS).read() == {TP: 30}


class Undo(Repair):
    """The same, and the repair is taken back: also one that was stopped itself."""

    def prepare(self) -> None:
        super().prepare()
        self.original = {path: tree(path) for path in (A, B)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scanning, "ThreadPoolExecutor", _Inline)
            super().run()

    def run(self) -> None:
        for step in repair.plan_undo([str(A), str(B)]):
            assert not step.refused
            repair.undo(step, [str(A), str(B)])
        repair.finish_undo([str(A), str(B)])

    def holds(self) -> None:
        self.before = self.original
        super().holds()

    def done(self) -> None:
        now = {
            path: {name: data for name, data in tree(path).items() if not name.endswith("-checkpoint.tmp")}
            for path in (A, B)
        }
        for path in (A, B):
            # Checkpoint files without entries are as none.
            for each in (now[path], self.original[path]):
                for name in (HIGH_WATERMARKS, LOG_START_OFFSETS):
                    if each.get(name) == b"0\n0\n":
                        del each[name]
        assert now == self.original
        assert not list(A.glob("*-stray"))


class OfflineMove(Case):
    """A replica moves from a to b, where another replica is."""

    keep = True

    def prepare(self) -> None:
        write_replica(A, TP, LONG)
        write_replica(A, OTHER, SHORT)
        write_replica(B, TopicPartition("other", 0), SHORT)
        OffsetCheckpoint(A, LOG_START_OFFSETS).update({TP: 5})

    def run(self) -> None:
        source, target = scanning.look([str(A), str(B)])
        offline_move.run(Move(TP, source, target, self.keep))

    def whole(self, path: Path) -> bool:
        wanted = prefixed(self.before[A], str(TP))
        found = {name: data for name, data in tree(path).items() if name != markers.NAME}
        return found == wanted

    def holds(self) -> None:
        folders = [path / str(TP) for path in (A, B) if (path / str(TP)).is_dir()]
        assert folders, "no directory has the replica"
        for folder in folders:
            assert self.whole(folder), f"{folder} is not whole"
        assert tree(A / str(OTHER)) == prefixed(self.before[A], str(OTHER))

    def done(self) -> None:
        assert not (A / str(TP)).exists()
        assert self.whole(B / str(TP))
        asides = [path / str(TP) for path in A.glob("*-stray")]
        assert [self.whole(path) for path in asides] == ([True] if self.keep else [])
        assert not list(B.glob("*-stray"))
        others = {OTHER: 30}
        assert OffsetCheckpoint(A, HIGH_WATERMARKS).read() == others
        assert OffsetCheckpoint(B, HIGH_WATERMARKS).read() == {TP: 35, TopicPartition("other", 0): 30}
        assert OffsetCheckpoint(B, RECOVERY_POINTS).read() == {TP: 35, TopicPartition("other", 0): 30}
        assert OffsetCheckpoint(B, LOG_START_OFFSETS).read() == {TP: 5}
        assert OffsetCheckpoint(A, LOG_START_OFFSETS).read() == {}


class MoveWithoutSource(OfflineMove):
    """The same; the source is removed at the end."""

    keep = False


def prefixed(files: dict[str, bytes], folder: str) -> dict[str, bytes]:
    """The files below a folder."""
    return {name.removeprefix(f"{folder}/"): data for name, data in files.items() if name.startswith(f"{folder}/")}


CASES = {"repair": Repair, "undo": Undo, "move": OfflineMove, "move, source removed": MoveWithoutSource}


def crashes(case: Case, start: States) -> Iterator[States]:
    """Every state that one crash of the command leaves which begins on `start`, each once."""
    seen: set[int] = set()
    for step in itertools.count(1):
        case.machine.restore(start)
        case.machine.crash_at(step)
        try:
            case.run()
            return
        except Crash:
            case.machine.kill()
        for states in (case.machine.snapshot(), *power_losses(case.machine, product=FULL)):
            key = World(states, Truth()).key()
            if key not in seen:
                seen.add(key)
                yield states


@pytest.mark.parametrize("name", CASES if FULL else [name for name in CASES if name != "move, source removed"])
def test_command_that_stops_anywhere_loses_nothing_and_can_run_again(name: str) -> None:
    case = CASES[name]()
    with simulated(case.machine), tally(f"crashes of {name} on a stopped broker's disks") as counted:
        for states in list(crashes(case, case.start)):
            counted.count += 1
            case.machine.restore(states)
            case.holds()
            case.run()
            case.done()
        case.run()  # nothing is left to do
        case.done()
        assert counted.count > 10


def test_repair_that_stops_anywhere_can_be_taken_back() -> None:
    case, undo = Repair(), Undo()
    with simulated(case.machine):
        for states in list(crashes(case, case.start)):
            case.machine.restore(states)
            undo.run()
            undo.done()


def stop(machine: Machine, loss: int) -> None:
    """End the process, and the power if there is a `loss`, which says what of it."""
    if loss:
        machine.power_loss(lambda count: loss % count)
    else:
        machine.kill()


@settings(max_examples=scaled(25, 500), deadline=None)
@given(st.sampled_from(sorted(CASES)), st.lists(st.tuples(st.integers(1, 60), st.integers(0, 10**6)), max_size=4))
def test_command_that_stops_again_and_again_comes_to_its_end(name: str, stops: list[tuple[int, int]]) -> None:
    """Each stop is after so many operations; the number says what the power loss leaves (0: a kill)."""
    with pytest.MonkeyPatch.context() as patch:
        in_small_pieces(patch)
        case = CASES[name]()
        with simulated(case.machine):
            case.machine.restore(case.start)
            for steps, loss in stops:
                case.machine.crash_at(steps)
                try:
                    case.run()
                    case.machine.crash_at(None)
                except Crash:
                    stop(case.machine, loss)
                case.holds()
            case.run()
            case.done()


def test_move_of_a_storage_node_raises_the_generation() -> None:
    case = OfflineMove(version=2, clean=False)
    with simulated(case.machine):
        markers.write(A / str(TP), markers.Marker("orders", 0, generation=4, claim=9))
        case.before[A] = {k: v for k, v in tree(A).items() if not k.endswith(markers.NAME)}
        case.run()
        found = markers.read(B / str(TP))
        assert found is not None and (found.generation, found.claim, found.state) == (5, 9, markers.State.CURRENT)


def test_source_that_is_read_only_is_copied_and_left_to_the_operator() -> None:
    case = OfflineMove()
    with simulated(case.machine):
        case.machine.disks["a"].fail(errno.EROFS, WRITES)
        with pytest.raises(copying.CopyFailed, match=r"take /sim/a out of log\.dirs"):
            case.run()
        assert case.whole(B / str(TP)) and case.whole(A / str(TP))
        case.machine.disks["a"].heal()
        case.run()
        case.done()


@pytest.mark.parametrize("name", ["00000000000000000020.log", "leader-epoch-checkpoint"])
def test_source_that_cannot_be_read_changes_nothing_under_the_name_of_a_replica(name: str) -> None:
    case = OfflineMove()
    with simulated(case.machine):
        case.machine.disks["a"].fail(errno.EIO, {"read"}, path=name)
        with pytest.raises(OSError, match="Input/output"):
            case.run()
        case.machine.disks["a"].heal()
        assert tree(A) == case.before[A] and not (B / str(TP)).exists()
        case.run()
        case.done()


def test_target_that_becomes_full_keeps_what_was_copied() -> None:
    case = OfflineMove()
    with simulated(case.machine):
        fault = case.machine.disks["b"].fail(errno.ENOSPC, {"write"}, path="00000000000000000020.log")
        with pytest.raises(OSError, match="No space"):
            case.run()
        assert tree(A) == case.before[A] and not (B / str(TP)).exists()
        case.machine.disks["b"].heal(fault)
        source, target = scanning.look([str(A), str(B)])
        first = (A / str(TP) / f"{0:020d}.log").stat().st_size
        files = sum(len(data) for data in prefixed(case.before[A], str(TP)).values())
        assert offline_move.left_to_copy(Move(TP, source, target)) == files - first
        case.run()
        case.done()
