"""What a plan responds to `progress`, for tests of its readers."""

from __future__ import annotations

from typing import Any

from workflows.model.plans.options import PlanOptions
from workflows.model.plans.running.calls import PlanCheck
from workflows.model.plans.running.plan_results import OpenLane, OptionsRow, PlanProgress


def plan_progress(now: float, **changes: Any) -> PlanProgress:
    """A plan of nine moves that has moved for 50 seconds, with one lane under way, and other values in some fields."""
    values: dict[str, Any] = {
        "phase": "moving", "bytes_total": 1000, "bytes_copied": 250, "read_at": now - 4, "started": now - 60,
        "moves": 9, "lanes": 3, "in_place": 0, "lanes_left": 0, "outcomes": {"moved": 2}, "adaptive": None,
        "warning": "",
        "lanes_running": [OpenLane(1, ["orders-1@3"])], "options": OptionsRow.of(PlanOptions()),
        "check": PlanCheck("k", seconds_low=100.0, seconds_high=200.0), "phases": [("moving", now - 50, None)],
        **dict.fromkeys(("paused", "cancelling", "rolling_back"), False),
        **{name: [] for name in ("reasons", "changes", "stalled", "failures", "skipped", "approvals")},
    }  # fmt: skip
    return PlanProgress("prod/plan/july", **(values | changes))
