"""The pages: links and their anchors lead somewhere, generated pages are current, and each package has a README."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.support import configuration
from tests.support.report.readme import ROOT, tracked_pages

#: A page of which people read the first screen, and one that they read whole: so many lines at most.
LONGEST = {"README.md": 160, "ARCHITECTURE.md": 320}
PACKAGES = (
    "storage_node",
    "storage_node/config",
    "storage_node/lifecycle",
    "storage_node/metadata",
    "storage_node/model",
    "storage_node/log",
    "storage_node/move",
    "storage_node/replicas",
    "storage_node/partitions",
    "storage_node/publisher",
    "storage_node/replication",
    "storage_node/wire",
    "storage_node/protocol",
    "storage_node/groups",
    "storage_node/directories",
    "workflows",
    "activities",
    "ops",
    "ops/analytics",
    "ops/bench",
    "ops/dashboards",
    "ops/torture",
    "tests",
)
#: Packages whose page has 40 lines at most; the others have 60.
SHORT = ("storage_node", "workflows", "activities", "ops", "ops/analytics", "tests")
#: What the paths begin with that pages name.
ROOTS = ("storage_node", "workflows", "activities", "ops", "tests")

PAGES = [str(page.relative_to(ROOT)) for page in tracked_pages()]
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def text_of(page: Path) -> str:
    """Return a page without its code: a link in code is none."""
    return re.sub(r"`[^`\n]*`", "``", _FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", _FENCE.sub("", page.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = sum(1 for each in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", each))
        found.add(f"{anchor}-{count}" if count else anchor)
    return found


def broken(page: Path, root: Path = ROOT) -> list[str]:
    """Return the links of a page that lead to a file or an anchor that does not exist."""
    found: list[str] = []
    for link in _LINK.findall(text_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(root) or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_lead_to_files_and_anchors_that_exist(name: str) -> None:
    assert not broken(ROOT / name)


def test_link_to_a_missing_file_or_anchor_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page: `its` name\n\n[a](#a-page-its-name) [b](#b) `[c](c.md)` [d](d.md) [e](https://e)\n")
    assert broken(page, tmp_path) == ["#b", "d.md"]


@pytest.mark.parametrize("name", PAGES)
def test_files_that_a_page_names_exist(name: str) -> None:
    named = re.findall(rf"`((?:{'|'.join(ROOTS)})/[\w./-]+)`", (ROOT / name).read_text())
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("name", LONGEST)
def test_page_stays_short(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= LONGEST[name]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_a_readme_of_its_own(package: str) -> None:
    page = ROOT / package / "README.md"
    assert page.exists()
    assert 15 <= len(page.read_text().splitlines()) <= (40 if package in SHORT else 60)


def test_each_page_of_ops_docs_is_linked_from_the_readme() -> None:
    linked = set(_LINK.findall((ROOT / "README.md").read_text()))
    assert {name for name in PAGES if name.startswith("ops/docs/")} <= linked


def test_page_of_configs_is_what_the_table_of_configs_makes() -> None:
    current = configuration.PAGE.read_text() == configuration.page()
    assert current, "write the page again: python -m tests.support.configuration"
