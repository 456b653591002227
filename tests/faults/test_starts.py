"""Starts on disks that fail: what could not be recovered is not taken for recovered afterwards."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_node.log.batches.batch import build_batch
from tests.faults.disk import needs_fuse
from tests.faults.node import TP, FaultyNode, lost
from tests.support.nodes.node_harness import until
from tests.support.scale import tally

pytestmark = [pytest.mark.fuse, needs_fuse]


@pytest.mark.parametrize("ops", [("write", "create"), ("truncate",), ("rename",), ("read",)], ids="-".join)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_recovery_that_fails_leaves_no_word_of_a_clean_stop(
    start: Callable[..., FaultyNode], ops: tuple[str, ...], error: int
) -> None:
    # KAFKA-13773: a disk that is full while a start recovers, and the stop after it marked everything as clean.
    node = start()
    values = node.fill(70)
    acknowledged = dict(enumerate(values))
    until(lambda: not node.node.housekeeping.differing())
    node.stop(clean=False)
    folder = node.source_disk.backing / node.name
    last = sorted((folder / "t-0").glob("*.log"))[-1]
    with last.open("ab") as file:
        file.write(build_batch([b"never acknowledged" * 10])[:-7])
    for index in (folder / "t-0").glob("*.index"):
        index.unlink()
    node.source_disk.rules({"ops": ops, "path": "/t-0/", "errno": error})
    node.begin_again()
    served, hits = node.node.partition(TP), node.source_disk.hits
    assert hits or served is not None
    node.stop(clean=True)
    if served is None:
        assert not (folder / ".kafka_cleanshutdown").exists(), "what was never opened was not stopped cleanly"
    node.source_disk.heal()
    node.begin_again()
    assert lost(node, acknowledged) == []
    assert node.replica.append(build_batch([b"after"])).base_offset == 70
    with tally("faults injected through FUSE") as counted:
        counted.count += int(hits > 0)
    assert Path(node.source.name).is_dir()
