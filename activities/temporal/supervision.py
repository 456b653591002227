"""Parts of a process that run for ever: one that fails or ends is restarted after growing pauses, and logged.

A part is any of the loops and workers of a process's Temporal side. A `CancelledError` that comes from within a part,
and a panic of the SDK's core (which is not an `Exception`), would end a task silently; here they count as failures.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol, TypeVar

from temporalio.service import RPCError

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.5  # seconds before a part is restarted; doubles while it fails
LONGEST_PAUSE = 10.0
CALM = 60.0  # seconds after which a part that failed before counts as healthy

REPEAT = 60.0  # seconds until the same line is written again
CHANGED = 10.0  # seconds between two lines that differ only in their details

T = TypeVar("T")


class Observer(Protocol):
    """Is notified when a part of a process starts or fails."""

    def started(self, part: str) -> None:
        """Note that the part runs."""

    def failed(self, part: str, error: BaseException, pause: float) -> None:
        """Note that the part has failed and restarts in `pause` seconds."""


class PartEnded(Exception):
    """A part that runs for ever has returned."""


async def supervise(
    part: str,
    work: Callable[[], Awaitable[object]],
    observer: Observer,
    *,
    pause: float | None = None,
    longest: float | None = None,
) -> NoReturn:
    """Run `work` until this task is cancelled; begin it again whenever it raises or returns.

    The first pause is `pause` seconds; pauses double up to `longest`, and start over after a minute without a failure.
    Only a cancel of this task, `KeyboardInterrupt` and `SystemExit` propagate.
    """
    first = FIRST_PAUSE if pause is None else pause
    most = LONGEST_PAUSE if longest is None else longest
    wait = first
    while True:
        began = time.monotonic()
        observer.started(part)
        error: BaseException
        try:
            await work()
            error = PartEnded("it returned without being cancelled")
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as raised:
            error = innermost(raised)
        if is_being_cancelled():  # `work` may have swallowed the cancel.
            raise asyncio.CancelledError from error
        if time.monotonic() - began >= CALM:
            wait = first
        observer.failed(part, error, wait)
        await asyncio.sleep(wait)
        wait = min(most, wait * 2)


async def until_done(
    what: str,
    attempt: Callable[[], Awaitable[T]],
    *,
    pause: float,
    longest: float,
) -> T:
    """Return the result of the first attempt that does not raise; log each failure, beginning with `what`.

    Pauses grow from `pause` to `longest` seconds. Cancelling this task ends it.
    """
    limit = Repeats()
    while True:
        try:
            return await attempt()
        except RPCError as error:
            log.info("%s, trying again: %s", what, error)
        except (asyncio.CancelledError, Exception) as error:
            if is_being_cancelled():
                raise
            if limit.passes(describe(error), time.monotonic()):
                log.warning("%s, trying again: %s", what, describe(error), exc_info=error)
        await asyncio.sleep(pause)
        pause = min(longest, pause * 1.6)


class Repeats:
    """Limits the lines of a log: one that differs from the last is written, and the same one again after a minute.

    Lines that differ each time, such as those with a request's number, are written every ten seconds at most, unless
    they are of another `kind`.
    """

    def __init__(self) -> None:
        self._kind = self._text = ""
        self._written: float | None = None

    def passes(self, text: str, now: float, kind: str = "") -> bool:
        """Return whether to write the line now; `now` is in seconds of a monotonic clock."""
        age = None if self._written is None else now - self._written
        if age is not None and kind == self._kind and age < (REPEAT if text == self._text else CHANGED):
            return False
        self._kind, self._text, self._written = kind, text, now
        return True

    def reset(self) -> None:
        """Let the next line pass in any case."""
        self._written = None


def innermost(error: BaseException) -> BaseException:
    """Return the first error in a group of errors, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def describe(error: BaseException) -> str:
    """Return an error's type and message in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_being_cancelled() -> bool:
    """Return whether the running task itself was cancelled, so that a `CancelledError` is not another task's."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
