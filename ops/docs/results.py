"""Print the reference of what runs return: `python -m ops.docs.results > ops/docs/results.md`."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import ModuleType

from workflows.model import calls, names, reports, run_progress, run_results, versioned
from workflows.model.plans import adaptive
from workflows.model.plans.running import calls as plan_calls
from workflows.model.plans.running import keeper_results, plan_results
from workflows.model.run_progress import ClusterDescription
from workflows.model.versioned import FORMAT_VERSION, Versioned

_HEAD = f"""# Results of runs

What `temporal workflow result`, `query` and `update` print, and what histories hold. The page is printed from
`workflows/model/run_results.py`, `workflows/model/run_progress.py`, `workflows/model/reports.py` and
`workflows/model/calls.py`, and of plans from `plan_results.py`, `keeper_results.py` and `calls.py` in
`workflows/model/plans/running/`, by `python -m ops.docs.results > ops/docs/results.md`.

Times are epoch seconds, durations seconds, sizes bytes, rates bytes per second. Each result and each response has a
`format_version`, now {FORMAT_VERSION}: it rises when a field is removed or changes its meaning. A reader ignores fields
that it does not know. A run that fails has its result in the failure's details, a plan that is refused all reasons.
"""


@dataclass(frozen=True, slots=True)
class Returned:
    """What a workflow returns for one request: its result, or the response to a query or an update."""

    workflow: str
    request: str
    kind: type[Versioned]


RETURNED = (
    Returned(names.MOVE_REPLICA, "result", run_results.MoveRunResult),
    Returned(names.MOVE_REPLICA, "query `progress`", run_progress.MoveProgress),
    Returned(names.MOVE_REPLICA, "update `pause`", run_results.Paused),
    Returned(names.MOVE_REPLICA, "update `resume`", run_results.Paused),
    Returned(names.MOVE_REPLICA, "update `set_throttle`", run_results.Throttle),
    Returned(names.MOVE_REPLICA, "update `set_target`", run_results.Retargeted),
    Returned(names.MOVE_REPLICA, "update `drop`", run_results.Dropped),
    Returned(names.PARTITION_REASSIGNMENT, "result", run_results.ReassignmentRunResult),
    Returned(names.PARTITION_REASSIGNMENT, "query `progress`", run_progress.ReassignmentProgress),
    Returned(names.PARTITION_REASSIGNMENT, "update `pause`", run_results.Paused),
    Returned(names.PARTITION_REASSIGNMENT, "update `resume`", run_results.Paused),
    Returned(names.PARTITION_REASSIGNMENT, "update `set_throttle`", run_results.Throttle),
    Returned(names.THROTTLE_LEASE, "result", run_results.ThrottleLeaseResult),
    Returned(names.THROTTLE_LEASE, "query `progress`", run_progress.ThrottleLeaseProgress),
    Returned(names.THROTTLE_LEASE, "update `held`", run_results.ThrottleHeld),
    Returned(names.DIRECTORY_FAILURE, "result", run_results.DirectoryFailureResult),
    Returned(names.DIRECTORY_FAILURE, "query `progress`", run_progress.DirectoryFailureProgress),
    Returned(names.EXPORT_HISTORY, "result", calls.ExportResult),
    Returned(names.NODE_LEASE, "result", run_results.NodeLeaseResult),
    Returned(names.CLUSTER, "query `describe`", ClusterDescription),
    Returned(names.CLUSTER, "update `recover_without`", ClusterDescription),
    Returned(names.REASSIGNMENT_PLAN, "result", plan_results.PlanResult),
    Returned(names.REASSIGNMENT_PLAN, "query `progress`", plan_results.PlanProgress),
    Returned(names.REASSIGNMENT_PLAN, "update `pause`", plan_results.PlanPaused),
    Returned(names.REASSIGNMENT_PLAN, "update `resume`", run_results.Paused),
    Returned(names.REASSIGNMENT_PLAN, "update `cancel`", plan_results.PlanCancelling),
    Returned(names.REASSIGNMENT_PLAN, "update `approve`", plan_results.PlanApproved),
    Returned(names.REASSIGNMENT_PLAN, "update `set_options`", plan_results.PlanOptionsSet),
    Returned(names.REASSIGNMENT_PLAN, "update `set_throttle`", plan_results.PlanOptionsSet),
    Returned(names.REASSIGNMENT_PLAN, "update `set_slots`", plan_results.PlanOptionsSet),
    Returned(names.REASSIGNMENT_PLAN, "update `skip`", plan_results.PlanSkipped),
    Returned(names.REASSIGNMENT_PLAN, "update `retry`", plan_results.PlanRetried),
    Returned(names.PLAN_LANE, "result", plan_results.LaneResult),
    Returned(names.PLAN_LANE, "query `progress`", plan_results.LaneProgress),
    Returned(names.EVACUATE_DIRECTORY, "result", plan_results.EvacuationResult),
    Returned(names.EVACUATE_DIRECTORY, "query `progress`", plan_results.EvacuationProgress),
    Returned(names.PLAN_ALERT, "result", plan_results.AlertResult),
    Returned(names.THROTTLE_KEEPER, "result", keeper_results.KeeperResult),
    Returned(names.THROTTLE_KEEPER, "query `progress`", keeper_results.ThrottleKeeperProgress),
    Returned(names.THROTTLE_KEEPER, "update `hold`", keeper_results.ThrottlesApplied),
    Returned(names.THROTTLE_KEEPER, "update `release`", keeper_results.ThrottlesApplied),
    Returned(names.THROTTLE_KEEPER, "update `forget`", keeper_results.ThrottlesForgotten),
    Returned(names.SLOT_KEEPER, "result", keeper_results.KeeperResult),
    Returned(names.SLOT_KEEPER, "query `progress`", keeper_results.SlotKeeperProgress),
    Returned(names.SLOT_KEEPER, "update `share`", keeper_results.SlotGrant),
    Returned(names.SLOT_KEEPER, "update `release`", keeper_results.SlotsReleased),
)
#: The rows of heartbeats and of the signal `copy_progress`.
REPORTED = (reports.LiveMoveRow, reports.MoveReport, reports.ReplicaReport)
#: Whose classes the page may show; no two of them have a class of the same name.
MODULES = (versioned, calls, run_results, run_progress, reports, adaptive, plan_calls, plan_results, keeper_results)


def kinds() -> tuple[type, ...]:
    """Return all classes of the page, each before the first class that has it as a field's type."""
    found: dict[type, None] = {}
    for kind in (*(each.kind for each in RETURNED), *REPORTED):
        _collect(kind, found)
    return tuple(found)


