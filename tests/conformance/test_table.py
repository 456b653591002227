"""The table of the conformance cases: whole, free of contradictions, and made of what really ran."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conformance.differences import DIFFERENCES
from tests.support.report.tables import DIFFERS, ROOT, Case, Outcomes, marks, read_cases

CASES = read_cases()
FILE = "tests/conformance/test_table.py"


def test_every_case_has_a_row() -> None:
    assert list(CASES) == list(range(1, 200))
    assert all(case.title for case in CASES.values())


def test_what_is_shown_is_not_called_inapplicable() -> None:
    shown = {int(number) for number in marks("conformance")}
    assert not {number for number in shown if CASES[number].not_applicable}


def test_what_differs_on_purpose_is_shown_and_stands_among_the_differences() -> None:
    differing = {number: case.differs for number, case in CASES.items() if case.differs}
    assert set(differing.values()) <= set(DIFFERENCES)
    assert set(map(str, differing)) <= marks("conformance"), "a test holds what our nodes do instead"


@pytest.mark.parametrize("test", sorted({case.instead for case in CASES.values() if case.instead}))
def test_what_shows_the_same_outcome_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    assert re.search(rf"^(?:async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path} holds no {name}"


def test_two_runs_fill_one_table(tmp_path: Path) -> None:
    cases = {1: Case("one"), 2: Case("two"), 3: Case("three", "it is not ours", "tests/x.py::test_y"), 4: Case("four")}
    here, there = f"{FILE}::test_a", f"{FILE}::test_b[rehome]"
    Outcomes(tmp_path / "kept").merge({here: [1]}, {here}, set(), whole_files=False)
    outcomes = Outcomes(tmp_path / "kept")
    outcomes.merge(
        {here: [1], there: [2]}, {there}, set(), whole_files=True
    )  # this run collects one and runs the other
    table, count = outcomes.table(cases)
    assert count == {"passed": 2, DIFFERS: 0, "not applicable": 1, "open": 1}
    assert f"| 1 | one | passed by `{here}` |" in table
    assert f"| 2 | two | passed by `{FILE}::test_b` |" in table
    assert "| 3 | three | not applicable because it is not ours; the same outcome: `tests/x.py::test_y` |" in table
    assert "| 4 | four | open |" in table


def test_test_that_is_gone_shows_nothing_any_more(tmp_path: Path) -> None:
    here, there, nowhere = f"{FILE}::test_a[1]", f"{FILE}::test_b", "tests/conformance/test_never_was.py::test_c"
    carried = {here: [1], there: [2], nowhere: [3]}
    outcomes = Outcomes(tmp_path / "kept")
    outcomes.merge(carried, set(carried), set(), whole_files=True)
    outcomes.merge({f"{FILE}::test_a[2]": [1], there: []}, set(), set(), whole_files=True)
    assert dict(outcomes.shown()[0]) == {}, "neither has its parameters, or its case, any more"


def test_failure_with_parameters_that_are_gone_is_forgotten_and_the_other_kinds_outcome_is_kept(
    tmp_path: Path,
) -> None:
    old, new, part = f"{FILE}::test_a[words of before]", f"{FILE}::test_a[words]", f"{FILE}::test_c[1]"
    ours, theirs = f"{FILE}::test_b[rehome-1]", f"{FILE}::test_b[apache-1]"
    outcomes = Outcomes(tmp_path / "kept")
    carried = {old: [1], part: [3], ours: [2], theirs: [2]}
    outcomes.merge(carried, {ours, part}, {old, theirs}, whole_files=True)
    assert set(outcomes.shown()[1]) == {1, 2}
    outcomes.merge({new: [1]}, {new}, set(), whole_files=False)
    assert set(outcomes.shown()[1]) == {1, 2}, "one test by its name says nothing of the others"
    outcomes.merge({new: [1], part: [3], ours: [2]}, {new, ours}, set(), whole_files=True)
    passed, failed = outcomes.shown()
    assert set(failed) == {2}, "what Apache Kafka did when it was last asked"
    assert set(passed) == {1, 2, 3}, "what was not run this time is kept"
    other = f"{FILE}::test_b[apache-2]"
    outcomes.merge({new: [1], part: [3], other: [2]}, {other}, set(), whole_files=True)
    assert set(outcomes.shown()[1]) == set(), "and that is forgotten by a run that asks it for something else"


def test_case_in_which_our_nodes_differ_says_so(tmp_path: Path) -> None:
    cases, test = {1: Case("one", differs="long-names"), 2: Case("two", differs="long-names")}, f"{FILE}::test_a"
    outcomes = Outcomes(tmp_path / "kept")
    outcomes.merge({test: [1]}, {test}, set(), whole_files=True)
    table, count = outcomes.table(cases)
    assert count == {"passed": 0, DIFFERS: 1, "not applicable": 0, "open": 1}
    assert f"| 1 | one | passed, differs on purpose: `long-names`; by `{test}` |" in table
    assert "| 2 | two | open |" in table


def test_failure_opens_a_case_again_and_apache_kafka_alone_closes_none(tmp_path: Path) -> None:
    cases = {1: Case("one"), 2: Case("two"), 3: Case("three")}
    first, second = f"{FILE}::test_a", f"{FILE}::test_b"
    carried = {f"{first}[rehome]": [1], f"{second}[rehome]": [1], f"{second}[apache-2]": [2], f"{first}[rehome-x]": [3]}
    outcomes = Outcomes(tmp_path / "kept")
    outcomes.merge(carried, set(carried), set(), whole_files=True)
    assert outcomes.table(cases)[1] == {"passed": 2, DIFFERS: 0, "not applicable": 0, "open": 1}
    outcomes.merge(carried, {f"{first}[rehome]"}, {f"{second}[rehome]"}, whole_files=True)
    table, count = outcomes.table(cases)
    assert count == {"passed": 1, DIFFERS: 0, "not applicable": 0, "open": 2}
    assert f"| 1 | one | fails: `{second}` |" in table
