"""The swap watch on a real node, before and after the node has made the markers final."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from kafka.admin import KafkaAdminClient

from ops.torture import disk
from ops.torture.observers.swaps import SwapWatch
from ops.torture.roles import Roles
from storage_node.move import settling
from storage_node.replicas import marker as markers
from storage_node.replicas.marker import Reason, State
from tests.support.nodes.node_harness import Harness, running, until


class OneNode:
    """The part of `Roles` that the watch uses."""

    def __init__(self, harness: Harness) -> None:
        self._paths = harness.paths
        self.nodes = (1,)

    def log_dirs(self, node: int) -> tuple[str, ...]:
        return tuple(self._paths)

    def disk(self, node: int, directory: str) -> Path:
        return Path(directory)


@pytest.fixture
def swapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Harness]:
    """Yield a node after a swap whose source remains, with final markers if the parameter is "settled"."""
    monkeypatch.setattr(settling, "QUIET", 0.0 if request.param == "settled" else 1000.0)
    monkeypatch.setattr(settling, "LONGEST", 1000.0)
    with running(tmp_path, extra={"file.delete.delay.ms": "100000"}) as harness:
        harness.create_topic("t")
        harness.produce("t", [b"%d" % number for number in range(500)], linger_ms=0)
        target = harness.other_directory("t")
        admin = KafkaAdminClient(bootstrap_servers=harness.bootstrap)
        admin.alter_replica_log_dirs({("t", 0, 1): target})
        admin.close()
        until(lambda: harness.directory_of("t") == target)
        if request.param == "settled":
            until(lambda: reason(source(harness)) == Reason.SWAP)
        yield harness


def source(harness: Harness) -> Path:
    """Return the folder of the source."""
    (found,) = (folder for path in harness.paths for folder in Path(path).glob("t-0.*.delete"))
    return found


def reason(folder: Path) -> str:
    found = markers.read(folder)
    return found.reason if found else "none"


def looked(
    harness: Harness, seconds: float, end: Callable[[], object] = lambda: None, keep: Path | None = None
) -> SwapWatch:
    """Run a watch until it has found a swap, or for `seconds`, before and after `end`; return it."""
    watch = SwapWatch(cast(Roles, OneNode(harness)), keep)
    watch.start()
    for act in (lambda: None, end):
        act()
        deadline = time.monotonic() + seconds
        while not watch.swaps and time.monotonic() < deadline:
            time.sleep(0.05)
    watch.stop()
    return watch


@pytest.mark.parametrize("swapped", ["settled", "just swapped"], indirect=True)
def test_every_batch_of_the_source_is_compared_with_the_copy(swapped: Harness) -> None:
    watch = looked(swapped, 20)
    (swap,) = watch.swaps
    assert (swap.place, swap.seal_end, swap.target) == (("t", 0), 500, swapped.directory_of("t"))
    assert swap.compared and not swap.differences
    assert not watch.missed


@pytest.mark.parametrize("swapped", ["settled", "just swapped"], indirect=True)
def test_changed_byte_is_seen(swapped: Harness, tmp_path: Path) -> None:
    (segment,) = source(swapped).glob("*.log")
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    (swap,) = looked(swapped, 20, keep=tmp_path / "kept").swaps
    assert len(swap.differences) == 1
    kept = {folder.name.rpartition("-")[2]: next(folder.glob("*.log")) for folder in (tmp_path / "kept").iterdir()}
    assert kept["source"].read_bytes() == bytes(data) != kept["copy"].read_bytes()


@pytest.mark.parametrize("swapped", ["settled"], indirect=True)
def test_copy_that_goes_while_it_is_read_is_not_a_short_copy(swapped: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica is renamed for deletion in one step: the segments that were listed are gone when they are read."""
    copy = Path(swapped.directory_of("t")) / "t-0"
    listed = disk.segments

    def renamed_after_listing(folder: Path) -> list[Path]:
        found = listed(folder)
        if folder == copy and copy.exists():
            copy.rename(copy.with_name(f"t-0.{'1' * 32}.delete"))
        return found

    monkeypatch.setattr(disk, "segments", renamed_after_listing)
    assert not looked(swapped, 1).swaps


@pytest.mark.parametrize("where", ["same directory", "another directory"])
@pytest.mark.parametrize("swapped", ["settled"], indirect=True)
def test_source_of_an_earlier_life_of_the_replica_is_not_compared(swapped: Harness, where: str) -> None:
    """It has the same generation, since they begin again with a new replica, but fewer records."""
    own = source(swapped)
    parent = own.parent if where == "same directory" else Path(swapped.directory_of("t"))
    earlier = parent / f"t-0.{'0' * 32}.delete"
    shutil.copytree(own, earlier)
    (segment,) = earlier.glob("*.log")
    segment.write_bytes(segment.read_bytes()[: segment.stat().st_size // 2])
    (swap,) = looked(swapped, 2).swaps
    assert not swap.differences


@pytest.mark.parametrize("swapped", ["just swapped"], indirect=True)
def test_copy_that_is_being_made_was_not_missed(swapped: Harness) -> None:
    folder = source(swapped)
    found = markers.read(folder)
    assert found is not None
    markers.write(folder, replace(found, state=State.COPYING))
    watch = looked(swapped, 1, end=lambda: folder.rename(folder.with_name("t-1.move")))
    assert not watch.swaps and not watch.missed


@pytest.mark.parametrize("swapped", ["settled"], indirect=True)
@pytest.mark.parametrize("why", [Reason.TOPIC, Reason.REASSIGNED, Reason.CANCEL, Reason.REMOVING])
def test_what_was_not_swapped_away_is_not_compared(swapped: Harness, why: Reason) -> None:
    folder = source(swapped)
    found = markers.read(folder)
    assert found is not None
    markers.write(folder, replace(found, reason=why))
    assert not looked(swapped, 1).swaps
