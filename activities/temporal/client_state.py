"""The state of a process's connection to Temporal: connected or not, since when, why, and which parts were restarted.

One object per process. Loops write it, any thread reads it, and its changes go to the log: at once when the kind of
problem changes, and again every minute while it lasts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from temporalio.service import RPCError

from activities.temporal import errors
from activities.temporal.errors import Kind, Problem
from activities.temporal.supervision import PartEnded, Repeats, describe

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartState:
    """A loop or worker: whether it runs now, how often it was restarted, and its last error."""

    name: str
    running: bool = True
    restarts: int = 0
    error: str = ""
    failed_at: float = 0.0  # seconds since the epoch

    def as_dict(self) -> dict[str, Any]:
        """Return it as --json prints it."""
        return {
            "part": self.name,
            "running": self.running,
            "restarts": self.restarts,
            "last_error": self.error,
            "last_failed": instant(self.failed_at) if self.restarts else None,
        }


@dataclass(frozen=True, slots=True)
class ClientState:
    """The connection: `since` is when it was made or lost, in seconds since the epoch; `reason` is one sentence."""

    connected: bool
    since: float
    address: str = ""
    namespace: str = ""
    kind: str = ""
    reason: str = ""
    notes: tuple[str, ...] = ()
    parts: tuple[PartState, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as --json prints it; of the parts only those that have failed."""
        return {
            "connected": self.connected,
            "since": instant(self.since),
            "address": self.address,
            "namespace": self.namespace,
            "kind": self.kind,
            "reason": self.reason,
            "notes": list(self.notes),
            "restarted": [part.as_dict() for part in self.parts if part.restarts],
        }


def instant(seconds: float) -> str:
    """Return seconds since the epoch as UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ClientHealth:
    """Keeps a process's `ClientState`, and logs its changes. Thread-safe."""

    def __init__(
        self, role: str, wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._role, self._wall, self._clock = role, wall, clock
        self._lock = threading.Lock()
        self._state = ClientState(False, wall(), kind="starting", reason="not connected to Temporal yet")
        self._notes: dict[str, str] = {}
        self._parts: dict[str, PartState] = {}
        self._limits: dict[str, Repeats] = {}

    @property
    def state(self) -> ClientState:
        """Return the current state."""
        with self._lock:
            return replace(self._state, notes=tuple(self._notes.values()), parts=tuple(self._parts.values()))

    # The connection

    def connected(self, address: str, namespace: str) -> None:
        """Note that the server responds, and has the namespace."""
        with self._lock:
            before = self._state
            same = before.connected and (before.address, before.namespace) == (address, namespace)
            if not same:
                self._state = ClientState(True, self._wall(), address, namespace)
            self._limit("connection").reset()
        if not same:
            log.info("%s is connected to Temporal at %s, namespace %s", self._role, address, namespace)

    def not_connected(self, problem: Problem, address: str, namespace: str) -> None:
        """Note that the server cannot be reached, or rejects this client."""
        reason = errors.sentence(problem, address, namespace)
        with self._lock:
            since = self._wall() if self._state.connected else self._state.since
            self._state = ClientState(False, since, address, namespace, str(problem.kind), reason)
            written = self._limit("connection").passes(reason, self._clock(), str(problem.kind))
        if written:
            log.warning(
                "%s has no connection to Temporal since %s: %s; trying again", self._role, instant(since), reason
            )

    # Notes

    def note(self, name: str, text: str) -> None:
        """Show operators a sentence until it is replaced or, with "", removed."""
        with self._lock:
            before = self._notes.get(name, "")
            if text:
                self._notes[name] = text
            else:
                self._notes.pop(name, None)
        if text and text != before:
            log.warning("%s", text)

    # Parts: what `supervise` observes

    def started(self, part: str) -> None:
        """Note that a part runs, for the first time or again."""
        with self._lock:
            self._parts[part] = replace(self._parts.get(part, PartState(part)), running=True)

    def failed(self, part: str, error: BaseException, pause: float) -> None:
        """Note that a part has failed and restarts in `pause` seconds."""
        text = describe(error)
        with self._lock:
            before = self._parts.get(part, PartState(part))
            now = PartState(part, False, before.restarts + 1, text, self._wall())
            self._parts[part] = now
            written = self._limit(part).passes(text, self._clock(), type(error).__name__)
        if written:
            # An error of the server or the connection needs no stack; every other one is a bug of this process.
            ours = errors.classify(error).kind is Kind.OTHER and not isinstance(error, (RPCError, PartEnded))
            stack = error if ours else None
            line = "%s: %s failed (%s); restarting in %.1f s (failure %d)"
            log.error(line, self._role, part, text, pause, now.restarts, exc_info=stack)

    def _limit(self, name: str) -> Repeats:
        return self._limits.setdefault(name, Repeats())
