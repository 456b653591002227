"""kafka-dump-log on every kind of file in a replica's directory: before, in, and after a move."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from storage_node.log import build_batch
from tests.conformance.clusters import Cluster
from tests.conformance.conftest import Tools
from tests.conformance.log_dirs.calls import NONE, ask, moves_held, others, wait_until_in, where

TOOL = "kafka-dump-log"
SEGMENT = 1 << 20


def fill(cluster: Cluster, topic: str) -> int:
    """Several segments, an idempotent producer's state with them; answers the end offset."""
    client, now = cluster.wire(1), int(time.time() * 1000)
    for sequence in range(0, 3000, 100):
        values = [b"%08d" % (sequence + index) + b"v" * 992 for index in range(100)]
        batch = build_batch(values, producer_id=5000, producer_epoch=0, base_sequence=sequence, timestamp=now)
        assert client.produce(topic, 0, batch).error == NONE
    return 3000


def dump(tools: Tools, file: Path, *options: str) -> str:
    code, out, err = tools.run(TOOL, "--files", str(file), *options)
    # The tool expects every segment to begin with the first offset.
    assert code == 0 and re.fullmatch(rf"(Non-consecutive offsets in {file}\n  -1 is followed by \d+\n)?", err), err
    assert out.startswith(f"Dumping {file}\n")
    return out


def check(tools: Tools, folder: Path, records: int) -> None:
    """All that can be dumped is whole, indexes agree with their segments."""
    files = sorted(folder.iterdir())
    kinds = {path.suffix for path in files}
    assert {".log", ".index", ".timeindex"} <= kinds
    found: list[int] = []
    for segment in (path for path in files if path.suffix == ".log"):
        out = dump(tools, segment, "--deep-iteration", "--print-data-log")
        assert f"\nLog starting offset: {int(segment.stem)}\n" in out
        assert out.count("isvalid: true") == out.count("baseOffset: ")
        found += [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", out, re.MULTILINE)]
        assert "payload: " in out or not segment.stat().st_size
    assert found == list(range(records))
    active = max(path.stem for path in files if path.suffix == ".log")  # its indexes have room for more, in zeros
    for index in (path for path in files if path.suffix in (".index", ".timeindex") and path.stem != active):
        out = dump(tools, index)
        assert "Found" not in out and "mismatch" not in out.lower(), out
        assert "passed sanity check" in dump(tools, index, "--index-sanity-check")
        assert not re.search(r"Mismatches|do not", dump(tools, index, "--verify-index-only"))
    for snapshot in (path for path in files if path.suffix == ".snapshot"):
        assert re.search(r"producerId: 5000 producerEpoch: 0 .*lastTimestamp: \d+", dump(tools, snapshot))


def indexed(folder: Path) -> bool:
    """Whether all segments but the last have their indexes: our nodes write them after the segment was closed."""
    closed = sorted(folder.glob("*.log"))[:-1]
    return all(segment.with_suffix(kind).stat().st_size for segment in closed for kind in (".index", ".timeindex"))


@pytest.mark.conformance(73, 74)
def test_every_kind_of_file_is_read_before_and_after_a_move(cluster: Cluster, tools: Tools) -> None:
    topic = cluster.new_topic(assignment={0: [1]}, configs={"segment.bytes": str(SEGMENT)})
    end = fill(cluster, topic)
    source, target = where(cluster, 1, topic), others(cluster, 1, topic)[0]
    folder = Path(str(source), f"{topic}-0")
    assert len(list(folder.glob("*.log"))) > 2 and list(folder.glob("*.snapshot"))
    cluster.eventually(lambda: indexed(folder), "the indexes of closed segments are written")
    check(tools, folder, end)
    assert ask(cluster, 1, topic, target) == NONE
    wait_until_in(cluster, 1, topic, target)
    moved = Path(target, f"{topic}-0")
    assert {"leader-epoch-checkpoint", "partition.metadata"} <= {path.name for path in moved.iterdir()}
    cluster.eventually(lambda: indexed(moved), "the indexes of closed segments are written")
    check(tools, moved, end)
    assert (moved / "leader-epoch-checkpoint").read_text().splitlines() == ["0", "1", "0 0"]
    written = (moved / "partition.metadata").read_text().strip()
    assert re.fullmatch(r"version: 0\ntopic_id: [\w-]{22}", written)


def test_files_of_a_copy_under_way_are_read(cluster: Cluster, tools: Tools) -> None:
    topic = cluster.new_topic(assignment={0: [1]}, configs={"segment.bytes": str(SEGMENT)})
    cluster.produce(topic, 0, 400, size=1000, per_batch=5)
    source, target = where(cluster, 1, topic), others(cluster, 1, topic)[0]
    with moves_held(cluster, 1, rate=20_000):
        assert ask(cluster, 1, topic, target) == NONE

        def copy() -> Path | None:
            folders = [path for path in Path(target).iterdir() if path.name.startswith(f"{topic}-0.")]
            return folders[0] if folders and sum(file.stat().st_size for file in folders[0].glob("*.log")) else None

        folder = cluster.eventually(copy, "a part is copied")
        assert folder is not None
        segment = min(folder.glob("*.log"))
        out = dump(tools, segment, "--deep-iteration")
        # Bytes are copied, not batches: the last one may not be whole yet.
        assert "| offset: 0 " in out and "isvalid: false" not in out
        assert ask(cluster, 1, topic, str(source)) == NONE
