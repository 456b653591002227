"""The topics under torture: one for long moves, one with short retention, and one that comes and goes."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from ops.cli.kafka_admin import KafkaAdmin
from ops.stack.errors import OpsError
from ops.torture.facts import TopicFact
from ops.torture.roles import Roles

MAIN = TopicFact("orders", "orders", 6, segment_bytes=2 << 20)
SHORT = TopicFact("ticks", "ticks", 3, retention_bytes=1 << 20, segment_bytes=256 << 10)
SIDE = "visits"
#: Topics that no client uses: they give the controller and the nodes the metadata of a large cluster.
IDLE, IDLE_PARTITIONS = "idle-", 7
#: The topics that clients use.
USED = (MAIN.name, SHORT.name, SIDE)
SIDE_PARTITIONS = 2
ANSWER_SECONDS = 10.0
KNOWN_SECONDS = 30.0  # in which every node hears of a new life, or it is not filled
LOOK_SECONDS = 0.2


def idle(partitions: int, replicas: int) -> list[TopicFact]:
    """Return idle topics with so many partitions in all."""
    sizes = [IDLE_PARTITIONS] * (partitions // IDLE_PARTITIONS)
    if rest := partitions % IDLE_PARTITIONS:
        sizes.append(rest)
    names = (f"{IDLE}{number:04d}" for number in range(len(sizes)))
    return [TopicFact(name, name, size, replicas=replicas, used=False) for name, size in zip(names, sizes, strict=True)]


def configs(topic: TopicFact) -> dict[str, str]:
    """The topic configs by which it is made."""
    found = {"segment.bytes": str(topic.segment_bytes)}
    if topic.retention_bytes is not None:
        found["retention.bytes"] = str(topic.retention_bytes)
    if topic.replicas > 2:
        found["min.insync.replicas"] = str(topic.replicas - 1)
    return found


class Side:
    """The topic that comes and goes: each life has a label of its own. From one thread at a time."""

    def __init__(self, roles: Roles, replicas: int = 1) -> None:
        self._roles, self._replicas = roles, replicas
        self.guard = threading.Lock()
        self.lives: list[TopicFact] = []
        self._doubtful: TopicFact | None = None  # asked for, without an answer, and not there when it was looked for

    @property
    def current(self) -> TopicFact | None:
        """The life that is there now."""
        return self.lives[-1] if self.lives and not self.lives[-1].deleted else None

    def create(self) -> TopicFact | None:
        """A new life; None when it is not there, as yet at least. Raises `OpsError` when that is not known."""
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
        """Wait until no node takes records for an earlier life any more.

        A node that is cut off goes on with the metadata it has, and Produce names a topic, not its id: what it
        acknowledges meanwhile belongs to the topic that was deleted, here as with Apache Kafka.
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
            told = self._roles.call(node, "incarnation")
            return int(told["generation"]), int(told["version"])
        except (OpsError, OSError, KeyError):
            return None

    def delete(self) -> bool:
        """End the life; whether it is gone. Raises `OpsError` when that is not known."""
        try:
            with KafkaAdmin(self._roles.bootstrap, ANSWER_SECONDS) as admin:
                admin.delete_topic(SIDE)
        except OpsError:
            if self._is_there():
                return False
        self.lives[-1] = replace(self.lives[-1], deleted=True)
        return True

    def settle(self) -> None:
        """Bring what is known in line with what is there, when nothing is under way any more."""
        there = self._is_there()
        if self.current is not None and not there:
            self.lives[-1] = replace(self.lives[-1], deleted=True)
        if self.current is None and there and self._doubtful is not None:
            self.lives.append(self._doubtful)

    def _is_there(self) -> bool:
        with KafkaAdmin(self._roles.bootstrap, ANSWER_SECONDS) as admin:
            return SIDE in admin.topics()
