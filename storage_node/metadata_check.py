"""Whether this node's metadata is the controller's: compares their digests whenever both are at the same version.

They differ when the controller has repeated an earlier decision with another outcome (its worker is of a version with
other rules, or its history was restored), or when one of the two has a bug. The node logs it, shows it in its status,
and requests the whole image, which replaces its own though it is not newer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from storage_node import metadata_digest
from storage_node.metadata import ClusterImage, MetadataCache

log = logging.getLogger(__name__)

#: Seconds in which the node accepts a whole image that is not newer than its own.
PATIENCE: Final = 30.0
#: Seconds before another one is requested; doubles up to the longest pause while whole images do not help for long.
PAUSE: Final = 30.0
LONGEST_PAUSE: Final = 3_600.0


class MetadataCheck:
    """Thread-safe; computing the first digest of an image takes some 0.1 s of CPU at 20,000 replicas."""

    def __init__(self, metadata: MetadataCache, clock: Callable[[], float] = time.monotonic) -> None:
        self.request_whole: Callable[[], None] = lambda: None
        """Called to request a whole image from the controller, on the thread that found the difference."""
        self._metadata = metadata
        self._clock = clock
        self._lock = threading.Lock()
        self._differs = False
        self._count = 0
        self._last: dict[str, Any] | None = None
        self._expected_until = 0.0
        self._not_before = 0.0
        self._pause = PAUSE

    @property
    def expects_whole(self) -> bool:
        """Whether a whole image was requested and may still come."""
        with self._lock:
            return self._clock() < self._expected_until

    def look(self, generation: int, version: int, digest: str) -> bool:
        """Compare the newest image with the controller's digest of its metadata at (generation, version); False when
        they differ. Nothing is compared at another pair, or with a digest of another format.
        """
        image = self._metadata.image
        if image.age != (generation, version) or not metadata_digest.comparable(digest):
            return True
        if image.digest == digest:
            self._agree(image)
            return True
        if self._differ(image, digest):
            self.request_whole()
        return False

    def replaced(self) -> None:
        """Note that a whole image has replaced the node's own."""
        with self._lock:
            self._expected_until = 0.0

    def status(self) -> dict[str, Any]:
        """Return for operators whether the metadata differs from the controller's, how often it did, and the last
        difference (None: none since the start).
        """
        with self._lock:
            return {"differs": self._differs, "differences": self._count, "last_difference": self._last}

    def _agree(self, image: ClusterImage) -> None:
        with self._lock:
            again, self._differs, self._expected_until = self._differs, False, 0.0
        if again:
            log.warning("the metadata at %s is the controller's again", image.age)

    def _differ(self, image: ClusterImage, digest: str) -> bool:
        """Note a difference; returns whether the whole image is to be requested now."""
        now = self._clock()
        with self._lock:
            self._differs = True
            self._count += 1
            self._last = {
                "generation": image.generation,
                "version": image.version,
                "digest": image.digest,
                "controller_digest": digest,
            }
            if now < self._not_before:
                return False
            # With a request per difference, the controller would do nothing but pack images.
            lasting = now - self._not_before < LONGEST_PAUSE and self._not_before > 0
            self._pause = min(2 * self._pause, LONGEST_PAUSE) if lasting else PAUSE
            self._not_before, self._expected_until = now + self._pause, now + PATIENCE
        log.error(
            "the metadata at generation %d, version %d is not the controller's: its digest is %s here, %s there; "
            "the node requests the whole image", image.generation, image.version, image.digest, digest,
        )  # fmt: skip
        return True
