"""Apache Kafka's own tool reads this node's files: segments, indexes, producer snapshots."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from storage_node.log import Log, LogConfig
from tests.support.needs import need

from .logs import all_batches, batch, crashed, open_log, produced

pytestmark = pytest.mark.kafka

CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=500, retention_ms=-1)
SUFFIXES = (".log", ".index", ".timeindex", ".snapshot")


def kafka_libs() -> Path:
    """Return the folder of Kafka's jars; skip without them, except in CI."""
    libs = Path(os.environ.get("REHOME_KAFKA_LIBS") or Path.home() / ".cache/rehome/kafka-4.3.1/libs")
    if shutil.which("java") and any(libs.glob("kafka-tools-*.jar")):
        return libs
    need("Apache Kafka", f"java and its jars in {libs} (REHOME_KAFKA_LIBS)")


def dump(path: Path, *options: str) -> tuple[str, list[str]]:
    """Return the tool's output and its complaints."""
    names = sorted(entry.name for entry in path.iterdir() if entry.suffix in SUFFIXES)
    run = subprocess.run(
        ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{kafka_libs()}/*",
         "org.apache.kafka.tools.DumpLogSegments", *options, "--files", ",".join(names)],
        cwd=path, capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    lines = [line for line in run.stderr.splitlines() if not line.startswith("SLF4J")]
    # With deep iteration the tool reports this for every segment that does not begin at offset 0.
    first = {f"  -1 is followed by {int(name[:20])}" for name in names if name.endswith(".log")}
    complaints = [line for line in lines if line not in first and not line.startswith("Non-consecutive offsets in ")]
    return run.stdout, complaints


def gzipped(count: int, timestamp: int) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 1, False, -1, -1, -1, 1 << 20)
    for number in range(count):
        builder.append(number, timestamp + number, b"key", b"value" * 20, [("header", b"h")])
    return bytes(builder.build())


def varied(log: Log, rounds: int) -> None:
    now = 1_700_000_000_000
    for number in range(rounds):
        at = now + 100 * number
        log.append_as_leader(produced(7 + number % 3, 2 * (number // 3), 2, size=100, timestamp=at), number // 90)
        log.append_as_leader(gzipped(3, at - 5_000), number // 90)
        log.append_as_leader(batch(1, 1_000, timestamp=at - 50), number // 90)


def test_kafka_reads_our_files(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", CONFIG)
    varied(log, 120)
    log.close(True)
    known = all_batches(open_log(log.path, CONFIG, clean=True))
    out, complaints = dump(log.path, "--deep-iteration")
    assert not complaints
    assert "invalid bytes" not in out and "isvalid: false" not in out
    seen = re.findall(
        r"^baseOffset: (\d+) lastOffset: (\d+) .* partitionLeaderEpoch: (\d+) .* isvalid: true$", out, re.M
    )
    assert [tuple(map(int, row)) for row in seen] == [(h.base_offset, h.last_offset, h.leader_epoch) for h in known]
    assert len(re.findall(r"^\| offset: ", out, re.M)) == log.log_end_offset
    newest = re.findall(r"^producerId: (\d+) .* lastSequence: (\d+) lastOffset: (\d+) offsetDelta: (\d+)", out, re.M)[
        -3:
    ]
    assert {int(row[0]): tuple(map(int, row[1:])) for row in newest} == {
        pid: (p.batches[-1].last_sequence, p.batches[-1].last_offset, p.batches[-1].offset_delta)
        for pid, p in log.producers.producers.items()
    }
    out, complaints = dump(log.path, "--index-sanity-check")
    assert not complaints
    assert out.count("passed sanity check") == 2 * len(log.segments) > 6


def test_kafka_reads_our_files_after_a_crash_a_cut_and_a_copy(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", CONFIG)
    varied(log, 60)
    path = crashed(log, tmp_path / "crashed-0")
    log.close(False)
    with (path / f"{log.segments[-1].base_offset:020d}.log").open("ab") as file:
        file.write(b"\0" * 700)
    again = open_log(path, CONFIG)
    again.truncate_to(again.log_end_offset - 100)
    varied_end = again.log_end_offset
    again.append_copied(batch(5, base_offset=varied_end + 10, timestamp=1_700_000_005_000))
    copy = open_log(tmp_path / "copy-0", CONFIG)
    offset = 0
    while (found := again.read(offset, 50_000)).data:
        copy.append_copied(found.data)
        offset = found.next_offset
    for made in (again, copy):
        made.purge_deleted(2**60)
        made.close(True)
        out, complaints = dump(made.path, "--deep-iteration")
        assert complaints == [f"  {varied_end - 1} is followed by {varied_end + 10}"], "the gap that was made"
        assert "invalid bytes" not in out and "isvalid: false" not in out


def test_dump_log_reports_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", CONFIG)
    varied(log, 20)
    log.close(True)
    index = log.path / f"{0:020d}.index"
    data = bytearray(index.read_bytes())
    data[3] ^= 1
    index.write_bytes(data)
    _, complaints = dump(log.path, "--deep-iteration")
    assert complaints
