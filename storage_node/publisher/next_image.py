"""Read the controller's images: which of them follow the one that the node has, and what it has after them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import reduce

from storage_node.errors import StorageError
from storage_node.model.image import BadDelta, BadImage, ClusterImage, decode, set_back
from storage_node.publisher.host import NextImageHost

log = logging.getLogger(__name__)


class NextImage:
    """The reader of images. Used by one thread at a time."""

    def __init__(self, node: NextImageHost) -> None:
        self._node = node

    def after(self, image: ClusterImage, texts: Sequence[str]) -> ClusterImage:
        """Return an image with the others applied, oldest first."""
        check = self._node.metadata_check
        if texts and check.expects_whole:
            # All parts of a split whole image but the last are older than the node's image.
            fresh = reduce(self._next, texts, ClusterImage())
            if fresh.version and fresh.pair >= image.pair:
                check.replaced()
                return self._unless_set_back(image, fresh)
        return reduce(self._next, texts, image)

    def _next(self, image: ClusterImage, text: str) -> ClusterImage:
        damage: BadDelta | None = None
        try:
            message = decode(text)
        except BadDelta as bad:
            message, damage = bad.header, bad
        age, since = message.pair, message.since
        # Parts of one split image may share their version: only a part that builds on this image is applied.
        if age < image.pair or (age == image.pair and since != image.version):
            return image
        if since and (age[0] != image.cluster_generation or image.version < since):
            # The delta builds on metadata that this node does not have; the response shows that, and the controller
            # sends a whole image.
            log.info("delta from version %d does not fit the image at %s", since, image.pair)
            return image
        try:
            if damage is not None:
                raise damage
            return self._unless_set_back(image, image.after(message))
        except BadImage as misfit:
            if not since:
                raise
            # If it were sent again, the same delta would fail again, and so would the registration that brings it.
            self._node.metadata_check.misfit(image, age, misfit)
            return image

    def _unless_set_back(self, image: ClusterImage, after: ClusterImage) -> ClusterImage:
        """Return the image after a change, or the one before: within a cluster generation no partition is set back.

        The replicas would not follow: they have led and fetched under later epochs than this image has.
        """
        if after.cluster_generation == image.cluster_generation and (partitions := set_back(image, after)):
            self._node.metadata_check.contradicted(image, partitions)
            return image
        return after

    def keep(self, image: ClusterImage) -> None:
        """Write the image to all directories; the node applies it even if that fails."""
        try:
            self._node.dirs.images.save(image.encode(), image.cluster_generation, image.version)
        except StorageError as error:
            self._node.storage_failed(error)
            log.error("the cluster image at %s is not on disk: %s", image.pair, error)
