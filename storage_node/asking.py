"""Call the controller from a thread: its calls are coroutines of the listener's loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from typing import Any, Final, Protocol, TypeVar

from storage_node.errors import RequestTimedOut
from storage_node.ports import Controller

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds until a request that a node sends on its own is given up.
ASK_TIMEOUT: Final = 10.0
_LOOK: Final = 0.2  # seconds until a stop is noticed
#: Seconds between two attempts while the controller does not respond: the first pause, and the longest.
SHORTEST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 2.0


class RunsLoop(Protocol):
    """The listener, as those that run coroutines on its loop use it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The listener's loop, None until it runs."""
        ...


class ControllerHost(Protocol):
    """A node with a controller, whose calls run on the listener's loop."""

    @property
    def controller(self) -> Controller | None: ...

    @property
    def listener(self) -> RunsLoop: ...


def ask_controller(
    node: ControllerHost, call: Callable[[Controller], Coroutine[Any, Any, T]], stopping: threading.Event
) -> T | None:
    """Run a coroutine on the listener's loop and wait for it; None without a controller, or a loop yet.

    Raises TimeoutError after ASK_TIMEOUT and a second (which is for a timeout of the call's own), RequestTimedOut once
    `stopping` is set, and what the call raises.
    """
    loop, controller = node.listener.loop, node.controller
    if loop is None or controller is None:
        return None
    future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(call(controller), ASK_TIMEOUT + 1), loop)
    while True:
        done, _ = wait([future], _LOOK)
        if done:
            return future.result()
        if stopping.is_set():
            future.cancel()
            raise RequestTimedOut("the node stops")


class Backoff:
    """The growing pause between attempts while the controller does not respond."""

    def __init__(self) -> None:
        self._pause = 0.0

    def failed(self) -> float:
        """Note a failed attempt; return the seconds until the next one."""
        self._pause = min(max(2 * self._pause, SHORTEST_PAUSE), LONGEST_PAUSE)
        return self._pause

    def succeeded(self) -> None:
        """Note a response: the next failure is followed by the shortest pause."""
        self._pause = 0.0


class ReportingThread:
    """A thread that sends to the controller whatever has changed, from `start` to `stop`. Thread-safe.

    It calls `turn` at its start, whenever it is woken, and after the seconds that the last turn returned. A wake during
    a turn is followed by another turn, so that a turn only has to compare, and nothing is queued.
    """

    def __init__(self, node: ControllerHost, name: str, turn: Callable[[], float]) -> None:
        self._node, self._name, self._turn = node, name, turn
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def stopping(self) -> bool:
        """Whether no other request must begin."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the request under way, and the thread."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(ASK_TIMEOUT + 5)
            self._thread = None

    def wake(self) -> None:
        """Take a turn soon."""
        self._wake.set()

    def linger(self, seconds: float) -> None:
        """Wait in a turn for more changes, which then share a request; a stop ends the wait."""
        self._stopping.wait(seconds)

    def ask(self, call: Callable[[Controller], Coroutine[Any, Any, T]]) -> T | None:
        """See `ask_controller`; a stop ends the wait with RequestTimedOut."""
        return ask_controller(self._node, call, self._stopping)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                pause = self._turn()
            except Exception:
                log.exception("a turn of the thread %s failed; it is repeated", self._name)
                pause = LONGEST_PAUSE
            self._wake.wait(pause)
            self._wake.clear()
