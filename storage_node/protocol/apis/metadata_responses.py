"""A cache of serialised Metadata responses, valid for the newest image only, and the topic rows they are built from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from storage_node.model.image import ClusterImage
from storage_node.protocol.apis.topic_rows import TopicRows
from storage_node.protocol.network.off_loop import off_loop

#: Clients request the same few lists of topics repeatedly; a response beyond these limits is built for each request.
MOST_ANSWERS = 256
MOST_BYTES = 16 << 20
#: Rows above which a thread builds the response, so that the loop can serve other connections meanwhile.
LARGE = 50


class Answers:
    """The cached responses. Not thread-safe: use it on the listener's loop only."""

    def __init__(self) -> None:
        self.rows = TopicRows()
        self._sorted: tuple[ClusterImage | None, list[str]] = (None, [])
        self._image: ClusterImage | None = None
        self._answers: dict[tuple[int, bytes], bytes] = {}
        self._making: dict[tuple[int, bytes], asyncio.Task[bytes]] = {}
        self._bytes = 0

    def sorted_names(self, image: ClusterImage) -> list[str]:
        """Return the names of all topics, sorted."""
        of, names = self._sorted
        if of is not image:
            names = sorted(image.topics)
            self._sorted = image, names
        return names

    def find(self, image: ClusterImage, version: int, body: bytes) -> bytes | None:
        """Return the response built from this image for a version and a request body, None if there is none.

        Drops the responses of an older image.
        """
        if self._image is not image:
            self._image = image
            self._answers = {}
            self._making = {}
            self._bytes = 0
        return self._answers.get((version, body))

    def keep(self, version: int, body: bytes, response: bytes) -> None:
        """Keep a response built from the image of the last `find`, if it fits into the limits."""
        size = len(body) + len(response)
        if len(self._answers) < MOST_ANSWERS and self._bytes + size <= MOST_BYTES:
            self._answers[version, body] = response
            self._bytes += size

    async def make(self, image: ClusterImage, version: int, body: bytes, rows: int, make: Callable[[], bytes]) -> bytes:
        """Build and keep a response that `find` did not return; identical requests share one build.

        `rows`: about how many rows it has.
        """
        key = version, body
        if rows <= LARGE:
            response = make()
        else:
            making = self._making.get(key) if self._image is image else None
            if making is None:
                making = asyncio.create_task(off_loop(make))
                if self._image is image:
                    self._making[key] = making
            # Shielded: a connection that closes must not cancel the build for the other connections.
            response = await asyncio.shield(making)
            if self._making.get(key) is making:
                del self._making[key]
        if self._image is image and key not in self._answers:
            self.keep(version, body, response)
        return response
