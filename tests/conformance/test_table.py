"""The table of the conformance cases: whole, free of contradictions, and made of what really ran."""

from __future__ import annotations

import re

import pytest

from tests.conformance.differences import DIFFERENCES
from tests.support.report.tables import ROOT, marks, read_cases

CASES = read_cases()


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
