"""The pages of the tests' tables are current, name each row, and `make docs` writes every generated page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.report import pages
from tests.support.report.tables import ROOT


@pytest.mark.parametrize("name", pages.PAGES)
def test_page_is_what_the_command_writes(name: str) -> None:
    assert (pages.DOCS / name).read_text() == pages.PAGES[name](), "write the pages again: make docs"


def test_make_docs_runs_every_command_that_writes_a_page() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ndocs:")[2].partition("\n\n")[0]
    printed = {path.stem for path in (ROOT / "ops" / "docs").glob("*.py") if "__main__" in path.read_text()}
    named = set((ROOT / "Makefile").read_text().partition("\nPRINTED := ")[2].splitlines()[0].split())
    assert named == printed and "$(PRINTED)" in recipe
    writers = [path for path in (ROOT / "tests").rglob("*.py") if "PAGE.write_text(" in path.read_text()]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in writers if path != Path(__file__)}
    assert all(f"-m {module}\n" in f"{recipe}\n" for module in {*modules, pages.__name__})
