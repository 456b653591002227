"""The lines of a node's log that clients can cause are bounded, and the log says so."""

from __future__ import annotations

import logging

from storage_node.log_flood import LINES, LONGEST, SECONDS, FloodFilter


class Log(logging.Handler):
    """A logger whose lines are kept, with a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.now = 0.0
        self.addFilter(FloodFilter(lambda: self.now))
        self.log = logging.Logger("flooded")
        self.log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def reject(self, count: int) -> None:
        for number in range(count):
            self.log.warning("rejected %d", number)


def test_lines_of_one_place_beyond_the_limit_are_dropped_and_counted() -> None:
    log = Log()
    log.reject(LINES + 7)
    assert log.lines == [f"rejected {number}" for number in range(LINES)]
    log.now += SECONDS
    log.reject(2)
    assert log.lines[LINES:] == ["rejected 0 (7 lines like this one were dropped)", "rejected 1"]


def test_flood_of_one_place_takes_nothing_from_another() -> None:
    log = Log()
    log.reject(LINES + 7)
    log.log.info("started")
    assert log.lines[-1] == "started"


def test_errors_are_never_dropped() -> None:
    log = Log()
    for _ in range(3 * LINES):
        log.log.error("a disk failed")
    assert len(log.lines) == 3 * LINES


def test_long_lines_are_cut() -> None:
    log = Log()
    log.log.warning("%s", "n" * 30_000)
    assert log.lines == [f"{'n' * LONGEST}... (30000 characters)"]
