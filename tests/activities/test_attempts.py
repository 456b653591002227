"""The journal of running attempts survives a kill, says what was open, and does not grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from activities import attempts
from activities.attempts import Attempt, AttemptJournal, parse


def attempt(number: int) -> Attempt:
    return Attempt(f"w{number}", f"r{number}", str(number))


def test_what_began_and_did_not_end_is_left_behind(tmp_path: Path) -> None:
    journal = AttemptJournal(tmp_path)
    assert journal.left_behind() == frozenset()
    for number in range(3):
        journal.began(attempt(number))
    journal.ended(attempt(1))
    journal.close()
    assert AttemptJournal(tmp_path).left_behind() == {attempt(0), attempt(2)}


def test_what_was_left_behind_stays_known_until_it_is_ended(tmp_path: Path) -> None:
    first = AttemptJournal(tmp_path)
    first.began(attempt(1))
    first.close()
    second = AttemptJournal(tmp_path)
    assert second.left_behind() == {attempt(1)}
    second.began(attempt(2))
    second.close()
    third = AttemptJournal(tmp_path)
    assert third.left_behind() == {attempt(1), attempt(2)}
    third.ended(attempt(1))
    third.ended(attempt(2))
    third.close()
    assert AttemptJournal(tmp_path).left_behind() == frozenset()


def test_torn_and_foreign_lines_are_skipped() -> None:
    lines = ['["+", "w", "r", "1"]', "garbage", "[]", '["+", "w"]', '"text"', "{}", '["+", "w", "r"']
    assert parse(lines) == {Attempt("w", "r", "1")}


def test_it_is_rewritten_when_it_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "COMPACT_BYTES", 1000)
    journal = AttemptJournal(tmp_path)
    journal.began(attempt(9999))
    for number in range(500):
        journal.began(attempt(number))
        journal.ended(attempt(number))
    journal.close()
    assert (tmp_path / attempts.FILE).stat().st_size < 1200
    assert AttemptJournal(tmp_path).left_behind() == {attempt(9999)}


def test_a_disk_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    journal = AttemptJournal(tmp_path / "missing")
    journal.began(attempt(1))
    journal.ended(attempt(1))
    journal.close()
