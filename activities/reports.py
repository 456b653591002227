"""Reports of progress from a long activity to its run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from temporalio import activity

from workflows.model.reports import MoveReport, ReplicaReport

log = logging.getLogger(__name__)

LEAST = 10.0  # the minimum of seconds between two reports to the run
SHARE = 0.05  # and their minimum as a share of the time the step has taken


def pause(taken: float) -> float:
    """Return the seconds until the next report of a step that has taken so many."""
    return max(LEAST, SHARE * taken)


async def send(rows: Sequence[MoveReport | ReplicaReport], patience: float) -> None:
    """Signal the progress of its replicas to the run; one that is not accepted within `patience` seconds is dropped."""
    info = activity.info()
    handle = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    try:
        await asyncio.wait_for(handle.signal("copy_progress", list(rows)), patience)
    except Exception as error:
        log.debug("a report of progress was not accepted: %s", error)
