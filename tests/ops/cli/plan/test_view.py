"""What people read of a plan's progress and result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console, RenderableType

from ops.cli.plan import view
from tests.support.plan_progress import plan_progress
from workflows.model.plans.adaptive import Decision
from workflows.model.plans.running.calls import DiskRow, PlanCheck, PlanMoveRow, VerifyResult
from workflows.model.plans.running.plan_results import PlanResult

NOW = 1_000.0
ROW = PlanMoveRow("orders-1@3", "failed", reason="broker 3 does not respond")


def text(*parts: RenderableType) -> str:
    console = Console(width=120)
    with console.capture() as found:
        for each in parts:
            console.print(each)
    return found.get()


def test_progress_has_moves_bytes_and_the_time_left() -> None:
    shown = text(view.shown(plan_progress(NOW), NOW))
    assert "prod/plan/july: moving\n" in shown
    assert "2 of 9 moves ended (2 moved); 250 B of 1.0 kB, 25%; about 2:30 min left at 5 B/s" in shown
    assert "orders-1@3" in shown


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
    assert line in text(view.shown(plan_progress(NOW, **changes), NOW))


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
