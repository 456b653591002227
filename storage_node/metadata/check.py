"""Compare this node's metadata with the controller's: by their digests whenever both are at the same version.

They differ when the controller has repeated an earlier decision with another outcome (its worker is of a version with
other rules, or its history was restored), or when one of the two has a bug. A delta that does not fit shows the same.
The node logs it, reports it in its status, and requests the whole image, which replaces its own though it is not newer.

The node does not apply an image that sets partitions back to earlier epochs, or that has another leader in the same
leader epoch: its replicas have continued from there. A batch at a pair above the controller's makes the controller
collect all nodes' images, and merge them under a higher cluster generation and epochs that are above all others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from storage_node.metadata.cache import MetadataCache
from storage_node.model.digest import comparable
from storage_node.model.ids import TopicPartition
from storage_node.model.image import BadImage, ClusterImage

log = logging.getLogger(__name__)

#: Seconds in which the node accepts a whole image that is not newer than its own.
PATIENCE: Final = 30.0
#: Seconds before another one is requested; doubles up to the longest pause while whole images do not help.
PAUSE: Final = 30.0
LONGEST_PAUSE: Final = 3_600.0
#: The number of partitions that are named where there are more.
NAMED: Final = 5


class _Request:
    """One of the two requests: it holds for a while once it was made, and is repeated at growing intervals."""

    def __init__(self) -> None:
        self._until = 0.0
        self._not_before = 0.0
        self._pause = PAUSE

    def holds(self, now: float) -> bool:
        return now < self._until

    def end(self) -> None:
        self._until = 0.0

    def make(self, now: float) -> bool:
        """Make the request unless it is too early; return whether it was made."""
        if now < self._not_before:
            return False
        # With requests in quick succession, the controller would only encode images.
        lasting = now - self._not_before < LONGEST_PAUSE and self._not_before > 0
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if lasting else PAUSE
        self._not_before, self._until = now + self._pause, now + PATIENCE
        return True


class MetadataCheck:
    """The comparison. Thread-safe; the first digest of an image takes some 0.1 s of CPU at 20,000 replicas."""

    def __init__(self, metadata: MetadataCache, clock: Callable[[], float] = time.monotonic) -> None:
        self.request_whole: Callable[[], None] = lambda: None
        """Called when a batch is to be sent at `pair`, on the thread that found the difference."""
        self._metadata = metadata
        self._clock = clock
        self._lock = threading.Lock()
        self._differs = False
        self._count = 0
        self._last: dict[str, Any] | None = None
        self._whole, self._collection = _Request(), _Request()
        self._collect_above = -1

    @property
    def expects_whole(self) -> bool:
        """Whether a whole image was requested and may still come."""
        with self._lock:
            return self._whole.holds(self._clock())

    @property
    def pair(self) -> tuple[int, int]:
        """The (cluster generation, version) at which the node sends its batches: normally that of its image.

        It is (0, 0) to request the whole image, and above the controller's to make it collect.
        """
        generation, version = self._metadata.image.pair
        with self._lock:
            now = self._clock()
            if generation == self._collect_above and self._collection.holds(now):
                return generation + 1, 0
            return (0, 0) if self._whole.holds(now) else (generation, version)

    def look(self, generation: int, version: int, digest: str) -> bool:
        """Compare the newest image with the controller's digest of its metadata at (cluster generation, version);
        return False when they differ. Nothing is compared at another pair, or with a digest of another format.
        """
        image = self._metadata.image
        if image.pair != (generation, version) or not comparable(digest):
            return True
        if image.digest == digest:
            self._agree(image)
            return True
        self._differ(image, {"controller_digest": digest})
        if self._made(self._whole):
            log.error(
                "the metadata at generation %d, version %d is not the controller's: its digest is %s here and %s "
                "there; the node requests the whole image", generation, version, image.digest, digest,
            )  # fmt: skip
            self.request_whole()
        return False

    def misfit(self, image: ClusterImage, pair: tuple[int, int], error: BadImage) -> None:
        """Note that the controller's delta to this (cluster generation, version) does not fit the node's image: the
        controller had other metadata at the version that the delta builds on.
        """
        self._differ(image, {"misfit": str(error)})
        if self._made(self._whole):
            log.error(
                "the controller's changes up to generation %d, version %d do not fit the metadata at generation %d, "
                "version %d (%s); the node requests the whole image", *pair, *image.pair, error,
            )  # fmt: skip
            self.request_whole()

    def contradicted(self, image: ClusterImage, partitions: Sequence[TopicPartition]) -> None:
        """Note that the controller's image was not applied: it sets these partitions back to earlier epochs than in the
        node's own image of the same cluster generation, or has another leader in the same leader epoch.
        """
        named = ", ".join(map(str, partitions[:NAMED]))
        more = f" and {len(partitions) - NAMED} more" if len(partitions) > NAMED else ""
        self._differ(image, {"contradicted": named + more})
        with self._lock:
            self._whole.end()
            self._collect_above = image.cluster_generation
        if self._made(self._collection):
            log.error(
                "the controller's metadata goes back behind that of the node at generation %d, version %d, or has "
                "another leader in the same leader epoch, for %s%s; the node keeps its own and has the controller "
                "collect what all nodes know", *image.pair, named, more,
            )  # fmt: skip
            self.request_whole()

    def request_again(self) -> None:
        """Request the whole image again if the metadata still differs after the pause: a node without changes gets no
        reply that would show it.
        """
        with self._lock:
            due = self._differs and self._whole.make(self._clock())
        if due:
            self.request_whole()

    def replaced(self) -> None:
        """Note that a whole image has replaced the node's own."""
        with self._lock:
            self._whole.end()

    def status(self) -> dict[str, Any]:
        """Return for operators whether the metadata differs from the controller's, how often it did, and the last
        difference (None: none since the start).
        """
        with self._lock:
            return {"differs": self._differs, "differences": self._count, "last_difference": self._last}

    def _agree(self, image: ClusterImage) -> None:
        with self._lock:
            again, self._differs = self._differs, False
            self._whole.end()
            self._collection.end()
        if again:
            log.warning("the metadata at %s is the controller's again", image.pair)

    def _differ(self, image: ClusterImage, how: dict[str, str]) -> None:
        found = {"generation": image.cluster_generation, "version": image.version, "digest": image.digest, **how}
        with self._lock:
            self._differs, self._last = True, found
            self._count += 1

    def _made(self, request: _Request) -> bool:
        with self._lock:
            return request.make(self._clock())
