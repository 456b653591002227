"""Commands to the `Cluster` workflow in batches: one update under way per node, what waits goes into the next.

Temporal refuses more than ten updates under way per workflow, and an update costs the same for one command as for a
hundred. A caller that gives up (its request's timeout is over) leaves the batch; a batch under way is never sent a
second time beside itself, and one that met an error is sent again under the same number for as long as a caller waits
for it. By the number the controller recognizes it, and rejects an earlier one that comes too late.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

MAX_COMMANDS = 500  # in one update
FIRST_PAUSE = 0.1  # seconds before a failed update is sent again
LONGEST_PAUSE = 2.0

#: The numbers of this process's batches: they rise for as long as a node's incarnation lasts, whatever is restarted
#: within it.
_numbers = itertools.count(1)

Command = dict[str, Any]
Answer = dict[str, Any]


class Rejected(Exception):
    """The controller understood the update and refused it; sending it again would not help."""


class GaveUp(TimeoutError):
    """No answer within the caller's time. A command that was `sent` may be carried out nevertheless; one that was not
    never is.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(slots=True)
class _Waiting:
    command: Command
    answer: asyncio.Future[Answer]
    sent: bool = False


class Batcher:
    """Lives on one event loop. `send(number, commands)` returns one result per command, or raises."""

    def __init__(self, send: Callable[[int, list[Command]], Awaitable[list[Answer]]]) -> None:
        self._send = send
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()

    async def submit(self, command: Command, seconds: float | None, *, first: bool = False) -> Answer:
        """The controller's result for one command; `first` puts it before all that waits.

        Raises GaveUp after `seconds` (None: never) and Rejected.
        """
        waiting = _Waiting(command, asyncio.get_running_loop().create_future())
        if first:
            self._waiting.appendleft(waiting)
        else:
            self._waiting.append(waiting)
        self._wake.set()
        try:
            # (Before Python 3.12 `wait_for` loses a cancel that comes together with the answer.)
            async with asyncio.timeout(seconds):
                return await waiting.answer
        except TimeoutError:
            # What was never in a batch stays out of those to come: nobody waits for it.
            raise GaveUp(f"the controller did not answer within {seconds or 0:.1f} s", sent=waiting.sent) from None

    async def run(self) -> None:
        """Send batches, one after the other, until cancelled. To be run again if it fails: what waits is sent then."""
        if self._waiting:
            self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._take():
                try:
                    await self._deliver(batch)
                except BaseException as error:
                    # Under way or not: with another update id it might be carried out twice, so it is not sent again.
                    _settle(batch, GaveUp(f"the update ended without a result ({error!r})", sent=True))
                    raise

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < MAX_COMMANDS:
            waiting = self._waiting.popleft()
            if not waiting.answer.done():
                waiting.sent = True
                batch.append(waiting)
        return batch

    async def _deliver(self, batch: list[_Waiting]) -> None:
        number, pause = next(_numbers), FIRST_PAUSE
        while True:
            try:
                answers = await self._send(number, [waiting.command for waiting in batch])
            except Rejected as refused:
                _settle(batch, refused)
                return
            except Exception as error:  # the connection, the server, the controller: whatever it is, ask again
                if all(waiting.answer.done() for waiting in batch):
                    return
                log.info("an update of the controller failed, sending it again: %s", error)
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, pause * 1.6)
                if all(waiting.answer.done() for waiting in batch):
                    return
                continue
            if len(answers) != len(batch):
                _settle(batch, Rejected(f"{len(answers)} results for {len(batch)} commands"))
                return
            for waiting, answer in zip(batch, answers, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)
            return


def _settle(batch: list[_Waiting], error: Exception) -> None:
    for waiting in batch:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)
