"""Recovery of lost metadata: a new state is merged from the images that the nodes keep on their disks. Pure.

A controller without state, or with an older one than a node's, collects: it serves again only when every node named in
any image has sent its own, or the operator has given up the missing ones. No replica is deleted for being unknown; a
topic is deleted only if an image lists its id as deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from storage_node.model.error_codes import ErrorCode
from storage_node.model.image import ImageMessage
from storage_node.model.metadata import NodeImage, PartitionImage, TopicImage
from workflows.model.metadata.election import decide
from workflows.model.metadata.outcome import Refused
from workflows.model.metadata.rules import RULES
from workflows.model.metadata.state import PRODUCER_IDS_PER_GENERATION, ClusterState


@dataclass(frozen=True, slots=True)
class Collecting:
    """The collected images: one per node that has responded (None: it has none), the nodes given up, and the
    controller's own state before.
    """

    cluster: str
    responses: Mapping[int, ImageMessage | None] = field(default_factory=dict)
    without: frozenset[int] = frozenset()
    memory: ImageMessage | None = None

    @property
    def images(self) -> list[ImageMessage]:
        """Return all images, the newest first."""
        held = [image for image in (self.memory, *self.responses.values()) if image is not None]
        return sorted(held, key=lambda image: image.pair, reverse=True)

    @property
    def awaited(self) -> tuple[int, ...]:
        """Return the nodes that some image names, and that have neither responded nor been given up."""
        named = {node for image in self.images for node in image.nodes}
        return tuple(sorted(named - set(self.responses) - self.without))

    @property
    def complete(self) -> bool:
        """Return whether the state can be merged: a node has responded, and none is awaited."""
        return bool(self.responses) and not self.awaited

    def with_response(self, node: int, image: ImageMessage | None) -> Collecting:
        """Add a node's image. Raises Refused for the image of another cluster."""
        if image is not None and image.cluster != self.cluster:
            raise Refused(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"Node {node} belongs to cluster '{image.cluster}', this is '{self.cluster}'; connect it to its own.",
            )
        return replace(self, responses={**self.responses, node: image})

    def give_up(self, node: int) -> Collecting:
        """Stop awaiting a node's image."""
        return replace(self, without=self.without | {node})


def merge(collecting: Collecting, generation_floor: int = 0, rules: int = RULES) -> ClusterState:
    """Return the state of a new generation: each partition by the highest generation, then the highest epoch, in any
    image; no leader epoch is lower than one that any image has.

    Every node is fenced until it registers. The generation and the version are higher than those of all images, so that
    every node accepts the new image; producer ids begin above those that any older generation can have issued.
    """
    images = collecting.images
    generation = max([generation_floor, *(image.cluster_generation for image in images)]) + 1
    gone = _gone(images)
    topics = _topics(images, gone)
    nodes: dict[int, NodeImage] = {}
    configs: dict[tuple[str, str], Mapping[str, str]] = {}
    for image in images:  # The newest comes first.
        for number, node in image.nodes.items():
            held = nodes.get(number)
            if held is None or node.broker_epoch > held.broker_epoch:
                nodes[number] = replace(node, fenced=True)
        for key, values in image.configs.items():
            configs.setdefault(key, values)
    state = ClusterState(
        collecting.cluster,
        generation,
        max((image.version for image in images), default=0),
        next_producer_id=(generation - 1) * PRODUCER_IDS_PER_GENERATION,
        rules=rules,
    )
    for node in nodes.values():
        state = state.with_node(node)
    for key, values in configs.items():
        state = state.with_configs(*key, values)
    decided = [
        replace(topic, name=name, partitions=tuple([decide(each, state.nodes) for each in topic.partitions]))
        for name, topic in sorted(topics.items())
    ]
    state = state.with_topics(*decided)
    stamps = {topic_id: state.version + place for place, topic_id in enumerate(gone, 1)}
    return replace(state, gone=gone, version=state.version + len(gone), stamps=replace(state.stamps, gone=stamps))


def _gone(images: Iterable[ImageMessage]) -> dict[str, str]:
    """Return all deletions that any image lists, those of the newest image last: the oldest are forgotten first."""
    found: dict[str, str] = {}
    for image in reversed(list(images)):
        for topic_id, name in image.gone.items():
            found.pop(topic_id, None)
            found[topic_id] = name
    return found


def _topics(images: Iterable[ImageMessage], deleted: Collection[str]) -> dict[str, TopicImage]:
    """Return one topic per name: of two ids the one in the newest image, with the configs of that image; each partition
    from the image that has its newest row.
    """
    topics: dict[str, TopicImage] = {}
    best: dict[str, dict[int, tuple[tuple[int, int, int], PartitionImage]]] = {}
    epochs: dict[tuple[str, int], int] = {}
    for image in images:  # The newest comes first.
        for name, topic in image.topics.items():
            if topic.id in deleted or topics.setdefault(name, topic).id != topic.id:
                continue
            if name in best and topics[name] is topic:  # The same row was read from a newer image.
                continue
            rows = best.setdefault(name, {})
            for partition in topic.partitions:
                rank = (image.cluster_generation, partition.partition_epoch, image.version)
                key = name, partition.index
                epochs[key] = max(partition.leader_epoch, epochs.get(key, 0))
                if partition.index not in rows or rank > rows[partition.index][0]:
                    rows[partition.index] = (rank, partition)
    # If images contradict one another, the newest row of a partition may not have the highest leader epoch, under which
    # a leader may have appended: the next election must exceed that epoch as well.
    return {
        name: replace(
            topic,
            partitions=tuple(best[name][index][1].at_least(epochs[name, index]) for index in sorted(best[name])),
        )
        for name, topic in topics.items()
    }
