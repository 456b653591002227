"""The newest cluster image, kept in every log directory, so that the metadata survives the loss of all disks but one.

File `cluster-image`: one line `rehome-image 1 <generation> <version> <length> <crc32c>`, then the image as received.
The checksum covers the numbers and the image. A start uses the newest valid file of all directories.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from crc32c import crc32c

from storage_node.directories import atomic
from storage_node.directories.directory import LogDirectory
from storage_node.directories.errors import MalformedFile
from storage_node.directories.newest_file import NewestFile
from storage_node.errors import LogDirectoryOffline, MetadataIOError

__all__ = ["FILE", "ImageStore", "StoredImage", "decode", "encode", "newest"]

FILE: Final = "cluster-image"

_LIMIT: Final = 256 * 1024 * 1024
_POINTS: Final = atomic.points("cluster_image")


@dataclass(frozen=True, slots=True)
class StoredImage:
    """A cluster image as received from the controller, with the pair that orders images."""

    generation: int
    version: int
    image: str

    @property
    def order(self) -> tuple[int, int]:
        return self.generation, self.version


def encode(stored: StoredImage) -> bytes:
    """Return the file's content."""
    body = stored.image.encode("utf-8")
    head = f"rehome-image 1 {stored.generation} {stored.version} {len(body)}"
    return f"{head} {_checksum(head, body):08x}\n".encode("ascii") + body


def decode(data: bytes, path: Path | str = FILE) -> StoredImage:
    """Parse a file's content; raises MalformedFile."""
    line, _, body = data.partition(b"\n")
    fields = line.decode("ascii", "replace").split(" ")
    if len(fields) != 6 or fields[:2] != ["rehome-image", "1"] or not all(f.isdecimal() for f in fields[2:5]):
        raise MalformedFile(path, "its first line is not a valid header of a cluster image")
    if len(body) != int(fields[4]):
        raise MalformedFile(path, f"its image has {len(body)} bytes instead of {fields[4]}")
    if fields[5] != f"{_checksum(' '.join(fields[:5]), body):08x}":
        raise MalformedFile(path, "its checksum is wrong")
    try:
        return StoredImage(int(fields[2]), int(fields[3]), body.decode("utf-8"))
    except UnicodeDecodeError:
        raise MalformedFile(path, "its image is not valid UTF-8") from None


def _checksum(head: str, body: bytes) -> int:
    return int(crc32c(body, crc32c(head.encode("ascii"))))


def newest(images: Iterable[StoredImage]) -> StoredImage | None:
    """Return the image with the highest generation, then version; None if there is none."""
    return max(images, key=lambda stored: stored.order, default=None)


class ImageStore:
    """The images of all online directories. Thread-safe."""

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        self._file: NewestFile[StoredImage] = NewestFile(
            "the cluster image", directories, _write, lambda stored: stored.order
        )
        # The order of the images that `load` has read.
        self._found: WeakKeyDictionary[LogDirectory, tuple[int, int]] = WeakKeyDictionary()

    def directories_are(self, directories: Sequence[LogDirectory]) -> None:
        """Use these directories from now on."""
        self._file.directories = tuple(directories)

    def load(self) -> tuple[StoredImage | None, tuple[str, ...]]:
        """Return the newest valid image of all online directories, and a message about each invalid file.

        An I/O error takes its directory offline.
        """
        images: list[StoredImage] = []
        problems: list[str] = []
        for directory in self._file.directories:
            if not directory.online:
                continue
            path = directory.path / FILE
            try:
                with atomic.io_errors(directory.name, f"reading {FILE}"):
                    stored = decode(atomic.read_bytes(path, _LIMIT), path)
                images.append(stored)
                self._found[directory] = stored.order
            except MalformedFile as exc:
                problems.append(str(exc))
            except MetadataIOError as exc:
                if not isinstance(exc.__cause__, FileNotFoundError):
                    problems.append(str(exc))
                    directory.fail_on(exc)
        return newest(images), tuple(problems)

    def spread(self, stored: StoredImage) -> None:
        """Start to save the image that `load` has returned in the online directories with an older one, or none."""
        for directory in self._file.directories:
            if directory.online and self._found.get(directory, (-1, -1)) < stored.order:
                with contextlib.suppress(LogDirectoryOffline):
                    self._file.start(directory, stored)

    def save(self, image: str, generation: int, version: int) -> None:
        """Start to save an image in every online directory, and wait until one of them has it or a newer one.

        Raises MetadataIOError if no directory can write it, LogDirectoryOffline if none is online.
        """
        self._file.save(StoredImage(generation, version, image))

    def flush(self, timeout: float) -> bool:
        """Wait until no online directory is being written to; return False after `timeout` seconds."""
        return self._file.flush(timeout)


def _write(directory: LogDirectory, stored: StoredImage) -> None:
    with atomic.io_errors(directory.name, f"writing {FILE}"):
        atomic.write_atomic(directory.path / FILE, encode(stored), _POINTS)
