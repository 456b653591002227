"""The benchmarks' calculations on their measurements."""

from __future__ import annotations

from pathlib import Path

from ops.bench import table
from ops.bench.moves import copies
from ops.bench.table import Figure


def test_figure_has_the_verdict_on_its_target() -> None:
    assert Figure("a", "1").verdict == ""
    assert [Figure("a", "1", wanted="2", met=met).verdict for met in (True, False)] == ["met", "NOT met"]
    (row,) = table.as_rows([Figure("a", "1", "2", 0.5, "3", False)])
    assert row == {"what": "a", "rehome": "1", "beside": "2", "ratio": 0.5, "wanted": "3", "met": False}


def test_plain_copy_removes_its_files_and_returns_its_duration(tmp_path: Path) -> None:
    source = tmp_path / "t-0"
    source.mkdir()
    (source / "0.log").write_bytes(b"x" * (3 << 20))
    (source / "0.index").write_bytes(b"y" * 10)
    assert copies.flushed_copy(source, tmp_path / "copy") > 0
    assert [path.name for path in tmp_path.iterdir()] == ["t-0"]
    assert copies.folder_bytes(source) == 3 << 20
