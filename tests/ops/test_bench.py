"""What the benchmarks conclude from what they have measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.bench import copies, table, throttles
from ops.bench.table import Figure


def test_the_mean_and_the_busiest_windows_of_writes() -> None:
    steady = [(number / 100, 1_000) for number in range(1001)]
    assert throttles.mean(steady) == pytest.approx(100_000)
    assert throttles.busiest(steady, 1.0) == pytest.approx(100_000, rel=0.02)
    burst = sorted([*steady, *((5.0, 1_000) for _ in range(50))])
    assert throttles.busiest(burst, 1.0) == pytest.approx(150_000, rel=0.02)
    assert throttles.busiest(burst, 0.1) == pytest.approx(600_000, rel=0.02)


def test_a_figure_says_whether_what_is_wanted_holds() -> None:
    assert Figure("a", "1").verdict == ""
    assert [Figure("a", "1", wanted="2", met=met).verdict for met in (True, False)] == ["met", "NOT met"]
    (row,) = table.as_rows([Figure("a", "1", "2", 0.5, "3", False)])
    assert row == {"what": "a", "rehome": "1", "beside": "2", "ratio": 0.5, "wanted": "3", "met": False}


def test_percentiles() -> None:
    assert table.percentile([], 0.99) == 0
    assert table.percentile([3, 1, 2], 0.5) == 2
    assert table.percentile(list(range(100)), 0.99) == 99
    assert table.percentile([5], 1.0) == 5


def test_the_plain_copy_leaves_nothing_and_says_how_long_it_took(tmp_path: Path) -> None:
    source = tmp_path / "t-0"
    source.mkdir()
    (source / "0.log").write_bytes(b"x" * (3 << 20))
    (source / "0.index").write_bytes(b"y" * 10)
    assert copies.flushed_copy(source, tmp_path / "copy") > 0
    assert [path.name for path in tmp_path.iterdir()] == ["t-0"]
    assert copies.folder_bytes(source) == 3 << 20
