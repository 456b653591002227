"""Serialised Metadata answers, kept for as long as the image they were made from is the newest."""

from __future__ import annotations

from storage_node.metadata import ClusterImage


class Answers:
    """Used on the listener's loop only."""

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._answers: dict[tuple[int, bytes], bytes] = {}

    def of(self, image: ClusterImage) -> dict[tuple[int, bytes], bytes]:
        """The answers made from this image, by version and request body; those of an older image are dropped."""
        if self._image is not image:
            self._image = image
            self._answers = {}
        return self._answers
