"""Replaying a history to its end, and what it ends in: the metadata of a `Cluster`, the result of any other run.

A replay compares commands alone. What a history ends in is therefore recorded beside it, in ends.json, and compared as
well (record.py writes it; `changed` names the next step where it differs).
"""

from __future__ import annotations

import fcntl
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    Replayer,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

import workflows
from storage_node.model.packing import pack, unpack
from workflows.cluster import Cluster
from workflows.model.metadata import rules
from workflows.model.metadata.state import ClusterState
from workflows.plans.plan_lane import PlanLane
from workflows.plans.reassignment_plan import ReassignmentPlan
from workflows.runner import workflow_runner

HISTORIES = Path(__file__).parents[1] / "golden" / "histories"
ENDS = HISTORIES / "ends.json"

End = dict[str, Any]

CHANGED = """
The history `{name}` ends in something else than when it was recorded, though it replays:
  recorded: {before}
  now:      {now}
A rule under workflows/ changes what a run has decided before. {advice}
"""
RELEASED = """It was released with rules {rules}, so runs that are under way
would get another past, and nodes other metadata than they have applied:
  - a rule of the controller (workflows/model): raise RULES in workflows/model/metadata/rules.py, and keep the old
    rule for `state.rules` below it;
  - a rule of another run: keep the old one for runs that began by it, by `workflow.patched`.
This history and its end stay as they are. Record one by the new rules: python -m tests.golden.histories.record"""
UNRELEASED = """No release has these rules (RELEASED in workflows/model/metadata/rules.py):
if it is intended, record it again with python -m tests.golden.histories.record (the histories and their ends), or with
python -m tests.golden.histories.record --ends where the histories themselves are still right."""


class _Watch(Interceptor):
    """Keeps the run's object, and the result of one that ends."""

    def __init__(self) -> None:
        self.instance: Any = None
        self.end: End = {}

    def workflow_interceptor_class(self, _input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        watch = self

        class Inbound(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                watch.instance = workflow.instance()
                try:
                    result = await super().execute_workflow(input)
                except FailureError as failure:
                    watch.end = {**_failed(failure), **_moves(watch.instance)}
                    raise
                except BaseException as ended:
                    watch.end = {"outcome": type(ended).__name__, **_progress(watch.instance), **_moves(watch.instance)}
                    raise
                watch.end = {"outcome": "completed", "result": _digest(result), **_moves(watch.instance)}
                if isinstance(watch.instance, ReassignmentPlan):
                    watch.end["plan"] = str(result.outcome)
                return result

        return Inbound


def _failed(failure: FailureError) -> End:
    details = {"type": failure.type, "details": list(failure.details)} if isinstance(failure, ApplicationError) else {}
    end = {"outcome": type(failure).__name__, "result": _digest({"message": failure.message, **details})}
    return {**end, **_progress(workflow.instance())}


def _moves(instance: Any) -> End:
    """What became of the moves of a plan or of a lane, by outcome."""
    if isinstance(instance, ReassignmentPlan):
        return {"moves": instance.progress().outcomes}
    if isinstance(instance, PlanLane):
        return {"moves": dict(Counter(row.outcome for row in instance.progress().rows))}
    return {}


def _progress(instance: Any) -> End:
    """Return a digest of the state of a run without a result, except its times, which are those of the query."""
    if isinstance(instance, Cluster) or not hasattr(instance, "progress"):
        return {}
    return {"progress": _digest(_without_times(asdict(instance.progress())))}


def _without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _without_times(each) for key, each in value.items() if each is not None and not isinstance(each, float)
        }
    return [_without_times(each) for each in value] if isinstance(value, list | tuple) else value


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=asdict)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _metadata(cluster: Cluster) -> End:
    """What a controller has decided by the end of its history."""
    known = cluster.describe()
    end: End = {name: getattr(known, name) for name in ("rules", "phase", "generation", "version")}
    if rows := cluster.state():
        state = ClusterState.of(unpack(pack(rows)))
        deleted = _digest([[name, topic_id] for topic_id, name in state.gone.items()])
        end |= {"metadata": state.digest, "next_producer_id": state.next_producer_id, "deleted": deleted}
    return end


async def replay(history: WorkflowHistory) -> End:
    """Replay a history with the code of today; returns what it ends in. Raises where the commands differ."""
    watch = _Watch()
    replayer = Replayer(
        workflows=[*workflows.ALL, *workflows.PLANS], workflow_runner=workflow_runner(), interceptors=[watch]
    )
    await replayer.replay_workflow(history)
    if isinstance(watch.instance, Cluster):
        return _metadata(watch.instance)
    return watch.end


def changed(name: str, before: End, now: End) -> str:
    """What to do about a history that ends in something else; "" for one that does not."""
    if before == {"rules": before["rules"], **now}:
        return ""
    released = before["rules"] <= rules.RELEASED
    advice = RELEASED.format(rules=before["rules"]) if released else UNRELEASED
    return CHANGED.format(name=name, before=json.dumps(before), now=json.dumps(now), advice=advice)


def ends() -> dict[str, End]:
    """What the recorded histories end in, by their names."""
    found: dict[str, End] = json.loads(ENDS.read_text()) if ENDS.exists() else {}
    return found


@contextmanager
def recording() -> Iterator[dict[str, End]]:
    """The recorded ends, to be changed by one process at a time."""
    with (HISTORIES / "record.py").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = ends()
        yield held
        ENDS.write_text(json.dumps(dict(sorted(held.items())), indent=1) + "\n")


def keep(name: str, end: End, *, recorded: bool) -> None:
    """Record what a history ends in: one that was `recorded` now, or the one that is there.

    What a release has promised stays: an older history that ends in something else, by older rules, is kept under
    another name. Raises ValueError for another end by the same rules.
    """
    with recording() as held:
        before = held.get(name)
        rules_then = rules.RULES if recorded or before is None else before["rules"]
        end = {"rules": rules_then, **end}
        if before is not None and before["rules"] <= rules.RELEASED and (problem := changed(name, before, end)):
            if end["rules"] == before["rules"]:
                raise ValueError(problem)
            kept = f"{name}-rules-{before['rules']}"
            held[kept] = before
            (HISTORIES / f"{name}.json.gz").rename(HISTORIES / f"{kept}.json.gz")
        held[name] = end
