"""Close the files of a log directory only on threads that serve it.

A file is closed with its last reference, which any thread may drop: that of another disk, the event loop, or whichever
runs the garbage collector. close(2) may wait for the disk: where the file system flushes then (FUSE, NFS), and where it
frees the blocks of a file that was unlinked. So threads that do not serve the directory pass the descriptor to a thread
that does nothing else.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from queue import Empty, SimpleQueue

_serving = threading.local()
_closers: weakref.WeakValueDictionary[str, Closer] = weakref.WeakValueDictionary()


class Closer:
    """Closes files of one log directory. Its thread ends with the last reference to this object."""

    __slots__ = ("__weakref__", "_descriptors", "_runs")

    def __init__(self, directory: str) -> None:
        # Its `put` is reentrant: destructors may run in the middle of another `put` of their thread.
        self._descriptors: SimpleQueue[int | None] = SimpleQueue()
        self._runs = threading.Event()
        name = f"closer-{os.path.basename(directory)}"  # noqa: PTH119  # as text
        threading.Thread(target=_run, args=(self._descriptors, self._runs), name=name, daemon=True).start()

    def close(self, descriptor: int) -> None:
        """Close a descriptor, for a destructor; only threads that serve the directory wait for it."""
        if getattr(_serving, "closer", None) is self:
            close_quietly(descriptor)
            return
        self._descriptors.put(descriptor)
        if not self._runs.is_set():
            _close_all(self._descriptors)

    def serve(self) -> None:
        """Let the current thread close files of the directory itself: it waits for this disk anyway."""
        _serving.closer = self

    def __del__(self) -> None:
        # In garbage that the collector finds, destructors of files may still run after this one.
        self._descriptors.put(None)


def closer_for(directory: str) -> Closer:
    """Start closing the files of the log directory with this path apart, until the result is dropped."""
    closer = _closers[directory] = Closer(directory)
    return closer


def closer_of(directory: str) -> Closer | None:
    """Return the closer of the log directory with this path; None where no node runs on it."""
    return _closers.get(directory)


def close_quietly(descriptor: int) -> None:
    """Close a descriptor. Durable data was flushed before, and a destructor cannot report an error."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _run(descriptors: SimpleQueue[int | None], runs: threading.Event) -> None:
    runs.set()
    while (descriptor := descriptors.get()) is not None:
        close_quietly(descriptor)
    # In this order: whoever passed a descriptor before the thread has ended is served here, later ones close it.
    runs.clear()
    _close_all(descriptors)


def _close_all(descriptors: SimpleQueue[int | None]) -> None:
    ended = False
    with contextlib.suppress(Empty):
        while True:
            descriptor = descriptors.get_nowait()
            if descriptor is None:
                ended = True
            else:
                close_quietly(descriptor)
    if ended:
        descriptors.put(None)
