"""What people read of a plan's progress and result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console, RenderableType

from ops.cli.plan import view
from ops.cli.plan.figures import figures_of
from tests.support.plan_progress import plan_progress
from workflows.model.plans.adaptive import Decision
from workflows.model.plans.running.calls import DiskRow, PlanCheck, PlanMoveRow, VerifyResult
from workflows.model.plans.running.plan_results import PlanResult
from workflows.model.plans.under_way import LaneReport, LiveMove
from workflows.model.plans.values import Disk

NOW = 1_000.0
ROW = PlanMoveRow("orders-1@3", "failed", reason="broker 3 does not respond")


def text(*parts: RenderableType) -> str:
    console = Console(width=120)
    with console.capture() as found:
        for each in parts:
            console.print(each)
    return found.get()


def progress_text(*lanes: LaneReport, **changes: Any) -> str:
    """A plan's progress as it is printed; its lanes have the numbers from 1."""
    progress = plan_progress(NOW, **changes)
    return text(view.shown(progress, figures_of(progress, dict(enumerate(lanes, 1)), NOW), NOW))


def test_progress_has_moves_bytes_and_the_time_left() -> None:
    shown = progress_text()
    assert "prod/plan/july: moving\n" in shown
    assert "2 of 9 moves ended (2 moved); 250 B of 1.0 kB, 25.0%; 2:30 min left at 5 B/s, until " in shown
    assert "orders-1@3" in shown


def test_progress_has_the_figures_of_moves_disks_and_brokers() -> None:
    disks = Disk(3, "/a"), Disk(3, "/b")
    move = LiveMove("orders-1@3", "copying", 100, 400, 10.0, 5.0, 20.0, disks[:1], disks[1:])
    shown = progress_text(LaneReport(NOW, (move,)))
    assert "250 B of 1.0 kB, 25.0%; 38 s to 2:30 min left at 5 B/s" in shown
    rows = [line.split() for line in shown.splitlines()]
    figures = ["100", "B", "of", "400", "B", "25.0%", "10", "B/s", "15", "s", "to", "1:00", "min"]
    assert ["orders-1@3", "1", "copying", *figures] in rows
    assert ["3:/a", "1", *figures] in rows and ["3:/b", "1", *figures] in rows
    assert ["3", "1", *figures] in rows


def test_progress_of_empty_replicas_has_no_percent_and_no_time_left() -> None:
    move = LiveMove("orders-1@3", "copying", writes=(Disk(3, "/b"),))
    shown = progress_text(LaneReport(NOW, (move,)), bytes_total=0, bytes_copied=0)
    assert "2 of 9 moves ended (2 moved); 0 B of 0 B; time left unknown" in shown
    assert ["orders-1@3", "1", "copying", *["0", "B", "of", "0", "B", "-", "-", "-"]] in [
        line.split() for line in shown.splitlines()
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"paused": True}, "prod/plan/july: moving (paused)"),
        ({"phase": "rolling_back", "rolling_back": True}, "prod/plan/july: rolling back\n"),
        ({"warning": "the deadline will be missed"}, "the deadline will be missed"),
        ({"adaptive": Decision({"between_brokers": 2_000_000}, why="healthy")}, "between brokers 2.0 MB/s; healthy"),
        ({"changes": ["broker 3 is lost"]}, "changed since the check: broker 3 is lost"),
        ({"reasons": ["a window"]}, "waits: a window"),
        ({"stalled": [ROW]}, "stalled: orders-1@3: broker 3 does not respond"),
        ({"check": PlanCheck("k", rollback_path="/plans/2")}, "the plan that goes back: /plans/2"),
    ],
)
def test_progress_has_a_line_for_what_holds_the_plan(changes: dict[str, Any], line: str) -> None:
    assert line in progress_text(**changes)


def test_check_has_the_disks_of_the_plan() -> None:
    disk = DiskRow(3, "/disks/b", 1_000, 9_000, 3_000, 2_000)
    shown = text(view.checked(PlanCheck("k", 2, 1, 1, 1_000, 1, disks=[disk], seconds_low=60.0, seconds_high=120.0)))
    assert "2 moves in 1 lane, 1.0 kB to copy, 1 leader to move; 1 partition in place already" in shown
    assert "3:/disks/b" in shown and "3.0 kB" in shown


@pytest.mark.parametrize(
    ("verified", "lines"),
    [
        (None, []),
        (VerifyResult(True, 9, path="/plans/3"), ["verified: the cluster is as the plan says; certificate: /plans/3"]),
        (VerifyResult(False, 9, ["t-0 differs"], 1, "/plans/3"), ["verified: 1 difference;", "  t-0 differs"]),
    ],
)
def test_result_has_what_failed_and_the_certificate(verified: VerifyResult | None, lines: Sequence[str]) -> None:
    result = PlanResult("failed", 9, 0, {"moved": 8, "failed": 1}, 1_000, [ROW], [], verified, "2" * 64, [])
    shown = text(*view.ended(result))
    assert "failed: 1 failed, 8 moved; 1.0 kB moved" in shown and "broker 3 does not respond" in shown
    assert all(line in shown for line in lines) and ("verified" in shown) == bool(lines)
