"""Follows a plan until it ends."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from rich.console import RenderableType
from rich.live import Live
from temporalio.client import Client

from activities.temporal import describing
from ops.cli import output, waits
from ops.cli.moves.runs import Session
from ops.cli.plan import runs, view
from ops.cli.plan.figures import figures_of
from ops.cli.target import Target
from ops.stack.errors import OpsError
from workflows.model.phases import ENDED
from workflows.model.plans.running.plan_results import PlanOutcome, PlanProgress
from workflows.model.plans.under_way import LaneReport

#: Seconds between two queries.
LOOK = 1.0
#: Seconds between two reads of what the lanes report: their steps heartbeat as often.
REPORTS = 3.0


def until_ended(target: Target, workflow_id: str, json: bool) -> None:
    """Show progress until the plan ends; raise `OpsError` unless all its moves reached their targets."""
    with Session(target) as session:
        _follow(session, workflow_id, json)
        result = session.run(lambda client: runs.result(client, workflow_id))
    if json:
        output.print_json(asdict(result))
    else:
        for line in view.ended(result):
            output.console().print(line)
    if result.outcome != PlanOutcome.DONE:
        raise OpsError(f"the plan {workflow_id} ended as {result.outcome.replace('_', ' ')}")


def _follow(session: Session, workflow_id: str, json: bool) -> None:
    screen = output.progress_console()
    due = waits.Due()
    begun, lanes = False, _Lanes(session)
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        while True:
            progress = session.run(lambda client: runs.progress(client, workflow_id))
            if progress is not None:
                if screen.is_terminal and not json:
                    live.update(lanes.shown(progress), refresh=True)
                elif not begun or due():
                    due.printed()
                    screen.print(lanes.shown(progress))
                begun = True
                if progress.phase == ENDED:
                    return
            elif due():
                output.say(runs.silent(workflow_id))
            ended: Callable[[Client], Awaitable[bool]] = lambda client: _ended(client, workflow_id)  # noqa: E731
            if session.run(ended):
                return
            time.sleep(LOOK)


class _Lanes:
    """What the lanes under way report, read no more often than they report it."""

    def __init__(self, session: Session) -> None:
        self._session, self._read_again, self._reports = session, float("-inf"), dict[int, LaneReport]()

    def shown(self, progress: PlanProgress) -> RenderableType:
        """Return a plan's progress with the figures of its moves under way."""
        if time.monotonic() >= self._read_again:
            numbers = [lane.lane for lane in progress.lanes_running]
            self._reports = self._session.run(lambda client: runs.lanes(client, progress.workflow_id, numbers))
            self._read_again = time.monotonic() + REPORTS
        open_now = {lane.lane for lane in progress.lanes_running}
        reports = {number: each for number, each in self._reports.items() if number in open_now}
        return view.shown(progress, figures_of(progress, reports, time.time()), time.time())


async def _ended(client: Client, workflow_id: str) -> bool:
    run = await describing.describe_run(client, workflow_id)
    return run is None or run.ended is not None
