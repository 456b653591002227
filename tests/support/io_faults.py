"""I/O errors injected below the code under test: at the system call, for the paths that a rule names."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from storage_node.directories import atomic

#: By what their first argument names: a descriptor, or a path (with `dir_fd`, or `src_dir_fd` of a rename).
_BY_FD = ("pwritev", "pwrite", "write", "pread", "read", "fsync", "fdatasync", "ftruncate")
_BY_PATH = ("open", "rename", "unlink", "mkdir", "rmdir", "scandir", "listdir", "statvfs", "stat")


@dataclass(slots=True)
class Rule:
    """Calls of `call` whose path matches `pattern` (a glob over the whole path) fail with `error`, or hang."""

    call: str
    pattern: str
    error: int
    hang: bool = False
    hits: int = 0
    times: int | None = None
    """How often at most; None: always."""


@dataclass
class Faults:
    """Rules for this process; all calls that no rule names go through."""

    rules: list[Rule] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def fail(self, call: str, pattern: str, error: int) -> Rule:
        """Let a system call fail for some paths from now on."""
        return self._add(Rule(call, pattern, error))

    def hang(self, call: str, pattern: str) -> Rule:
        """Let a system call hang for some paths until the test ends."""
        return self._add(Rule(call, pattern, 0, hang=True))

    def _add(self, rule: Rule) -> Rule:
        self.rules.append(rule)
        return rule

    def clear(self) -> None:
        """All works again, and what hung goes on."""
        self.rules.clear()
        self.released.set()
        self.released = threading.Event()

    def meet(self, call: str, path: str) -> None:
        """Do what the first rule for this call and path says."""
        released = self.released  # before the hit is counted: who sees it may let go at once
        for rule in self.rules:
            if rule.call == call and rule.hits != rule.times and fnmatch(path, rule.pattern):
                rule.hits += 1
                if not rule.hang:
                    raise OSError(rule.error, os.strerror(rule.error), path)
                released.wait(60)


def install(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Put the rules between the code and the system."""
    faults = Faults()

    def by_fd(call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(fd: int, *args: Any, **kwargs: Any) -> Any:
            if faults.rules:
                with suppress(FileNotFoundError):
                    faults.meet(call, _readlink(f"/proc/self/fd/{fd}"))
            return real(fd, *args, **kwargs)

        return wrapped

    def by_path(call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            if faults.rules:
                faults.meet(call, _named(path, kwargs.get("dir_fd") or kwargs.get("src_dir_fd")))
            return real(path, *args, **kwargs)

        return wrapped

    for call in _BY_FD:
        monkeypatch.setattr(os, call, by_fd(call, getattr(os, call)))
    for call in _BY_PATH:
        monkeypatch.setattr(os, call, by_path(call, getattr(os, call)))
    # Renames that must not replace anything go past `os`; the way round is for file systems without them.
    monkeypatch.setattr(atomic, "_renameat2", lambda: None)
    return faults


_readlink = os.readlink


def _named(path: Any, dir_fd: int | None) -> str:
    if isinstance(path, int):
        return _readlink(f"/proc/self/fd/{path}")
    text = os.fsdecode(path)
    if dir_fd is not None and not text.startswith("/"):
        return str(Path(_readlink(f"/proc/self/fd/{dir_fd}")) / text)
    return text
