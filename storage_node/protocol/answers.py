"""Serialised Metadata answers, kept for as long as the image they were made from is the newest."""

from __future__ import annotations

from storage_node.metadata import ClusterImage

#: Clients ask for the same few lists of topics again and again; what comes beyond that is made anew each time.
MOST_ANSWERS = 256
MOST_BYTES = 16 << 20


class Answers:
    """Used on the listener's loop only."""

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._answers: dict[tuple[int, bytes], bytes] = {}
        self._bytes = 0

    def find(self, image: ClusterImage, version: int, body: bytes) -> bytes | None:
        """The answer made from this image for a version and a request's body; those of an older image are dropped."""
        if self._image is not image:
            self._image = image
            self._answers = {}
            self._bytes = 0
        return self._answers.get((version, body))

    def keep(self, version: int, body: bytes, answer: bytes) -> None:
        """Keep an answer made from the image that `find` was asked for last, as long as there is room for it."""
        size = len(body) + len(answer)
        if len(self._answers) < MOST_ANSWERS and self._bytes + size <= MOST_BYTES:
            self._answers[version, body] = answer
            self._bytes += size
