"""Texts of plans on a worker's disk, named by their sha256: what was stored under a name never changes."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import OrderedDict
from pathlib import Path
from uuid import uuid4

from workflows.model.plans.running.packing import LARGEST_TEXT, digest

_NAME = re.compile(r"[0-9a-f]{64}")
#: Texts kept in memory, besides the files, and their characters in all.
CACHED = 8
CACHED_CHARACTERS = 64 << 20


class NotStored(Exception):
    """This worker has no text of that name."""


class PlanStore:
    """A folder of texts. Several workers may share it; one that lacks a text is sent it again by the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cached: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, text: str) -> str:
        """Store a text durably, and return its name. Raises OSError, ValueError for one that is too large."""
        data = text.encode()
        if len(data) > LARGEST_TEXT:
            raise ValueError(f"the text has {len(data)} bytes, but must have at most {LARGEST_TEXT}")
        name = digest(text)
        path = self.path(name)
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            # Several threads, and workers that share the folder, may store the same text at the same time.
            temporary = path.with_name(f"{name}.{uuid4().hex}.tmp")
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
            handle = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        self._remember(name, text)
        return name

    def get(self, name: str) -> str:
        """Return a text. Raises `NotStored`, also for a file that is damaged, which is removed."""
        with self._lock:
            if name in self._cached:
                self._cached.move_to_end(name)
                return self._cached[name]
        path = self.path(name)
        try:
            if path.stat().st_size > LARGEST_TEXT:
                raise NotStored(f"{path} is too large")
            text = path.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise NotStored(f"{path}: {error}") from error
        if digest(text) != name:
            with contextlib.suppress(OSError):
                path.unlink()
            raise NotStored(f"{path} is damaged")
        self._remember(name, text)
        return text

    def path(self, name: str) -> Path:
        """Return the file of a text. Raises `NotStored` for a name that is no sha256."""
        if not _NAME.fullmatch(name):
            raise NotStored(f"{name!r} is not the sha256 of a text")
        return self.folder / name

    def _remember(self, name: str, text: str) -> None:
        with self._lock:
            self._cached[name] = text
            self._cached.move_to_end(name)
            while self._cached and (
                len(self._cached) > CACHED or sum(map(len, self._cached.values())) > CACHED_CHARACTERS
            ):
                self._cached.popitem(last=False)
