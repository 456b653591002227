"""Asking the controller from a thread: its calls are coroutines of the listener's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Final, TypeVar

from storage_node.errors import RequestTimedOut
from storage_node.ports import Controller

if TYPE_CHECKING:
    from storage_node.node import Node

T = TypeVar("T")

#: Seconds until a question that a node asks by itself is given up.
ASK_TIMEOUT: Final = 10.0
_LOOK: Final = 0.2  # seconds until a stop is noticed


def ask_controller(
    node: Node, call: Callable[[Controller], Coroutine[Any, Any, T]], stopping: threading.Event
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
