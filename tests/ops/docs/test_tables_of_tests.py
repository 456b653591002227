"""The pages of the tests' tables are current, name each row, and `make docs` writes every generated page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.report import pages
from tests.support.report.tables import ROOT, marks, read_cases, read_features


@pytest.mark.parametrize("name", pages.PAGES)
def test_page_is_what_the_command_writes(name: str) -> None:
    assert (pages.DOCS / name).read_text() == pages.PAGES[name](), "write the pages again: make docs"


def test_pages_have_each_row_once() -> None:
    rows = {name: re.findall(r"^\| ([\w.-]+) \|", page(), re.MULTILINE)[1:] for name, page in pages.PAGES.items()}
    bugs = [line.split("\t")[0] for line in pages.BUGS.read_text().splitlines()[1:]]
    assert rows == {
        "features.md": list(read_features()),
        "conformance.md": [str(number) for number in read_cases()],
        "known-bugs.md": bugs,
    }


@pytest.mark.parametrize(
    ("name", "rows"), [("feature", set(read_features())), ("conformance", set(map(str, read_cases())))]
)
def test_each_mark_is_found_beside_its_test(name: str, rows: set[str]) -> None:
    # A module that tests the table has others in a string.
    assert pages.carriers(name).keys() == marks(name) & rows


def test_make_docs_runs_every_command_that_writes_a_page() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ndocs:")[2].partition("\n\n")[0]
    printed = {path.stem for path in (ROOT / "ops" / "docs").glob("*.py") if "__main__" in path.read_text()}
    named = set((ROOT / "Makefile").read_text().partition("\nPRINTED := ")[2].splitlines()[0].split())
    assert named == printed and "$(PRINTED)" in recipe
    writers = [path for path in (ROOT / "tests").rglob("*.py") if "PAGE.write_text(" in path.read_text()]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in writers if path != Path(__file__)}
    assert all(f"-m {module}\n" in f"{recipe}\n" for module in {*modules, pages.__name__})
