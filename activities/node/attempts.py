"""A journal of the node's running activity attempts, so that its next incarnation can end them at once.

After a kill the server waits for an attempt's timeout before it starts the next one; a node that fails its own dead
attempts at its start gets the next one within a second. The journal is a hint: its loss only costs that wait. So it is
appended without a flush, which survives the death of the process, and read leniently.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
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

from activities.temporal.describing import describe_run
from storage_node.model.error_types import ErrorType

log = logging.getLogger(__name__)

FILE = "activity-attempts"
COMPACT_BYTES = 256 * 1024  # above this the file is rewritten with the running attempts only
AT_ONCE = 16  # failures sent to the server at the same time
#: Seconds in which the result of an activity that has returned reaches the server; a node that is killed meanwhile
#: loses it, and the server would wait for the attempt's timeout. Failing a closed attempt is harmless.
IN_FLIGHT = 5.0
CLOSING = 2.0  # seconds for each disk to write the rest at a stop


@dataclass(frozen=True, order=True, slots=True)
class Attempt:
    """One running attempt; the server identifies it by workflow id, run id and activity id."""

    workflow_id: str
    run_id: str
    activity_id: str


def parse(lines: Iterable[str]) -> frozenset[Attempt]:
    """Return the attempts that began and did not end; torn or foreign lines are skipped."""
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
    """The journal of one node: a file in each of its directories. Callers never wait for a disk.

    Each file has a thread of its own, and what any file has counts, since failing a closed attempt is harmless: neither
    a disk that hangs nor one that is gone takes the journal away.
    """

    def __init__(self, directories: Callable[[], Sequence[Path]], clock: Callable[[], float] = time.monotonic) -> None:
        """Use the files in these directories, which may be other ones later; `clock` returns seconds."""
        self._directories = directories
        self._clock = clock
        self._open: set[Attempt] = set()
        self._returned: dict[Attempt, float] = {}
        """Attempts whose results are in flight, and since when; only the writer's thread uses it."""
        self._files: dict[Path, _JournalFile] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="attempts")

    def left_behind(self) -> frozenset[Attempt]:
        """Return the attempts that the last incarnation left running; call it before any attempt begins."""
        found: set[Attempt] = set()
        for directory in self._directories():
            with contextlib.suppress(OSError):
                found |= parse((directory / FILE).read_text(errors="replace").splitlines())
        self._open |= found
        return frozenset(found)

    def began(self, attempt: Attempt) -> None:
        """Note that the attempt runs, perhaps again."""
        self._writer.submit(self._began, attempt)

    def returned(self, attempt: Attempt) -> None:
        """Note that the attempt has returned; the server may not have its result yet."""
        self._writer.submit(self._note_returned, attempt)

    def ended(self, attempt: Attempt) -> None:
        """Note that the server has closed the attempt."""
        self._writer.submit(self._note, "-", attempt)

    def close(self) -> None:
        """Wait until everything is written, except by a disk that hangs. Call it after the worker has stopped, when no
        result is in flight.
        """
        self._writer.submit(self._arrived, float("inf"))
        self._writer.shutdown(wait=True)
        for file in self._files.values():
            file.close(CLOSING)

    def _began(self, attempt: Attempt) -> None:
        self._returned.pop(attempt, None)
        self._note("+", attempt)
        self._arrived(self._clock() - IN_FLIGHT)

    def _note_returned(self, attempt: Attempt) -> None:
        self._returned[attempt] = self._clock()
        self._arrived(self._clock() - IN_FLIGHT)

    def _arrived(self, until: float) -> None:
        """Note that the server has the results of attempts that returned until then."""
        for attempt in [attempt for attempt, when in self._returned.items() if when <= until]:
            del self._returned[attempt]
            self._note("-", attempt)

    def _note(self, sign: str, attempt: Attempt) -> None:
        (self._open.add if sign == "+" else self._open.discard)(attempt)
        directories = self._directories()
        for gone in self._files.keys() - set(directories):
            self._files.pop(gone).close(0)
        for directory in directories:
            if directory not in self._files:
                self._files[directory] = _JournalFile(directory / FILE)
            self._files[directory].note(sign, attempt, self._open)


class _JournalFile:
    """The journal's file in one directory, written by a thread of its own; its loss is logged and nothing more."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._valid = False
        """Whether the file has all that was noted, once what is queued has been written."""
        self._file: int | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="attempts-file")

    def note(self, sign: str, attempt: Attempt, running: Collection[Attempt]) -> None:
        """Append a line, or rewrite the file with the attempts that are running."""
        if self._valid and self._size <= COMPACT_BYTES:
            data = _line(sign, attempt)
            self._size += len(data)
            self._writer.submit(self._guarded, self._append, data)
            return
        data = b"".join(_line("+", each) for each in sorted(running))
        self._size, self._valid = len(data), True
        self._writer.submit(self._guarded, self._rewrite, data)

    def close(self, seconds: float) -> None:
        """Close the file once everything is written; wait for that for at most `seconds`."""
        closed = self._writer.submit(self._close)
        self._writer.shutdown(wait=False)
        with contextlib.suppress(TimeoutError):
            closed.result(seconds)

    def _guarded(self, write: Callable[[bytes], None], data: bytes) -> None:
        try:
            write(data)
        except OSError as error:
            log.warning("the journal %s cannot be written: a restart may wait for attempts' timeouts: %s", FILE, error)
            self._close()
            self._valid = False

    def _rewrite(self, data: bytes) -> None:
        temporary = self._path.with_suffix(".tmp")
        new = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._close()
        self._file = new
        self._append(data)
        temporary.replace(self._path)

    def _append(self, data: bytes) -> None:
        if self._file is not None:  # else the next note rewrites the file
            os.write(self._file, data)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _line(sign: str, one: Attempt) -> bytes:
    return (json.dumps([sign, one.workflow_id, one.run_id, one.activity_id]) + "\n").encode()


class JournalInterceptor(Interceptor):
    """Notes every activity attempt of a Worker in the journal."""

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
    """Return a workflow's attempts that the server has given to workers whose identity begins with `worker`.

    The journal may lack some of them: attempts, or their results, that were in flight when the worker was killed.
    Raises RPCError if the server is unavailable.
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
    """Fail the attempts that the last incarnation left running; return how many were still open on the server.

    Attempts that do not exist, have timed out or are closed are skipped. Raises RPCError if the server is unavailable.
    """
    gate = asyncio.Semaphore(AT_ONCE)

    async def fail(attempt: Attempt) -> bool:
        async with gate:
            handle = client.get_async_activity_handle(
                workflow_id=attempt.workflow_id, run_id=attempt.run_id, activity_id=attempt.activity_id
            )
            error = ApplicationError("the node was restarted while this attempt ran", type=ErrorType.NODE_RESTARTED)
            try:
                await handle.fail(error, rpc_timeout=timedelta(seconds=5))
            except RPCError as rejected:
                if rejected.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
                    raise
                journal.ended(attempt)
                return False
            journal.ended(attempt)
            return True

    return sum(await asyncio.gather(*(fail(attempt) for attempt in dead)))
