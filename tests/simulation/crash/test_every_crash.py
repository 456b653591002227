"""Every crash point of everything that a move does, on the production node: killed or without power, once or twice in
a row, and started again with every disk there, one in error, not there, replaced, or put back as it was earlier.

What is checked after each start stands in `checks`, which worlds count as one in `keys`. The full set
starts on every world that one crash leaves, and after two crashes on each that is canonically another. The small set
starts on the outlines of those that one crash leaves with every disk good, and on samples of the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from storage_node import failpoints
from storage_node.directories import atomic
from storage_node.log import segments
from storage_node.move import swap
from storage_node.move.future import FutureLog
from storage_node.move.moving import Move
from storage_node.move.swap import Swapper
from storage_node.replicas import creation
from storage_node.replicas.marker import Marker
from tests.simulation.crash.explore import GOOD, Explorer, Found
from tests.simulation.crash.explore import KINDS as ALL_KINDS
from tests.simulation.crash.scripts import SCRIPTS, blank
from tests.simulation.crash.world import Arena, Life
from tests.support.scale import FULL, scaled, tally

KINDS = ALL_KINDS if FULL else ("bad", "unmounted", "wiped")
TWICE = ("bad", "wiped") if FULL else ("bad",)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A disk in error is logged each time, with a traceback."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def told(found: Found) -> str:
    return f"{found.count['violations']} violations\n" + "\n".join(found.violations[:5])


@pytest.mark.feature("113-21", "113-22", "113-23", "113-24")
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_crash(name: str) -> None:
    with Explorer(SCRIPTS[name], whole=FULL, kinds=KINDS) as explorer, tally("worlds after one crash") as counted:
        worlds = explorer.first()
        for world in worlds:
            explorer.start(world, GOOD)
        chosen = worlds if FULL else explorer.distinct(worlds)[::8]
        for world in chosen:
            explorer.start_everywhere(world)
        for world in chosen[:: scaled(5, 1)]:
            explorer.start_with_older(world)
        counted.count += explorer.found.count["worlds after one crash"]
        note(explorer.found)
    assert not explorer.found.violations, told(explorer.found)


def test_scripts_pass_every_failpoint_of_logs_and_markers() -> None:
    """A crash comes at every operation on a disk, so also at those on either side of such a point."""
    wanted = {*failpoints.registered("log."), *failpoints.registered("marker.")}
    wanted.remove(segments.REPLACE_AFTER_SEGMENT)  # takes a batch of several records, as `test_lives_that_broke` has
    passed: set[str] = set()
    with failpoints.active({name: partial(passed.add, name) for name in wanted}):
        for script in SCRIPTS.values():
            with script.around(), Arena(*script.disks) as arena:
                life = Life(arena, blank(*script.disks))
                life.start()
                script.run(life)
    assert wanted and passed == wanted


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_crash_after_a_crash(name: str) -> None:
    """The next crash comes during the start, or when the script goes on after it."""
    with Explorer(SCRIPTS[name], whole=False, kinds=TWICE) as explorer, tally("worlds after two crashes") as counted:
        first = explorer.distinct(explorer.first())
        every = scaled(len(first), 1)
        for world in first[every // 2 :: every]:
            for second in explorer.second(world, scaled(61, 1)):
                explorer.start_everywhere(second)
        counted.count += explorer.found.count["worlds after two crashes"]
        note(explorer.found)
    assert not explorer.found.violations, told(explorer.found)


@pytest.mark.parametrize(
    ("name", "point"),
    [
        # The source's new name is seen by the start after a kill and not on the disk yet: the copy becomes the replica,
        # gets records, and after a loss of power the source has its old name again.
        ("source's flush fails", "fsync_dir /sim/a"),
        # A source without a marker that has lost its unflushed end to the sealed copy, and is then served without it.
        ("source full", "fsync_dir /sim/b/t-0.move"),
        ("source full, target fails", "fsync_dir /sim/b/t-0.move"),
    ],
)
def test_every_second_crash_after_a_crash_at(name: str, point: str) -> None:
    """In full, where the second crash has once cost flushed records."""
    with Explorer(SCRIPTS[name], whole=False, kinds=("bad",)) as explorer:
        worlds = [world for world in explorer.distinct(explorer.first()) if world.at.endswith(f" before {point}")]
        seconds = [second for world in worlds for second in explorer.second(world)]
        for second in seconds:
            explorer.start_everywhere(second)
        note(explorer.found)
    assert seconds
    assert not explorer.found.violations, told(explorer.found)


def note(found: Found) -> None:
    """Count what all explorations did."""
    for what in ("crash points", "crashes", "starts", "second starts", "disks back", "older disks", "refused starts"):
        with tally(f"{what} in the crash model") as counted:
            counted.count += found.count[what]


# The model sees what is wrong with other protocols: each of these is production with one step changed.


@contextmanager
def without_flush_of(disk: str) -> Iterator[None]:
    """The swap's flush of one log directory's names is left out."""

    def fsync_dir(path: Any) -> None:
        if not str(path).endswith(f"/{disk}"):
            atomic.fsync_dir(path)

    with patch.object(swap, "fsync_dir", fsync_dir):
        yield


@contextmanager
def no_seal() -> Iterator[None]:
    """No marker says that the copy is complete before it becomes the replica."""
    with patch.object(Swapper, "_seal", lambda *_: None):
        yield


@contextmanager
def destination_first() -> Iterator[None]:
    """The copy gets the replica's name before the source loses it, and no generation tells them apart: Apache Kafka's
    way.
    """
    source: list[tuple[Path, Path]] = []
    genuine = Swapper._seal

    def rename_new(path: Path, target: Path) -> None:
        if path.name == "t-0":
            source.append((path, target))
        else:
            atomic.rename_new(path, target)

    def fsync_dir(path: Path) -> None:
        if source and path == source[0][0].parent:
            return  # not renamed yet
        atomic.fsync_dir(path)
        while source:
            atomic.rename_new(*source[0])
            atomic.fsync_dir(source.pop()[0].parent)

    def seal(self: Swapper, move: Move) -> None:
        move.marker = replace(move.marker, generation=move.partition.generation)
        genuine(self, move)

    with (
        patch.object(swap, "rename_new", rename_new),
        patch.object(swap, "fsync_dir", fsync_dir),
        patch.object(Swapper, "_seal", seal),
    ):
        yield


@contextmanager
def same_generation_after_an_undo() -> Iterator[None]:
    """A source that is taken back does not become newer than the sealed copy."""
    genuine, settled = Swapper._undo, Marker.settled

    def undo(self: Swapper, move: Move, renamed: Path | None) -> None:
        with patch.object(Marker, "settled", lambda marker, _=None: settled(marker)):
            genuine(self, move, renamed)
        move.partition.generation = 0

    with patch.object(Swapper, "_undo", undo):
        yield


@contextmanager
def copy_not_flushed() -> Iterator[None]:
    """A swap seals a small copy, which its copier does not flush, without flushing it either."""
    with patch.object(FutureLog, "flush", lambda _: None), patch.object(FutureLog, "flush_records", lambda _: None):
        yield


@contextmanager
def folder_of_a_copy_not_flushed() -> Iterator[None]:
    """A copy's folder gets its name before its marker's name in it is on the disk."""

    def fsync_dir(path: Path) -> None:
        if not path.name.endswith(".delete"):
            atomic.fsync_dir(path)

    with patch.object(creation, "fsync_dir", fsync_dir):
        yield


EXPLORATIONS = 3
STRIDE = 16

MUTATIONS: dict[str, tuple[Callable[[], AbstractContextManager[None]], str]] = {
    "no flush of the source's name": (lambda: without_flush_of("a"), "move"),
    "no flush of the target's name": (lambda: without_flush_of("b"), "there and back"),
    "no seal": (no_seal, "move"),
    "destination first": (destination_first, "move"),
    "same generation after an undo": (same_generation_after_an_undo, "target's flush fails"),
    "no flush of a small copy": (copy_not_flushed, "move"),
    "no flush of a copy's folder": (folder_of_a_copy_not_flushed, "move"),
}


def first_violation(script: str, posix: bool) -> str:
    """What the exploration of a script finds first, "" when it finds nothing."""
    with Explorer(SCRIPTS[script], whole=False, kinds=("bad", "wiped"), posix=posix) as explorer:
        worlds = explorer.first()
        # From all over the script first: what is wrong is wrong at several crash points in a row.
        for world in [world for first in range(STRIDE) for world in worlds[first::STRIDE]]:
            if explorer.found.violations:
                break
            explorer.start_everywhere(world)
        return explorer.found.violations[0] if explorer.found.violations else ""


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_model_finds_what_is_wrong_with_another_protocol(mutation: str) -> None:
    """With flushes that make durable what POSIX says and nothing more; on a journal two of them are hidden by later
    flushes.
    """
    mutated, script = MUTATIONS[mutation]
    with mutated():
        # Ids and names differ from one exploration to the next, and with them which of two equal worlds is gone into.
        assert any(first_violation(script, posix=True) for _ in range(EXPLORATIONS))


@pytest.mark.parametrize("script", ["move", "not told", "target's flush fails"])
def test_nothing_is_wrong_where_a_flush_does_only_what_posix_says(script: str) -> None:
    assert first_violation(script, posix=True) == ""
