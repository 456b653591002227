"""The trend of a site: its newest days, and nothing of a site that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.dashboards.live.trend import DAYS, trend
from ops.dashboards.site.example import example
from ops.dashboards.site.tables import Site
from ops.dashboards.site.write import write_site


def test_trend_counts_the_newest_days_of_all_moves(tmp_path: Path) -> None:
    write_site(example(560), tmp_path)
    found = trend(tmp_path)
    assert found is not None
    assert len(found["days"]) == DAYS and found["days"][-1] == "2026-11-20" and found["days"] == sorted(found["days"])
    assert sum(found["moves"]) == pytest.approx(DAYS * 10, rel=0.1)
    assert all(
        done + failed <= moves
        for done, failed, moves in zip(found["moved"], found["failed"], found["moves"], strict=True)
    )


@pytest.mark.parametrize(
    "text", ["", "no data", 'rehome.receive("days","AAAA");\n', 'rehome.receive("days","Az");\n', "é"]
)
def test_site_that_cannot_be_read_has_no_trend(tmp_path: Path, text: str) -> None:
    assert trend(tmp_path) is None
    write_site(Site(5.0, 0, 0), tmp_path)
    found = trend(tmp_path)
    assert found is not None and found["days"] == []
    (tmp_path / "data" / "days.js").write_text(text, encoding="utf-8")
    assert trend(tmp_path) is None
