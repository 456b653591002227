"""The topics under torture: one for long moves, one with short retention, one that is created and deleted."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from ops.cli.kafka_admin import KafkaAdmin
from ops.stack.errors import OpsError
from ops.torture.checks.facts import TopicFact
from ops.torture.roles import Roles

MAIN = TopicFact("orders", "orders", 6, segment_bytes=2 << 20)
SHORT = TopicFact("ticks", "ticks", 3, retention_bytes=1 << 20, segment_bytes=256 << 10)
SIDE = "visits"
#: Topics that no client uses: with them the controller and the nodes have the metadata of a large cluster.
IDLE, IDLE_PARTITIONS = "idle-", 7
#: The topics that clients use.
USED = (MAIN.name, SHORT.name, SIDE)
SIDE_PARTITIONS = 2
ANSWER_SECONDS = 10.0
KNOWN_SECONDS = 30.0  # for every node to receive a new life's metadata; otherwise it stays empty
LOOK_SECONDS = 0.2


def idle(partitions: int, replicas: int) -> list[TopicFact]:
    """Return idle topics with `partitions` partitions in total."""
    sizes = [IDLE_PARTITIONS] * (partitions // IDLE_PARTITIONS)
    if rest := partitions % IDLE_PARTITIONS:
        sizes.append(rest)
    names = (f"{IDLE}{number:04d}" for number in range(len(sizes)))
    return [TopicFact(name, name, size, replicas=replicas, used=False) for name, size in zip(names, sizes, strict=True)]


def configs(topic: TopicFact) -> dict[str, str]:
    """Return the configs for the topic's creation."""
    found = {"segment.bytes": str(topic.segment_bytes)}
    if topic.retention_bytes is not None:
        found["retention.bytes"] = str(topic.retention_bytes)
    if topic.replicas > 2:
        found["min.insync.replicas"] = str(topic.replicas - 1)
    return found


class Side:
    """The topic that is created and deleted: each life has a label of its own. Not thread-safe."""

    def __init__(self, roles: Roles, replicas: int = 1) -> None:
        self._roles, self._replicas = roles, replicas
        self.guard = threading.Lock()
        self.lives: list[TopicFact] = []
        self._doubtful: TopicFact | None = None  # created without a response, and missing right after

    @property
    def current(self) -> TopicFact | None:
        """The current life; None while the topic does not exist."""
        return self.lives[-1] if self.lives and not self.lives[-1].deleted else None

    def create(self) -> TopicFact | None:
        """Create the topic; return its life, None if it does not exist (yet). Raises `OpsError` if that is unknown."""
        label = f"{SIDE}@{len(self.lives) + 1}"
        made = TopicFact(label, SIDE, SIDE_PARTITIONS, segment_bytes=128 << 10, replicas=self._replicas)
        with KafkaAdmin(self._roles.bootstrap, ANSWER_SECONDS) as admin:
            try:
                admin.create_topic(SIDE, SIDE_PARTITIONS, made.replicas, configs(made))
            except OpsError:
                self._doubtful = replace(made, used=False)
                if not self._is_there():
                    return None
        self._doubtful = None
        self.lives.append(made)
        return made

    def known_everywhere(self) -> bool:
        """Wait until no node accepts records for an earlier life; return whether that was in time.

        A disconnected node keeps its metadata, and Produce has the topic's name, not its id: as in Apache Kafka, the
        records that it acknowledges belong to the deleted topic.
        """
        deadline = time.monotonic() + KNOWN_SECONDS
        wanted = (0, 0)
        behind = set(self._roles.nodes)
        while behind and time.monotonic() < deadline:
            pairs = {node: pair for node in self._roles.nodes if (pair := self._image_of(node)) is not None}
            if wanted == (0, 0):
                wanted = max(pairs.values(), default=wanted)
            behind -= {node for node, pair in pairs.items() if pair >= wanted > (0, 0)}
            if behind:
                time.sleep(LOOK_SECONDS)
        return not behind

    def _image_of(self, node: int) -> tuple[int, int] | None:
        try:
            response = self._roles.call(node, "incarnation")
            return int(response["generation"]), int(response["version"])
        except (OpsError, OSError, KeyError):
            return None

    def delete(self) -> bool:
        """Delete the topic; return whether it is deleted. Raises `OpsError` if that is unknown."""
        try:
            with KafkaAdmin(self._roles.bootstrap, ANSWER_SECONDS) as admin:
                admin.delete_topic(SIDE)
        except OpsError:
            if self._is_there():
                return False
        self.lives[-1] = replace(self.lives[-1], deleted=True)
        return True

    def settle(self) -> None:
        """Reconcile the lives with the existing topics, once no request is in progress."""
        there = self._is_there()
        if self.current is not None and not there:
            self.lives[-1] = replace(self.lives[-1], deleted=True)
        if self.current is None and there and self._doubtful is not None:
            self.lives.append(self._doubtful)

    def _is_there(self) -> bool:
        with KafkaAdmin(self._roles.bootstrap, ANSWER_SECONDS) as admin:
            return SIDE in admin.topics()
