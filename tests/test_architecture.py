"""The import arrows between the parts hold, and the tree holds only what belongs there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from tests.support.report.readme import tracked_pages
from tests.support.report.tables import conformance_sentence

ROOT = Path(__file__).parent.parent
TOP_LEVEL = {
    "pyproject.toml",
    "workflows",
    "activities",
    "storage_node",
    "worker.py",
    "tests",
    "ops",
    "README.md",
    "ARCHITECTURE.md",
    "Makefile",
    "LICENSE",
}

PACKAGES = ("storage_node", "activities", "workflows", "ops")

PAGES = tracked_pages()
NAMED = sorted({name for page in PAGES for name in re.findall(r"`(tests/[^`]+)`", page.read_text())})


def test_imports_go_one_way() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([str(lint)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def cycles(graph: grimp.ImportGraph) -> list[str]:
    """Return a cycle of each set of modules that import each other, imports under TYPE_CHECKING included."""
    found: list[str] = []
    left = set(graph.modules)
    while left:
        start = min(left)
        within = left & graph.find_upstream_modules(start) & graph.find_downstream_modules(start)
        left -= {start, *within}
        for first in sorted(graph.find_modules_directly_imported_by(start) & within):
            chain = graph.find_shortest_chain(first, start)
            if chain is not None:
                found.append(" -> ".join((start, *chain)))
                break
    return found


def test_no_modules_import_each_other() -> None:
    assert cycles(grimp.build_graph(*PACKAGES, cache_dir=None)) == []


def test_cycle_is_found_and_named() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("e", "f"), ("f", "e")):
        graph.add_import(importer=importer, imported=imported)
    assert cycles(graph) == ["b -> c -> b", "e -> f -> e"]


def test_top_level_holds_what_belongs_there() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    ).stdout.splitlines()
    top = {name.split("/")[0] for name in tracked}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL


def test_files_have_one_purpose_each() -> None:
    sources = [p for part in PACKAGES for p in (ROOT / part).rglob("*.py")]
    long = {str(p.relative_to(ROOT)): n for p in sources if (n := len(p.read_text().splitlines())) > 600}
    assert not long


def test_page_of_promises_names_its_tests() -> None:
    page = (ROOT / "ops" / "docs" / "failures.md").read_text()
    table = page.split("## What is promised under which failure")[1].split("\n## ")[0].split("| shown by |")[1]
    rows = [line for line in table.splitlines()[2:] if line.startswith("|")]
    assert len(rows) > 20
    bare = [row for row in rows if "`tests/" not in row.split("|")[4]]
    assert not bare


def test_page_of_differences_counts_the_conformance_cases_that_tests_show() -> None:
    page = " ".join((ROOT / "ops" / "docs" / "differences.md").read_text().split())
    assert conformance_sentence() in page, f"ops/docs/differences.md must contain: {conformance_sentence()}"


def test_torture_takes_every_set_that_has_a_full_size() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    large = re.findall(r"^LARGE := (.*)$", makefile, re.MULTILINE)[0]
    recipe = re.findall(r"^\t@REHOME_FULL=1 (.*)$", makefile, re.MULTILINE)[0].replace("$(LARGE)", large)
    taken = tuple(word for word in recipe.split() if word.startswith("tests/"))
    sized = re.compile(r"^from tests\.support\.scale import .*\b(FULL|scaled)\b", re.MULTILINE)
    left_out = [
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        if sized.search(path.read_text()) and not (name := str(path.relative_to(ROOT))).startswith(taken)
    ]
    assert not left_out, "REHOME_FULL=1 makes them larger"


@pytest.mark.parametrize("name", NAMED)
def test_what_the_pages_name_is_there(name: str) -> None:
    """A file of tests, a test in one, or another file or folder below tests/."""
    path, _, test = name.partition("::")
    assert (ROOT / path).exists(), f"{path} is not there"
    if Path(path).name.startswith("test_"):
        tests = re.findall(r"^(?:async )?def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE)
        assert tests, f"{path} holds no test"
        assert not test or test in tests, f"{path} holds no {test}"


#: A folder with more modules on its own level hides what each is for: sort them into packages by purpose.
MOST_MODULES = 20


@pytest.mark.parametrize("part", ["storage_node", "activities", "workflows", "ops", "tests"])
def test_folders_stay_small(part: str) -> None:
    crowded = {
        str(folder.relative_to(ROOT)): count
        for folder in [ROOT / part, *(each for each in (ROOT / part).rglob("*") if each.is_dir())]
        if (count := sum(1 for each in folder.glob("*.py") if each.name != "__init__.py")) > MOST_MODULES
    }
    assert not crowded