def _collect(kind: type, found: dict[type, None]) -> None:
    for each in fields(kind):
        for name in _classes():
            if name in str(each.type).replace("[", " ").replace("]", " ").split():
                _collect(_classes()[name], found)
    found.setdefault(kind)


def _classes() -> dict[str, type]:
    return {
        name: value
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }


def meanings(kind: type) -> dict[str, str]:
    """Return the comment beside each field of a class and of its bases, "" without one."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        module = sys.modules.get(base.__module__)
        if module in MODULES:
            found |= _comments(module, base.__name__)
    return found


def _comments(module: ModuleType, name: str) -> dict[str, str]:
    source = inspect.getsource(module)
    lines = source.splitlines()
    (body,) = (each.body for each in ast.parse(source).body if isinstance(each, ast.ClassDef) and each.name == name)
    found: dict[str, str] = {}
    for each in body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            _, _, comment = lines[(each.end_lineno or each.lineno) - 1].partition("  # ")
            found[each.target.id] = comment.replace("None", "null")
    return found


def _requests() -> Iterator[str]:
    yield "| workflow | request | returns |"
    yield "|---|---|---|"
    for each in RETURNED:
        yield f"| {each.workflow} | {each.request} | [{each.kind.__name__}](#{each.kind.__name__.lower()}) |"


def _table(kind: type) -> Iterator[str]:
    summary = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    yield f"### {kind.__name__}"
    yield ""
    yield summary
    yield ""
    yield "| field | type | meaning |"
    yield "|---|---|---|"
    known = meanings(kind)
    for each in fields(kind):
        shown = str(each.type).replace(" | None", " or null").replace("|", "\\|")
        yield f"| {each.name} | {shown} | {known[each.name]} |"


def page() -> str:
    """Return the whole page."""
    span = "A `Span` is a list: the name of a phase, its begin, and its end, null for the current phase."
    parts = [_HEAD, *("\n".join(lines) + "\n" for lines in (_requests(), [span], *map(_table, kinds())))]
    return "\n".join(parts).replace(f"{span}\n", f"{span}\n\n## Fields\n", 1)


if __name__ == "__main__":
    sys.stdout.write(page())
