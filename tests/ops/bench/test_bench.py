"""The benchmarks' calculations on their measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.bench import table
from ops.bench.moves import copies, throttles
from ops.bench.replication import replica_throttles, replicas
from ops.bench.table import Figure


def test_mean_and_the_busiest_windows_of_writes() -> None:
    steady = [(number / 100, 1_000) for number in range(1001)]
    assert throttles.mean(steady) == pytest.approx(100_000)
    assert throttles.busiest(steady, 1.0) == pytest.approx(100_000, rel=0.02)
    burst = sorted([*steady, *((5.0, 1_000) for _ in range(50))])
    assert throttles.busiest(burst, 1.0) == pytest.approx(150_000, rel=0.02)
    assert throttles.busiest(burst, 0.1) == pytest.approx(600_000, rel=0.02)


def test_ten_seconds_furthest_from_a_rate() -> None:
    steady = [(number / 10, number * 100) for number in range(160)]
    assert replica_throttles.worst(steady, 1000) == pytest.approx(1.0)
    # A slow second in the middle, then a burst at the start and samples after the last byte.
    slow = [(at, count - min(500, max(0, count - 8000))) for at, count in steady]
    assert replica_throttles.worst(slow, 1000) == pytest.approx(0.95, abs=0.002)
    burst = [(at, count + 9000 if at > 0.1 else 0) for at, count in steady]
    idle = [*burst, *((at + 16, burst[-1][1]) for at, _ in steady)]
    assert replica_throttles.worst(idle, 1000) == pytest.approx(1.0, abs=0.002)
    with pytest.raises(RuntimeError, match="was whole after"):
        replica_throttles.worst([(number / 10, number * 1000) for number in range(20)], 1000)


def test_wait_gone_returns_once_no_file_of_the_replica_is_left(tmp_path: Path) -> None:
    assert replicas.stored(tmp_path, "t") == 0
    replicas.wait_gone(tmp_path, "t")
    (tmp_path / "t-0").mkdir()
    for name in ("0.log", "5.log", "0.index"):
        (tmp_path / "t-0" / name).write_bytes(b"x" * 7)
    assert replicas.stored(tmp_path, "t") == 14


def test_figure_has_the_verdict_on_its_target() -> None:
    assert Figure("a", "1").verdict == ""
    assert [Figure("a", "1", wanted="2", met=met).verdict for met in (True, False)] == ["met", "NOT met"]
    (row,) = table.as_rows([Figure("a", "1", "2", 0.5, "3", False)])
    assert row == {"what": "a", "rehome": "1", "beside": "2", "ratio": 0.5, "wanted": "3", "met": False}


def test_percentiles() -> None:
    assert table.percentile([], 0.99) == 0
    assert table.percentile([3, 1, 2], 0.5) == 2
    assert table.percentile(list(range(100)), 0.99) == 99
    assert table.percentile([5], 1.0) == 5


def test_plain_copy_removes_its_files_and_returns_its_duration(tmp_path: Path) -> None:
    source = tmp_path / "t-0"
    source.mkdir()
    (source / "0.log").write_bytes(b"x" * (3 << 20))
    (source / "0.index").write_bytes(b"y" * 10)
    assert copies.flushed_copy(source, tmp_path / "copy") > 0
    assert [path.name for path in tmp_path.iterdir()] == ["t-0"]
    assert copies.folder_bytes(source) == 3 << 20
