"""What an activity that takes long tells its run meanwhile: how often, and how."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from temporalio import activity

log = logging.getLogger(__name__)

LEAST = 10.0  # seconds between two reports to the run, at least
SHARE = 0.05  # and at least this share of the time the step has taken


def pause(taken: float) -> float:
    """Seconds until the next report of a step that has taken so many."""
    return max(LEAST, SHARE * taken)


async def tell(rows: list[dict[str, Any]], patience: float) -> None:
    """Tell the run how far its replicas are; a report that does not arrive in so many seconds is not missed."""
    info = activity.info()
    handle = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    try:
        await asyncio.wait_for(handle.signal("copy_progress", rows), patience)
    except Exception as error:
        log.debug("a report of progress did not arrive: %s", error)
