"""Publish the newest cluster image to every part of the node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage_node.model.image import ClusterImage


class MetadataCache:
    """The newest image, replaced as a whole; readers take `image` without a lock.

    Listeners are called, on the thread that published, after every change.
    """

    def __init__(self, image: ClusterImage | None = None) -> None:
        self.image = image or ClusterImage()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[ClusterImage], None]] = []
        self.prepare: Callable[[ClusterImage], None] = lambda _: None
        """Called with an image before it is the newest one, on the thread that publishes it."""

    @contextmanager
    def listening(self, listener: Callable[[ClusterImage], None]) -> Iterator[None]:
        """Call `listener` after every change while the block runs."""
        with self._changed:
            self._listeners.append(listener)
        try:
            yield
        finally:
            with self._changed:
                self._listeners.remove(listener)

    def publish(self, image: ClusterImage) -> None:
        """Make `image` the newest one and wake the threads that wait for its version."""
        self.prepare(image)
        with self._changed:
            self.image = image
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener(image)

    def wait_for_version(self, version: int, timeout: float) -> bool:
        """Block until an image of at least this version is published; return False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.image.version >= version, timeout)
