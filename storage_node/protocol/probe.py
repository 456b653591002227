"""An instrument, off unless asked for: the longest callback of the listener's loop.

REHOME_LOOP_PROBE names a file; the node then times everything that runs on the loop (the steps of tasks, timers, what
other threads hand over, and the callbacks of connections) and writes the longest ones there, about once a second, as
JSON: {"callbacks": how many, "cpu": {...}, "wall": {...}} with the seconds of the longest by its thread's CPU time and
by the clock on the wall, and what it was. Waiting for the interpreter's lock is no CPU time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from typing import Any

import uvloop

from storage_node.protocol.framing import Connection

ENVIRONMENT = "REHOME_LOOP_PROBE"
INTERVAL = 1.0


class LoopProbe:
    """What was the longest so far; `run` is called on the loop's thread only."""

    def __init__(self) -> None:
        self.callbacks = 0
        self.longest = {"cpu": (0.0, ""), "wall": (0.0, "")}
        """Seconds and a name, by kind of time."""

    def run(self, callback: Callable[..., Any], *args: Any) -> Any:
        """Call it, and take note of how long it took."""
        cpu, wall = time.thread_time(), time.monotonic()
        try:
            return callback(*args)
        finally:
            self._took("cpu", time.thread_time() - cpu, callback)
            self._took("wall", time.monotonic() - wall, callback)
            self.callbacks += 1

    def _took(self, kind: str, seconds: float, callback: Callable[..., Any]) -> None:
        if seconds > self.longest[kind][0]:
            self.longest[kind] = (seconds, _name(callback))

    def take(self) -> dict[str, tuple[float, str]]:
        """The longest callbacks since the last `take`, by kind of time. Any thread."""
        taken, self.longest = self.longest, {"cpu": (0.0, ""), "wall": (0.0, "")}
        return taken

    def report(self) -> dict[str, Any]:
        """As it stands in the file."""
        found: dict[str, Any] = {"callbacks": self.callbacks}
        for kind, (seconds, what) in self.longest.items():
            found[kind] = {"seconds": seconds, "what": what}
        return found

    def report_to(self, path: Path) -> None:
        """Write the report again and again, on a thread of its own, as long as the process lives."""

        def run() -> None:
            temporary = path.with_name(path.name + ".tmp")
            while True:
                with contextlib.suppress(OSError):
                    temporary.write_text(json.dumps(self.report()), encoding="utf-8")
                    temporary.replace(path)
                time.sleep(INTERVAL)

        threading.Thread(target=run, name="loop-probe", daemon=True).start()


def _name(callback: Callable[..., Any]) -> str:
    """What a callback is, as far as it tells: a task's coroutine, else its qualified name."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"{getattr(owner.get_coro(), '__qualname__', '')} {owner.get_name()}"
    return str(getattr(callback, "__qualname__", None) or callback)


class ProbedLoop(uvloop.Loop):
    """uvloop's loop with a probe around everything that is scheduled on it."""

    probe: LoopProbe

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        return super().call_soon(self.probe.run, callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        return super().call_soon_threadsafe(self.probe.run, callback, *args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        return super().call_later(delay, self.probe.run, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        return super().call_at(when, self.probe.run, callback, *args, context=context)


def wanted() -> LoopProbe | None:
    """A probe that reports, if the environment asks for one."""
    path = os.environ.get(ENVIRONMENT)
    if not path:
        return None
    probe = LoopProbe()
    probe.report_to(Path(path))
    return probe


def loop_with(probe: LoopProbe) -> ProbedLoop:
    """A loop that is timed."""
    loop = ProbedLoop()
    loop.probe = probe
    return loop


def watch(connection: Connection, probe: LoopProbe) -> Connection:
    """Time the callbacks that the loop calls a connection with, which never pass through its schedule."""
    for name in (
        "connection_made",
        "connection_lost",
        "get_buffer",
        "buffer_updated",
        "eof_received",
        "resume_writing",
    ):
        setattr(connection, name, _timed(probe, getattr(connection, name)))
    return connection


def _timed(probe: LoopProbe, callback: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        return probe.run(callback, *args)

    return call
