"""The written site: complete, the same for the same seed, small for many moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.dashboards.site import __main__ as command
from ops.dashboards.site.collect import newest_days
from ops.dashboards.site.example import example
from ops.dashboards.site.pack import unpack
from ops.dashboards.site.tables import TABLES, Site
from ops.dashboards.site.write import PAGES, write_site


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_site_has_every_page_and_every_table(tmp_path: Path) -> None:
    page = write_site(example(50), tmp_path)
    assert page == tmp_path / "index.html"
    for name, columns in TABLES.items():
        value = unpack((tmp_path / "data" / f"{name}.js").read_text())
        assert tuple(value["columns"]) == columns
    assert {f"{name}.html" for name, _, _ in PAGES} < set(files(tmp_path))
    assert not [name for name in files(tmp_path) if name.endswith(".tmp")]


def test_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_site(example(200), tmp_path / folder)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    write_site(example(200, seed=2), tmp_path / "b")
    assert files(tmp_path / "a") != files(tmp_path / "b")


def test_site_without_moves_is_written_over_an_older_one(tmp_path: Path) -> None:
    write_site(example(50), tmp_path)
    write_site(Site(0.0, 0, 0), tmp_path)
    assert unpack((tmp_path / "data" / "moves.js").read_text())["rows"] == 0


def test_days_of_the_example_count_every_move() -> None:
    days = example(300).table("days").as_json()["columns"]
    scope = [days["scope"]["of"][at] for at in days["scope"]["at"]]
    moves = days["moves"]["is"]
    assert sum(count for count, name in zip(moves, scope, strict=True) if name == "all") == 300
    assert sum(count for count, name in zip(moves, scope, strict=True) if name == "node") == 300


@pytest.mark.parametrize(
    ("counts", "most", "first"),
    [([], 10, None), ([4, 5], 10, None), ([4, 5, 2], 10, 1), ([4, 6, 2], 10, 1), ([11, 1], 10, 0), ([10], 10, None)],
)
def test_newest_days_have_at_most_so_many_moves(counts: list[int], most: int, first: int | None) -> None:
    by_day = [(place, count) for place, count in enumerate(counts)]
    assert newest_days(by_day, most) == first  # type: ignore[arg-type]


def test_command_writes_the_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(tmp_path / "site"), "--moves", "20"]) == 0
    assert capsys.readouterr().out.startswith("site: file:///")
    (tmp_path / "file").write_text("")
    assert command.main([str(tmp_path / "file"), "--moves", "20"]) == 1
    assert "cannot write the site" in capsys.readouterr().err
