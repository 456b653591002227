"""When the metadata itself is lost: a new state is merged from what the nodes keep on their disks.

A controller without memory, or one that meets a node that knows more than itself, collects: it serves again only when
every node named in any image has answered, or the operator gave the missing ones up. Nothing is deleted for being
unknown; a topic goes only if an image lists its id as deleted. All pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from workflows.model.election import decide
from workflows.model.image import Image
from workflows.model.outcome import Code, Refused
from workflows.model.rules import RULES
from workflows.model.state import (
    PRODUCER_IDS_PER_GENERATION,
    ClusterState,
    Configs,
    Gone,
    Node,
    Partition,
    Topic,
)


@dataclass(frozen=True, slots=True)
class Collecting:
    """What has been collected: an image per node that answered (None: it has none), the nodes given up, the
    controller's own memory.
    """

    cluster: str
    answers: Mapping[int, Image | None] = field(default_factory=dict)
    without: frozenset[int] = frozenset()
    memory: Image | None = None

    @property
    def images(self) -> list[Image]:
        """All images, the newest first."""
        held = [image for image in (self.memory, *self.answers.values()) if image is not None]
        return sorted(held, key=lambda image: image.pair, reverse=True)

    @property
    def awaited(self) -> tuple[int, ...]:
        """The nodes that some image names and that have neither answered nor been given up."""
        named = {node for image in self.images for node in image.nodes}
        return tuple(sorted(named - set(self.answers) - self.without))

    @property
    def complete(self) -> bool:
        """Whether the state can be merged: somebody answered and nobody is awaited."""
        return bool(self.answers) and not self.awaited

    def answer(self, node: int, image: Image | None) -> Collecting:
        """A node's answer. Raises Refused for the image of another cluster."""
        if image is not None and image.cluster != self.cluster:
            raise Refused(
                Code.INCONSISTENT_CLUSTER_ID,
                f"Node {node} belongs to cluster '{image.cluster}', this is '{self.cluster}'; connect it to its own.",
            )
        return replace(self, answers={**self.answers, node: image})

    def give_up(self, node: int) -> Collecting:
        """Go on without a node's image."""
        return replace(self, without=self.without | {node})


def merge(collecting: Collecting, generation_floor: int = 0, rules: int = RULES) -> ClusterState:
    """The state of a new generation: the highest generation, then the highest epoch, of every partition in any image;
    no leader epoch is lower than one that any image has.

    Every node is fenced until it registers. The generation and the version are higher than any that was seen, so that
    every node takes the new image for newer than its own; producer ids start where no older generation can have issued
    any.
    """
    images = collecting.images
    generation = max([generation_floor, *(image.generation for image in images)]) + 1
    gone = _gone(images)
    deleted = {each.id for each in gone}
    topics = _topics(images, deleted)
    nodes: dict[int, Node] = {}
    configs: dict[tuple[str, str], Configs] = {}
    for image in images:  # the newest first
        for number, node in image.nodes.items():
            held = nodes.get(number)
            if held is None or node.broker_epoch > held.broker_epoch:
                nodes[number] = replace(node, fenced=True)
        for key, each in image.configs.items():
            configs.setdefault(key, each)
    state = ClusterState(
        collecting.cluster,
        generation,
        max((image.version for image in images), default=0),
        next_producer_id=(generation - 1) * PRODUCER_IDS_PER_GENERATION,
        rules=rules,
    )
    for node in nodes.values():
        state = state.with_node(node)
    for each in configs.values():
        state = state.with_configs(each)
    decided = [
        replace(topic, name=name, partitions=tuple([decide(each, state.nodes) for each in topic.partitions]))
        for name, topic in sorted(topics.items())
    ]
    state = state.with_topics(*decided)
    version = state.version
    numbered = tuple(replace(each, changed=version + place) for place, each in enumerate(gone, 1))
    return replace(state, gone=numbered, version=version + len(numbered))


def _gone(images: Iterable[Image]) -> tuple[Gone, ...]:
    """All deletions that any image lists, those of the newest image last: the oldest are forgotten first."""
    found: dict[str, Gone] = {}
    for image in reversed(list(images)):
        for each in image.gone:
            found.pop(each.id, None)
            found[each.id] = each
    return tuple(found.values())


def _topics(images: Iterable[Image], deleted: set[str]) -> dict[str, Topic]:
    """One topic per name: of two ids the one in the newest image; its configs from there too; partitions from wherever
    is newest.
    """
    topics: dict[str, Topic] = {}
    best: dict[str, dict[int, tuple[tuple[int, int, int], Partition]]] = {}
    epochs: dict[tuple[str, int], int] = {}
    for image in images:  # the newest first
        for name, topic in image.topics.items():
            if topic.id in deleted or topics.setdefault(name, topic).id != topic.id:
                continue
            if name in best and topics[name] is topic:  # the same row was read from a newer image
                continue
            rows = best.setdefault(name, {})
            for partition in topic.partitions:
                rank = (image.generation, partition.partition_epoch, image.version)
                key = name, partition.index
                epochs[key] = max(partition.leader_epoch, epochs.get(key, 0))
                if partition.index not in rows or rank > rows[partition.index][0]:
                    rows[partition.index] = (rank, partition)
    # Of images that contradict one another the newest row of a partition need not have the highest leader epoch, under
    # which its leader may have appended: the next election must be above that one, too.
    return {
        name: replace(
            topic,
            partitions=tuple(best[name][index][1].at_least(epochs[name, index]) for index in sorted(best[name])),
        )
        for name, topic in topics.items()
    }
