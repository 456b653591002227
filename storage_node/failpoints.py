"""Let a test make this process die, fail, wait or hang at named points in the code.

A module declares its points when it is imported and passes them later::

    AFTER_RENAME = failpoints.register("swap.after_source_renamed")
    ...
    failpoint(AFTER_RENAME)

Nothing is armed unless the environment or a test arms it; an unarmed point costs one read of a global.

* ``REHOME_FAILPOINTS="name=action,name=action"`` arms a whole process. With ``@FILE`` instead, the file (one
  ``name=action`` per line) is read again at every point passed, so that a running process can be armed and disarmed.
* ``REHOME_FAILPOINTS_FLAGS=DIR``: each armed point then acts only once, over restarts too: before it acts it leaves a
  file named like the point in DIR, and a point whose file exists does nothing.
* ``active({...})`` arms points inside this process for the length of a ``with`` block.

Actions: ``kill`` (SIGKILL to this process), ``raise`` (OSError EIO) or ``raise:ENOSPC`` (any errno by name),
``sleep=SECONDS``, ``hang`` (until the point is disarmed); with ``@N`` appended, only from the N-th pass on
(``kill@3``). The idea is that of gofail's failpoints and RocksDB's sync points.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["Armed", "active", "configure", "failpoint", "parse", "register", "registered", "unknown"]

ENV_POINTS: Final = "REHOME_FAILPOINTS"
ENV_FLAGS: Final = "REHOME_FAILPOINTS_FLAGS"

_NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
_HANG_SLICE = 0.01  # seconds between two checks of whether a hanging point was disarmed

_registry: set[str] = set()


@dataclass(frozen=True, slots=True)
class Action:
    """The action of an armed point.

    `kind` is kill, raise, sleep, hang or call; it acts from the `after`-th pass on (1 is the first).
    """

    kind: str
    seconds: float = 0.0
    error: int = errno.EIO
    after: int = 1
    call: Callable[[], object] | None = None


@dataclass(slots=True)
class Armed:
    """The points armed by one source, and how often each was passed."""

    actions: dict[str, Action] = field(default_factory=dict)
    file: Path | None = None
    flags: Path | None = None
    _passes: Counter[str] = field(default_factory=Counter)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _over: bool = False

    def hits(self, name: str) -> int:
        """Return how often any thread passed the point while it was armed."""
        with self._changed:
            return self._passes[name]

    def wait_hit(self, name: str, count: int = 1, timeout: float = 10.0) -> bool:
        """Wait until the point was passed `count` times; return False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._passes[name] >= count, timeout)

    def release(self) -> None:
        """Disarm everything armed here; a hanging point continues."""
        self._over = True

    def action_of(self, name: str) -> Action | None:
        """Return the action armed for a point now (the file, if there is one, is read again)."""
        if self._over:
            return None
        if self.file is None:
            return self.actions.get(name)
        try:
            text = self.file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return parse(text).get(name)

    def passed(self, name: str) -> None:
        """Count a pass and do the armed action."""
        action = self.action_of(name)
        if action is None:
            return
        with self._changed:
            self._passes[name] += 1
            count = self._passes[name]
            self._changed.notify_all()
        if count >= action.after and self._first_time(name):
            self._act(name, action)

    def _first_time(self, name: str) -> bool:
        if self.flags is None:
            return True
        try:
            os.close(os.open(self.flags / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            return False
        return True

    def _act(self, name: str, action: Action) -> None:
        if action.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action.kind == "raise":
            raise OSError(action.error, f"{os.strerror(action.error)} (failpoint {name})")
        elif action.kind == "sleep":
            time.sleep(action.seconds)
        elif action.kind == "call" and action.call is not None:
            action.call()
        elif action.kind == "hang":
            while self.action_of(name) == action:
                time.sleep(_HANG_SLICE)


_armed: tuple[Armed, ...] = ()
_arming = threading.Lock()


def register(name: str) -> str:
    """Declare a point (lowercase words, dots between the parts) and return its name; twice is harmless."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a failpoint's name: {name!r}")
    _registry.add(name)
    return name


def registered(prefix: str = "") -> tuple[str, ...]:
    """Return the points declared by the modules imported so far, sorted; tests fail at each of them in turn."""
    return tuple(sorted(name for name in _registry if name.startswith(prefix)))


def unknown() -> tuple[str, ...]:
    """Return names that are armed but that no imported module has declared: misspelled, or of another module."""
    return tuple(sorted({name for armed in _armed for name in armed.actions} - _registry))


def failpoint(name: str) -> None:
    """Pass a point. Raises OSError when the point is armed to; returns at once when nothing is armed."""
    if _armed:
        _pass(name)


def _pass(name: str) -> None:
    if name not in _registry:
        raise ValueError(f"failpoint {name!r} was passed but never registered")
    for armed in _armed:
        armed.passed(name)


def parse(text: str) -> dict[str, Action]:
    """Read ``name=action`` entries (commas, semicolons or lines between); raises ValueError naming the bad one."""
    actions: dict[str, Action] = {}
    for entry in re.split(r"[,;\n]", text):
        entry = entry.strip()
        if not entry or entry.startswith("#"):
            continue
        name, equals, action = entry.partition("=")
        if not equals or not _NAME.fullmatch(name.strip()):
            raise ValueError(f"not a failpoint entry (want name=action): {entry!r}")
        actions[name.strip()] = parse_action(action.strip())
    return actions


def parse_action(text: str) -> Action:
    """Read one action such as ``kill``, ``raise:ENOSPC``, ``sleep=0.5`` or ``hang@2``; raises ValueError."""
    body, at, count = text.partition("@")
    try:
        after = int(count) if at else 1
        if after < 1:
            raise ValueError
        if body in ("kill", "hang", "raise"):
            return Action(body, after=after)
        if body.startswith("raise:"):
            return Action("raise", error=_errno(body.removeprefix("raise:")), after=after)
        if body.startswith("sleep="):
            seconds = float(body.removeprefix("sleep="))
            if 0 <= seconds < float("inf"):
                return Action("sleep", seconds=seconds, after=after)
    except ValueError:
        pass
    raise ValueError(
        f"not a failpoint's action (kill, hang, raise, raise:ERRNO, sleep=SECONDS, each with @N): {text!r}"
    )


def _errno(name: str) -> int:
    value = getattr(errno, name, None)
    if not isinstance(value, int):
        raise ValueError(name)
    return value


def configure(environ: Mapping[str, str]) -> None:
    """Arm this process from the environment; done with `os.environ` at import. Raises ValueError."""
    global _armed
    points = environ.get(ENV_POINTS, "").strip()
    if not points:
        return
    flags = environ.get(ENV_FLAGS, "").strip()
    armed = Armed(flags=Path(flags) if flags else None)
    if points.startswith("@"):
        armed.file = Path(points[1:])
    else:
        armed.actions = parse(points)
    if armed.flags is not None:
        armed.flags.mkdir(parents=True, exist_ok=True)
    with _arming:
        _armed = (*_armed, armed)


@contextmanager
def active(actions: Mapping[str, str | Callable[[], object]], *, flags: Path | None = None) -> Iterator[Armed]:
    """Arm points in this process, for all its threads, until the block ends; a callable is called at its point.

    Raises ValueError for a point that no imported module has declared.
    """
    global _armed
    wrong = sorted(set(actions) - _registry)
    if wrong:
        raise ValueError(f"no such failpoints: {', '.join(wrong)}")
    armed = Armed(
        {n: parse_action(a) if isinstance(a, str) else Action("call", call=a) for n, a in actions.items()}, flags=flags
    )
    with _arming:
        _armed = (*_armed, armed)
    try:
        yield armed
    finally:
        armed.release()
        with _arming:
            _armed = tuple(other for other in _armed if other is not armed)


configure(os.environ)
