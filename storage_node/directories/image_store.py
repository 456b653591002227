"""The newest cluster image, kept in every log directory, so that the metadata survives the loss of all disks but one.

File `cluster-image`: one line `rehome-image 1 <generation> <version> <length> <crc32c>`, then the image as it came. The
checksum covers the numbers and the image. At a start the newest valid file of all directories wins.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from storage_node.directories import atomic
from storage_node.directories.directory import LogDirectory
from storage_node.directories.errors import MalformedFile
from storage_node.errors import LogDirectoryOffline, MetadataIOError

__all__ = ["FILE", "ImageStore", "StoredImage", "decode", "encode", "newest"]

_log = logging.getLogger(__name__)

FILE: Final = "cluster-image"

_LIMIT: Final = 256 * 1024 * 1024
_POINTS: Final = atomic.points("cluster_image")


@dataclass(frozen=True, slots=True)
class StoredImage:
    """A cluster image as it came from the controller, with the pair that orders images."""

    generation: int
    version: int
    image: str

    @property
    def order(self) -> tuple[int, int]:
        return self.generation, self.version


def encode(stored: StoredImage) -> bytes:
    """The file's content."""
    body = stored.image.encode("utf-8")
    head = f"rehome-image 1 {stored.generation} {stored.version} {len(body)}"
    return f"{head} {_checksum(head, body):08x}\n".encode("ascii") + body


def decode(data: bytes, path: Path | str = FILE) -> StoredImage:
    """Read a file's content; raises MalformedFile."""
    line, _, body = data.partition(b"\n")
    fields = line.decode("ascii", "replace").split(" ")
    if len(fields) != 6 or fields[:2] != ["rehome-image", "1"] or not all(f.isdecimal() for f in fields[2:5]):
        raise MalformedFile(path, "its first line is not that of a cluster image")
    if len(body) != int(fields[4]):
        raise MalformedFile(path, f"it has {len(body)} bytes of image instead of {fields[4]}")
    if fields[5] != f"{_checksum(' '.join(fields[:5]), body):08x}":
        raise MalformedFile(path, "its checksum is wrong")
    try:
        return StoredImage(int(fields[2]), int(fields[3]), body.decode("utf-8"))
    except UnicodeDecodeError:
        raise MalformedFile(path, "its image is not text") from None


def _checksum(head: str, body: bytes) -> int:
    return int(crc32c(body, crc32c(head.encode("ascii"))))


def newest(images: Iterable[StoredImage]) -> StoredImage | None:
    """The one with the highest generation, then version; None when there is none."""
    return max(images, key=lambda stored: stored.order, default=None)


class ImageStore:
    """Saves images to all online directories, each on its own threads, so that a slow disk delays only itself.

    A directory that still writes an older image gets only the newest afterwards. Thread-safe.
    """

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        self._directories = tuple(directories)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._waiting: dict[str, StoredImage] = {}
        self._busy: dict[str, Future[None]] = {}
        self._found: dict[str, tuple[int, int]] = {}  # what `load` has read, by directory

    def load(self) -> tuple[StoredImage | None, tuple[str, ...]]:
        """The newest valid image over all online directories, and a sentence about each file that is not valid.

        A directory with an I/O error is taken offline.
        """
        images: list[StoredImage] = []
        problems: list[str] = []
        for directory in self._directories:
            if not directory.online:
                continue
            path = directory.path / FILE
            try:
                with atomic.io_errors(directory.name, f"reading {FILE}"):
                    stored = decode(atomic.read_bytes(path, _LIMIT), path)
                images.append(stored)
                self._found[directory.name] = stored.order
            except MalformedFile as exc:
                problems.append(str(exc))
            except MetadataIOError as exc:
                if not isinstance(exc.__cause__, FileNotFoundError):
                    problems.append(str(exc))
                    directory.fail_on(exc)
        return newest(images), tuple(problems)

    def spread(self, stored: StoredImage) -> None:
        """Start to keep what `load` has answered in the online directories that have an older one, or none."""
        for directory in self._directories:
            if directory.online and self._found.get(directory.name, (-1, -1)) < stored.order:
                with contextlib.suppress(LogDirectoryOffline):
                    self._start(directory, stored)

    def save(self, image: str, generation: int, version: int) -> None:
        """Start to keep an image in every online directory and wait until the first of them (the metadata directory,
        while it is online) has it or a newer one. Raises MetadataIOError when that one fails, LogDirectoryOffline when
        no directory is online.
        """
        stored = StoredImage(generation, version, image)
        first: Future[None] | None = None
        for directory in self._directories:
            if directory.online:
                try:
                    future = self._start(directory, stored)
                except LogDirectoryOffline:
                    continue  # it failed just now: the others are enough
                first = first or future
        if first is None:
            raise LogDirectoryOffline(", ".join(d.name for d in self._directories), "keeping the cluster image")
        first.result()

    def flush(self, timeout: float) -> bool:
        """Wait until nothing is being written to a directory that is online; False after `timeout` seconds."""
        with self._idle:
            return self._idle.wait_for(
                lambda: not any(d.online and d.name in self._busy for d in self._directories), timeout
            )

    def _start(self, directory: LogDirectory, stored: StoredImage) -> Future[None]:
        with self._lock:
            waiting = self._waiting.get(directory.name)
            if waiting is None or waiting.order <= stored.order:
                self._waiting[directory.name] = stored
            busy = self._busy.get(directory.name)
            if busy is None:
                busy = directory.for_image(self._drain, directory)
                self._busy[directory.name] = busy
            return busy

    def _drain(self, directory: LogDirectory) -> None:
        """Write what waits until nothing does; one of these runs per directory."""
        try:
            while True:
                with self._lock:
                    stored = self._waiting.pop(directory.name, None)
                    if stored is None:
                        self._done(directory)
                        return
                with atomic.io_errors(directory.name, f"writing {FILE}"):
                    atomic.write_atomic(directory.path / FILE, encode(stored), _POINTS)
        except BaseException as exc:
            _log.warning("the cluster image is not kept: %s", exc)
            with self._lock:
                self._waiting.pop(directory.name, None)
                self._done(directory)
            raise

    def _done(self, directory: LogDirectory) -> None:
        self._busy.pop(directory.name, None)
        self._idle.notify_all()
