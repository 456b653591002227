"""Submits a plan as a run: reads it, compares it with the cluster, and hands it to the workers, inline or by reference.

A small plan travels in the run's parameter. A large one is stored in the folder that the cluster's workers share, and
the parameter has its sha256 alone, which the workers compare with what they read.
"""

from __future__ import annotations

import os
import shlex
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from temporalio.client import Client

from activities.kafka_admin.client_config import ClientConfig
from activities.kafka_admin.pool import AdminPool
from activities.kafka_admin.reader import ClusterReader
from activities.plans.plan_steps import PlanSteps
from activities.plans.store import PlanStore
from activities.temporal import search_attributes
from ops.cli import output
from ops.cli.moves.runs import with_temporal
from ops.cli.plan import following, runs, view
from ops.cli.plan import given as options_given
from ops.cli.plan.kafka import with_pool
from ops.cli.plan.people_files import tolerant
from ops.cli.target import Target
from ops.stack.errors import OpsError, Refused, UsageError
from storage_node.model.fields import BadField
from workflows.model.plans import document
from workflows.model.plans.document import PlanDocument
from workflows.model.plans.running import packing
from workflows.model.plans.running.calls import CheckCall, PlanCheck
from workflows.model.plans.running.plan_results import PlanProgress
from workflows.model.plans.running.run import PlanPhase

#: Bytes of a plan's text above which it is handed over by reference, if the workers' folder is known.
LARGEST_INLINE = 1_000_000
#: Characters of a packed text that a run takes as its parameter: with the rest of it, payloads stay below 200 kB.
LARGEST_PARAMETER = 190_000


def read(file: Path) -> PlanDocument:
    """Read a plan; its SLA counts from now. Raises `UsageError` with the path of the bad field."""
    try:
        found, notes = tolerant(file.read_text(encoding="utf-8-sig"))
        planned = document.read(found)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not valid UTF-8 text"
        raise UsageError(f"cannot read the plan {file}: {reason}", where=str(file)) from error
    except BadField as error:
        raise UsageError(f"the plan {file} is not valid: {error}", where=str(file)) from error
    for note in notes:
        output.warn_once(f"the plan {file} {note}")
    return PlanDocument(planned.partitions, planned.due(time.time()))


def with_options(planned: PlanDocument, given: Mapping[str, Any]) -> PlanDocument:
    """Return the plan with the options of the command line instead of its own. Raises `UsageError`."""
    return PlanDocument(planned.partitions, options_given.read(planned.options.as_json() | dict(given)))


def checked(planned: PlanDocument, config: ClientConfig) -> PlanCheck:
    """Compare a plan with the cluster in this process."""

    async def work(pool: AdminPool) -> PlanCheck:
        with tempfile.TemporaryDirectory(prefix="rehome-plan-") as folder:
            store = PlanStore(Path(folder))
            steps = PlanSteps(ClusterReader(pool), store, _none_closed)
            plan = store.put(document.to_text(planned))
            return (await steps.check(CheckCall("", plan, planned.options.as_json()))).shown

    return with_pool(config, work)


async def _none_closed(_: list[str]) -> list[str]:
    return []


def need_possible(found: PlanCheck, file: Path) -> None:
    """Raise `Refused` with all problems that a check has found."""
    if not found.problem_count:
        return
    listed = found.problems[:20]
    more = found.problem_count - len(listed)
    tail = f"\n  ... and {more} more" if more > 0 else ""
    raise Refused(
        "the cluster cannot carry out the plan, nothing was changed:" + "".join(f"\n  {one}" for one in listed) + tail,
        where=str(file),
    )


def folder_of(target: Target, given: Path | None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder that the workers of plans share: by option, environment or stack; None if it is unknown."""
    if given is not None:
        return given.absolute()
    if named := environment.get("REHOME_PLAN_DIR"):
        return Path(named).absolute()
    return target.stack.plans if target.stack is not None else None


def handed_over(planned: PlanDocument, file: Path, folder: Path | None) -> dict[str, Any]:
    """Return the part of the run's parameter that is the plan: its packed text, or the sha256 of the text that is then
    stored in `folder`.

    Raises `UsageError` for one that is too large for both, `OpsError` if it cannot be stored.
    """
    text = document.to_text(planned)
    packed = packing.pack(text)
    large = len(text.encode()) > LARGEST_INLINE or len(packed) > LARGEST_PARAMETER
    if large and folder is not None:
        return {"plan": _stored(text, folder)}
    if len(packed) > LARGEST_PARAMETER:
        raise UsageError(
            f"the plan {file} is too large for a run's parameter ({len(packed)} bytes packed); pass --plan-dir DIR, "
            "the folder that all workers of the cluster's plans share, or split the plan",
            where=str(file),
        )
    return {"text": packed}


def _stored(text: str, folder: Path) -> str:
    if not folder.is_dir():
        raise OpsError(
            f"the plan cannot be stored: {folder} does not exist; pass --plan-dir DIR, the folder that all workers of "
            "the cluster's plans share",
            where=str(folder),
        )
    store = PlanStore(folder)
    try:
        name = store.put(text)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise OpsError(f"the plan cannot be stored in {folder}: {why}", where=str(folder)) from error
    output.say(f"stored the plan as {store.path(name)}, which the workers read")
    return name


def start(
    target: Target, cluster: str, name: str, planned: PlanDocument, cluster_id: str, given: Mapping[str, Any]
) -> PlanProgress:
    """Start the run of a plan, wait until a worker has compared it with the cluster, and return its progress.

    `given` is what `handed_over` returns. Raises `OpsError`.
    """
    parameter = {
        "version": 1,
        **given,
        "cluster_id": cluster_id,
        "options": planned.options.as_json(),
        "submitted_by": runs.me(),
    }

    async def work(client: Client) -> PlanProgress:
        await search_attributes.register(client)
        workflow_id = await runs.submit(client, cluster, name, parameter)
        return await runs.checked(client, workflow_id, cluster)

    return with_temporal(target, work)


def report(target: Target, name: str, progress: PlanProgress, *, wait: bool, as_json: bool) -> None:
    """Print what was submitted; with `wait` follow it to its end. Raises `OpsError` for a plan that fails."""
    if not as_json:
        if progress.check is not None:
            output.console().print(view.checked(progress.check))
        typer.echo(f"submitted {progress.workflow_id}")
        if progress.check is not None:
            typer.echo(f"the plan that goes back: {progress.check.rollback_path}")
    if wait:
        following.until_ended(target, progress.workflow_id, as_json)
    elif as_json:
        output.print_json({"name": name} | asdict(progress))
    else:
        quoted, waits = shlex.quote(name), progress.phase == PlanPhase.AWAITING_APPROVAL
        approve = f"; it waits for: rehome plan approve {quoted}" if waits else ""
        typer.echo(f"watch it with: rehome plan watch {quoted}; pause, resume or cancel it in the same way{approve}")
