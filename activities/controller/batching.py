"""Commands to the `Cluster` workflow in batches: one update in flight per node, waiting commands go into the next.

Temporal rejects more than ten updates in flight per workflow, and an update costs the same for one command as for a
hundred. A caller that gives up (its request has timed out) leaves the batch. A batch is never in flight twice; one that
failed is sent again under the same number while a caller waits for it. By the number the controller recognizes a
repeated batch, and rejects an earlier one that arrives late.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from storage_node.model.commands import Command

log = logging.getLogger(__name__)

MAX_COMMANDS = 500  # in one update
FIRST_PAUSE = 0.1  # seconds before a failed update is sent again
LONGEST_PAUSE = 2.0

#: The numbers of this process's batches: they increase during a node's incarnation, whichever parts are restarted.
_numbers = itertools.count(1)

Reply = dict[str, Any]


class Rejected(Exception):
    """The controller rejected the update, and would reject it again."""


class GaveUp(TimeoutError):
    """No response within the caller's timeout. A command that was `sent` may still be applied; another one never is."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(slots=True)
class _Waiting:
    command: Command
    reply: asyncio.Future[Reply]
    sent: bool = False


class Batcher:
    """Batches commands on one event loop. `send(number, commands)` returns one result per command, or raises."""

    def __init__(self, send: Callable[[int, list[Command]], Awaitable[list[Reply]]]) -> None:
        self._send = send
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()

    async def submit(self, command: Command, seconds: float | None, *, first: bool = False) -> Reply:
        """Return the controller's result for one command; `first` puts it before all waiting ones.

        Raises GaveUp after `seconds` (None: never) and Rejected.
        """
        waiting = _Waiting(command, asyncio.get_running_loop().create_future())
        if first:
            self._waiting.appendleft(waiting)
        else:
            self._waiting.append(waiting)
        self._wake.set()
        try:
            # Before Python 3.12 `wait_for` loses a cancel that arrives together with the response.
            async with asyncio.timeout(seconds):
                return await waiting.reply
        except TimeoutError:
            # A command that was not sent yet is left out of later batches, since its caller no longer waits.
            raise GaveUp(f"the controller did not respond within {seconds or 0:.1f} s", sent=waiting.sent) from None

    async def run(self) -> None:
        """Send batches, one after the other, until cancelled. Run it again if it fails, to send waiting commands."""
        if self._waiting:
            self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._take():
                try:
                    await self._deliver(batch)
                except BaseException as error:
                    # The batch is not sent again: under another update id it might be applied twice.
                    _fail(batch, GaveUp(f"the update ended without a result ({error!r})", sent=True))
                    raise

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < MAX_COMMANDS:
            waiting = self._waiting.popleft()
            if not waiting.reply.done():
                waiting.sent = True
                batch.append(waiting)
        return batch

    async def _deliver(self, batch: list[_Waiting]) -> None:
        number, pause = next(_numbers), FIRST_PAUSE
        while True:
            try:
                replies = await self._send(number, [waiting.command for waiting in batch])
            except Rejected as rejected:
                _fail(batch, rejected)
                return
            except Exception as error:  # The connection, the server or the controller failed: send it again.
                if all(waiting.reply.done() for waiting in batch):
                    return
                log.info("an update to the controller failed, sending it again: %s", error)
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, pause * 1.6)
                if all(waiting.reply.done() for waiting in batch):
                    return
                continue
            if len(replies) != len(batch):
                _fail(batch, Rejected(f"the controller returned {len(replies)} results for {len(batch)} commands"))
                return
            for waiting, reply in zip(batch, replies, strict=True):
                if not waiting.reply.done():
                    waiting.reply.set_result(reply)
            return


def _fail(batch: list[_Waiting], error: Exception) -> None:
    for waiting in batch:
        if not waiting.reply.done():
            waiting.reply.set_exception(error)
