"""No test of the gate depends on the machine's speed: it neither sleeps long nor asserts that something was fast."""

from __future__ import annotations

import ast

import pytest

from tests.support.report.clock_rules import CLOCKS, findings
from tests.support.report.tables import ROOT
from tests.support.report.tiers import TIERS, read_tiers, tier_of

ROWS = read_tiers()
SLOW = set(TIERS) - {"gate"}
FILES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py"))


def in_the_gate(path: str, source: str) -> frozenset[str]:
    """Return the names of a file's tests that neither the table nor a marker takes out of the gate."""
    return frozenset(
        each.name
        for each in ast.parse(source).body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and tier_of(f"{path}::{each.name}", ROWS) == "gate"
        and not any(ast.unparse(mark) in {f"pytest.mark.{tier}" for tier in SLOW} for mark in each.decorator_list)
    )


def test_tests_of_the_gate_do_not_depend_on_the_machines_speed() -> None:
    found = []
    for path in FILES:
        source = (ROOT / path).read_text()
        if tier_of(f"{path}::", ROWS) == "gate" and any(clock in source for clock in ("sleep", *CLOCKS)):
            lines = findings(source, in_the_gate(path, source))
            found += [f"{path}:{line} {what}" for line, what in lines]
    assert not found, "wait for the event, pass the time in, or give a reason behind `# time: `"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("time.sleep(0.05)", []),
        ("time.sleep(0.2)", ["sleeps 0.2 s"]),
        ("time.sleep(pause)", ["sleeps pause s"]),
        ("time.sleep(0.2)  # time: nothing may happen now", []),
        ("assert time.monotonic() - began < 5", ["asserts that something was fast: time.monotonic() - began < 5"]),
        (
            "assert 5 >= time.process_time() - began",
            ["asserts that something was fast: 5 >= time.process_time() - began"],
        ),
        ("took = time.monotonic() - began; assert took < 5", ["asserts that something was fast: took < 5"]),
        ("assert time.monotonic() - began > 0.3", []),
        ("assert time.monotonic() < deadline, 'a wait'", []),
    ],
)
def test_what_depends_on_the_machines_speed_is_found(line: str, expected: list[str]) -> None:
    source = f"def test_it():\n    {line}\n"
    assert [what for _, what in findings(source, frozenset({"test_it"}))] == expected
    assert not list(findings(source, frozenset())), "a test that the gate leaves out"
