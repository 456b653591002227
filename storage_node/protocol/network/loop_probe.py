"""A probe of the longest callback of the listener's loop, enabled by the environment variable REHOME_LOOP_PROBE.

The variable names a file. The node times each callback of the loop (steps of tasks, timers, calls from other threads,
and the callbacks of connections), and about once a second writes the longest ones to the file as JSON:
{"callbacks": count, "cpu": {...}, "wall": {...}}, with the seconds and the name of the longest by CPU time of the
thread and by wall-clock time. Waiting for the interpreter's lock does not count as CPU time.
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

from storage_node.protocol.network.framing import Connection

ENVIRONMENT = "REHOME_LOOP_PROBE"
INTERVAL = 1.0


class LoopProbe:
    """The longest callbacks so far; only the loop's thread may call `run`."""

    def __init__(self) -> None:
        self.callbacks = 0
        self.longest = {"cpu": (0.0, ""), "wall": (0.0, "")}
        """The duration in seconds and the callback's name, by kind of time."""

    def run(self, callback: Callable[..., Any], *args: Any) -> Any:
        """Call a callback and record its duration."""
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
        """Return and reset the longest callbacks, by kind of time; any thread may call it."""
        taken, self.longest = self.longest, {"cpu": (0.0, ""), "wall": (0.0, "")}
        return taken

    def report(self) -> dict[str, Any]:
        """Return the content of the file."""
        found: dict[str, Any] = {"callbacks": self.callbacks}
        for kind, (seconds, what) in self.longest.items():
            found[kind] = {"seconds": seconds, "what": what}
        return found

    def report_to(self, path: Path) -> None:
        """Start a thread that writes the report every INTERVAL seconds until the process exits."""

        def run() -> None:
            temporary = path.with_name(path.name + ".tmp")
            while True:
                with contextlib.suppress(OSError):
                    temporary.write_text(json.dumps(self.report()), encoding="utf-8")
                    temporary.replace(path)
                time.sleep(INTERVAL)

        threading.Thread(target=run, name="loop-probe", daemon=True).start()


def _name(callback: Callable[..., Any]) -> str:
    """Return a callback's name: a task's coroutine and name, else the qualified name."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"{getattr(owner.get_coro(), '__qualname__', '')} {owner.get_name()}"
    return str(getattr(callback, "__qualname__", None) or callback)


class ProbedLoop(uvloop.Loop):
    """A uvloop that runs all scheduled callbacks through a probe."""

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
    """Return a probe that writes its file, None if REHOME_LOOP_PROBE is not set."""
    path = os.environ.get(ENVIRONMENT)
    if not path:
        return None
    probe = LoopProbe()
    probe.report_to(Path(path))
    return probe


def loop_with(probe: LoopProbe) -> ProbedLoop:
    """Return a loop whose callbacks the probe times."""
    loop = ProbedLoop()
    loop.probe = probe
    return loop


def watch(connection: Connection, probe: LoopProbe) -> Connection:
    """Time the protocol callbacks of a connection, which the loop calls without scheduling them."""
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
