"""What a command shows while it waits."""

from __future__ import annotations

import pytest

from ops.cli import waiting
from ops.cli.waiting import Bars, Shown


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return []


def test_bars_without_a_terminal_print_a_line_every_30_seconds(printed: list[str]) -> None:
    now = [100.0]
    with Bars(printed.append, lambda: now[0]) as bars:
        for second in range(91):
            now[0] = 100.0 + second
            bars.show("orders-0", Shown("copying", 1_000_000, second * 10_000, 10_000.0, 100.0 - second))
            bars.looked()
    assert printed == [
        "orders-0: copying; 300.0 kB of 1.0 MB, 10.0 kB/s, 1:10 min to go",
        "orders-0: copying; 600.0 kB of 1.0 MB, 10.0 kB/s, 40 s to go",
        "orders-0: copying; 900.0 kB of 1.0 MB, 10.0 kB/s, 10 s to go",
    ]


def test_summary_of_many_replicas_is_one_line() -> None:
    done, slow = Shown("in_place", 100, 100, done=True), Shown("copying", 100, 50, 5.0, 10.0)
    assert (
        waiting.summary({"a-0": done, "a-1": slow, "a-2": Shown("queued", 100), "a-3": slow})
        == "1 of 4 done: 2 copying, 1 queued; 200 B of 400 B, 10 B/s, time to go unknown"
    )
    assert waiting.summary({"a-0": done, "a-1": slow}).endswith(
        "1 of 2 done: copying; 150 B of 200 B, 5 B/s, 10 s to go"
    )


def test_time_to_go_of_a_bar_is_the_nodes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Rich would measure 900 kB in a moment, and show that no time is left."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    with Bars() as bars:
        bars.show("orders-0", Shown("copying", 1_000_000, 0, 1_000.0, 7390.0))
        bars.show("orders-0", Shown("copying", 1_000_000, 900_000, 1_000.0, 7290.0))
    shown = capsys.readouterr().err
    assert "2:01:30 h" in shown and "1.0 kB/s" in shown
