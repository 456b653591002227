"""Serialised Metadata answers, kept while the image they were made from is the newest; and what they are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from storage_node.metadata import ClusterImage
from storage_node.protocol.off_loop import off_loop
from storage_node.protocol.topic_rows import TopicRows

#: Clients ask for the same few lists of topics again and again; what comes beyond that is made anew each time.
MOST_ANSWERS = 256
MOST_BYTES = 16 << 20
#: Rows above which an answer is made by a thread: the loop has other connections to serve meanwhile.
LARGE = 50


class Answers:
    """Used on the listener's loop only."""

    def __init__(self) -> None:
        self.rows = TopicRows()
        self._sorted: tuple[ClusterImage | None, list[str]] = (None, [])
        self._image: ClusterImage | None = None
        self._answers: dict[tuple[int, bytes], bytes] = {}
        self._making: dict[tuple[int, bytes], asyncio.Task[bytes]] = {}
        self._bytes = 0

    def sorted_names(self, image: ClusterImage) -> list[str]:
        """The names of all topics, in order."""
        of, names = self._sorted
        if of is not image:
            names = sorted(image.topics)
            self._sorted = image, names
        return names

    def find(self, image: ClusterImage, version: int, body: bytes) -> bytes | None:
        """The answer made from this image for a version and a request's body; those of an older image are dropped."""
        if self._image is not image:
            self._image = image
            self._answers = {}
            self._making = {}
            self._bytes = 0
        return self._answers.get((version, body))

    def keep(self, version: int, body: bytes, answer: bytes) -> None:
        """Keep an answer made from the image that `find` was asked for last, as long as there is room for it."""
        size = len(body) + len(answer)
        if len(self._answers) < MOST_ANSWERS and self._bytes + size <= MOST_BYTES:
            self._answers[version, body] = answer
            self._bytes += size

    async def make(self, image: ClusterImage, version: int, body: bytes, rows: int, make: Callable[[], bytes]) -> bytes:
        """Make and keep the answer of about so many `rows` that `find` did not have; who asks the same meanwhile gets
        the same.
        """
        key = version, body
        if rows <= LARGE:
            answer = make()
        else:
            making = self._making.get(key) if self._image is image else None
            if making is None:
                making = asyncio.create_task(off_loop(make))
                if self._image is image:
                    self._making[key] = making
            # One connection that closes takes nothing away from the others.
            answer = await asyncio.shield(making)
            if self._making.get(key) is making:
                del self._making[key]
        if self._image is image and key not in self._answers:
            self.keep(version, body, answer)
        return answer
