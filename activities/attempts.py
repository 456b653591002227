"""Which activity attempts this node has running, on disk, so that its next incarnation can end them at once.

After a kill the server waits for an attempt's timeout before it starts the next one; a node that fails its own dead
attempts at its start has the next one within a second. The journal is a hint: losing it costs that wait, nothing
else. So it is appended to without a flush, which survives the death of the process, and read leniently.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.describing import describe_run
from workflows.errors import NODE_RESTARTED

log = logging.getLogger(__name__)

FILE = "activity-attempts"
COMPACT_BYTES = 256 * 1024  # the file is rewritten with what still runs when it has grown beyond this
AT_ONCE = 16  # failures sent to the server at the same time
#: Seconds in which the result of an activity that has returned reaches the server; a node that is killed meanwhile
#: loses it, and the server would wait for the attempt's timeout. To fail an attempt that is closed is no error.
ON_ITS_WAY = 5.0


@dataclass(frozen=True, order=True, slots=True)
class Attempt:
    """One running attempt: workflow id, run id and activity id name it on the server."""

    workflow_id: str
    run_id: str
    activity_id: str


def parse(lines: Iterable[str]) -> frozenset[Attempt]:
    """The attempts that began and did not end; torn or foreign lines are skipped."""
    open_: set[Attempt] = set()
    for line in lines:
        try:
            sign, *names = json.loads(line)
            attempt = Attempt(*(str(name) for name in names))
        except (ValueError, TypeError):
            continue
        if sign == "+":
            open_.add(attempt)
        else:
            open_.discard(attempt)
    return frozenset(open_)


class AttemptJournal:
    """The journal file of one node. Writing happens on a thread of its own, in order; callers never wait for a disk."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._path = directory / FILE
        self._clock = clock
        self._open: set[Attempt] = set()
        self._returned: dict[Attempt, float] = {}
        """Whose results are on their way, and since when; the writer's thread alone uses it."""
        self._size = 0
        self._file: int | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="attempts")

    def left_behind(self) -> frozenset[Attempt]:
        """What the last incarnation had running; call it before anything begins."""
        try:
            found = parse(self._path.read_text(errors="replace").splitlines())
        except OSError:
            return frozenset()
        self._open |= found
        return found

    def began(self, attempt: Attempt) -> None:
        """The attempt runs, perhaps again."""
        self._writer.submit(self._began, attempt)

    def returned(self, attempt: Attempt) -> None:
        """The attempt has returned here; the server may not know it yet."""
        self._writer.submit(self._note_returned, attempt)

    def ended(self, attempt: Attempt) -> None:
        """The attempt is closed at the server."""
        self._writer.submit(self._note, "-", attempt)

    def close(self) -> None:
        """Wait until everything is written. The worker has stopped: no result is on its way any more."""
        self._writer.submit(self._arrived, float("inf"))
        self._writer.shutdown(wait=True)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _began(self, attempt: Attempt) -> None:
        self._returned.pop(attempt, None)
        self._note("+", attempt)
        self._arrived(self._clock() - ON_ITS_WAY)

    def _note_returned(self, attempt: Attempt) -> None:
        self._returned[attempt] = self._clock()
        self._arrived(self._clock() - ON_ITS_WAY)

    def _arrived(self, until: float) -> None:
        """What had returned by then is at the server."""
        for attempt in [attempt for attempt, when in self._returned.items() if when <= until]:
            del self._returned[attempt]
            self._note("-", attempt)

    def _note(self, sign: str, attempt: Attempt) -> None:
        (self._open.add if sign == "+" else self._open.discard)(attempt)
        try:
            if self._file is None or self._size > COMPACT_BYTES:
                self._rewrite()
            else:
                self._append([(sign, attempt)])
        except OSError as error:
            log.warning("the journal of running activities cannot be written: %s", error)
            if self._file is not None:
                os.close(self._file)
            self._file = None

    def _rewrite(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        new = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        old, self._file, self._size = self._file, new, 0
        if old is not None:
            os.close(old)
        self._append([("+", attempt) for attempt in sorted(self._open)])
        temporary.replace(self._path)

    def _append(self, notes: Iterable[tuple[str, Attempt]]) -> None:
        assert self._file is not None
        text = "".join(json.dumps([sign, a.workflow_id, a.run_id, a.activity_id]) + "\n" for sign, a in notes)
        self._size += os.write(self._file, text.encode())


class JournalInterceptor(Interceptor):
    """Writes every activity attempt of a Worker to the journal."""

    def __init__(self, journal: AttemptJournal) -> None:
        self._journal = journal

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Noting(next, self._journal)


class _Noting(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, journal: AttemptJournal) -> None:
        super().__init__(next)
        self._journal = journal

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        attempt = Attempt(info.workflow_id or "", info.workflow_run_id or "", info.activity_id)
        self._journal.began(attempt)
        try:
            return await self.next.execute_activity(input)
        finally:
            self._journal.returned(attempt)


async def started_by(client: Client, workflow_id: str, worker: str) -> frozenset[Attempt]:
    """What workers whose identity begins with `worker` have under way of a workflow, as the server sees it.

    More than a journal has: also what was on its way to the worker, or its result on its way back, when it was killed.
    Raises RPCError when the server cannot be reached.
    """
    described = await describe_run(client, workflow_id, timeout=timedelta(seconds=5))
    if described is None:
        return frozenset()
    return frozenset(
        Attempt(workflow_id, described.run_id, pending.activity_id)
        for pending in described.raw.pending_activities
        if pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        and pending.last_worker_identity.startswith(worker)
    )


async def fail_dead_attempts(client: Client, dead: Iterable[Attempt], journal: AttemptJournal) -> int:
    """Fail what the last incarnation left running; answers how many were still open on the server.

    An attempt that is gone, timed out or closed is no error. Raises RPCError when the server cannot be reached.
    """
    gate = asyncio.Semaphore(AT_ONCE)

    async def fail(attempt: Attempt) -> bool:
        async with gate:
            handle = client.get_async_activity_handle(
                workflow_id=attempt.workflow_id, run_id=attempt.run_id, activity_id=attempt.activity_id
            )
            error = ApplicationError("the node was restarted while this attempt ran", type=NODE_RESTARTED)
            try:
                await handle.fail(error, rpc_timeout=timedelta(seconds=5))
            except RPCError as refused:
                if refused.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
                    raise
                journal.ended(attempt)
                return False
            journal.ended(attempt)
            return True

    return sum(await asyncio.gather(*(fail(attempt) for attempt in dead)))
