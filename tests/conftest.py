"""Markers, the table of the proposals' features with the tests that show them, and what the large sets counted.

A whole run writes build/features.md: each feature by its id, shown (by which tests), superseded (by what) or open.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.support import scale

ROOT = Path(__file__).parent.parent
FEATURES = Path(__file__).with_name("features.tsv")

_carried: dict[str, list[str]] = {}
_passed: set[str] = set()
_failed: set[str] = set()


def read_features() -> dict[str, tuple[str, str]]:
    """Feature id -> (title, "" or why it is superseded)."""
    rows = (line.split("\t") for line in FEATURES.read_text().splitlines() if line)
    return {row[0]: (row[1], row[2] if len(row) > 2 else "") for row in rows}


def pytest_addoption(parser: pytest.Parser) -> None:
    kinds = "kinds of cluster for tests/conformance: rehome, apache, or both with a comma between"
    parser.addoption("--kinds", default="rehome", help=kinds)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = read_features()
    for item in items:
        ids = [str(i) for mark in item.iter_markers("feature") for i in mark.args]
        unknown = [i for i in ids if i not in known]
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: no such feature: {', '.join(unknown)}")
        _carried[item.nodeid] = ids


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)
    elif report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def pytest_sessionstart() -> None:
    scale.TALLIES.unlink(missing_ok=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for what, number, seconds in scale.read_tallies():
        terminalreporter.write_line(f"{number:>9,} {what} ({seconds:.0f} s)")
    if config.args != ["tests"] or not (_passed or _failed):
        return  # only a whole run says what is open
    shown: dict[str, set[str]] = defaultdict(set)
    for nodeid in _passed - _failed:
        for feature in _carried.get(nodeid, ()):
            shown[feature].add(nodeid.split("[")[0])
    lines = ["| feature | what | state |", "|---|---|---|"]
    count = {"shown": 0, "superseded": 0, "open": 0}
    for feature, (title, superseded) in read_features().items():
        state = "shown" if feature in shown else "superseded" if superseded else "open"
        count[state] += 1
        by = ", ".join(f"`{n}`" for n in sorted(shown[feature])) if state == "shown" else superseded or "open"
        lines.append(f"| {feature} | {title} | {by} |")
    target = ROOT / "build" / "features.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(lines) + "\n")
    total = ", ".join(f"{n} {state}" for state, n in count.items())
    terminalreporter.write_line(f"features of the proposals: {total} (build/features.md)")
