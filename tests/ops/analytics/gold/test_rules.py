"""The rules for SLAs of moves that come without one: what a file may hold."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from ops.analytics.errors import AnalyticsError
from ops.analytics.gold.rules import Rule, Rules, read_rules


def test_rules_are_read_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "sla.json"
    path.write_text('[{"name": "big", "kind": "node", "topic": "a.*", "node": 2, "seconds": 60, "seconds_per_gb": 20},'
                    ' {"name": "rest", "seconds": 5}]')  # fmt: skip
    big, rest = Rule("big", 60.0, 20.0, "node", "a.*", 2), Rule("rest", 5.0)
    assert read_rules(path) == Rules((big, rest))
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert read_rules(path) == Rules((big, rest)), "the mark that some editors put first"
    assert read_rules(None) == Rules() and Rules().digest == ""
    assert Rules((big, rest)).digest != Rules((rest, big)).digest


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not a list of rules"),
        ("{}", r"\$"),
        ('[{"seconds": 1}]', r"\$\[0\].name"),
        ('[{"name": "x"}]', r"\$\[0\].seconds"),
        ('[{"name": "x", "seconds": -1}]', r"\$\[0\].seconds"),
        ('[{"name": "x", "seconds": 1, "kind": "rack"}]', r"\$\[0\].kind"),
        ('[{"name": "x", "seconds": 1, "topic": "("}]', r"\$\[0\].topic"),
        ('[{"name": "x", "seconds": 1, "colour": 1}]', "colour"),
    ],
)
def test_bad_rule_is_rejected_with_its_path(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "sla.json"
    path.write_text(text)
    with pytest.raises(AnalyticsError, match=problem):
        read_rules(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AnalyticsError, match=r"none\.json"):
        read_rules(tmp_path / "none.json")
