"""Make the replicas of a failed log directory again in the node's other directories, after a delay (KIP-18).

`storage_node.replication.healing` has the rule, the reasons, and what happens when the disk returns. A round asks the
leaders for the sizes of the replicas that may be made, reports their new directories to the controller, and only then
creates them. While it lasts, no log directory is brought online or replaced: the operator's request waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Protocol

from storage_node.asking import ASK_TIMEOUT, ControllerHost, ReportingThread
from storage_node.config.changes import cordoned
from storage_node.config.node_config import NodeConfig
from storage_node.config.values import BrokerValues
from storage_node.directories.manager import DirectoryManager
from storage_node.errors import RequestRefused, StorageError
from storage_node.lifecycle.directory_history import DirectoryHistory, Event
from storage_node.lifecycle.failures import Failures
from storage_node.metadata.cache import MetadataCache
from storage_node.model.commands import ReplicaDirectory
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.move.engine import MoveEngine
from storage_node.partitions.partition import Partition
from storage_node.partitions.registry import Replicas
from storage_node.publisher.creation import Creation
from storage_node.publisher.directory_changes import DirectoryChanges
from storage_node.publisher.metadata_publisher import MetadataPublisher
from storage_node.replication import healing
from storage_node.replication.healing import Room
from storage_node.replication.quota import Quotas
from storage_node.wire.client.log_sizes import log_sizes

log = logging.getLogger(__name__)

LOOK = 10.0
"""Seconds between two rounds, at most."""
BATCH = 500
"""Replicas of one round, at most."""
ARRIVAL = 2.0
"""Seconds to wait for the image that has what was reported."""

Sizes = Callable[[str, int, Collection[TopicPartition]], dict[TopicPartition, int]]


class HealingHost(ControllerHost, Protocol):
    """The node, as the healing of its directories uses it."""

    @property
    def id(self) -> int: ...

    @property
    def config(self) -> NodeConfig: ...

    @property
    def metadata(self) -> MetadataCache: ...

    @property
    def dirs(self) -> DirectoryManager: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def engine(self) -> MoveEngine: ...

    @property
    def failures(self) -> Failures: ...

    @property
    def history(self) -> DirectoryHistory: ...

    @property
    def quotas(self) -> Quotas: ...

    @property
    def directory_changes(self) -> DirectoryChanges: ...

    @property
    def metadata_publisher(self) -> MetadataPublisher: ...

    def broker_values(self, image: ClusterImage | None = None) -> BrokerValues:
        """Return this broker's configs."""
        ...


class Healing:
    """The rounds, on a thread of its own. `sizes` returns the bytes of a leader's replicas; it raises OSError."""

    def __init__(self, node: HealingHost, creation: Creation, sizes: Sizes = log_sizes) -> None:
        self._node, self._creation, self._sizes = node, creation, sizes
        self.thread = ReportingThread(node, f"healing-{node.id}", self._turn)
        self._expected: dict[TopicPartition, int] = {}
        """The bytes of replicas that were placed and are not in sync yet."""
        self._reasons: dict[TopicPartition, str] = {}
        """Why replicas wait that could be made but for a passing reason, as it was logged."""
        self._announced: frozenset[str] = frozenset()
        """The failed directories whose failure was logged."""

    def _turn(self) -> float:
        delay = self._node.config.log_dir_heal_delay_ms / 1000
        try:
            self.round()
        except (RequestRefused, TimeoutError) as error:
            log.info("replicas of a failed log directory wait to be made again: %s", error)
        return LOOK if delay < 0 else min(LOOK, max(0.2, delay / 4))

    def round(self) -> list[TopicPartition]:
        """Make what may be made now; return what was made. Raises RequestRefused and TimeoutError."""
        self._forget_in_sync()
        if self._node.config.log_dir_heal_delay_ms < 0 or not self._node.dirs.missing_ids():
            return []
        self._announce()
        made: list[TopicPartition] = []
        self._node.directory_changes.between_changes(lambda: made.extend(self._round()))
        return made

    def _announce(self) -> None:
        """Log once per failure when its replicas will be made again."""
        node, delay = self._node, self._node.config.log_dir_heal_delay_ms / 1000
        missing = node.failures.missing(node.metadata.image, node.id)
        for each in missing:
            if each.recorded and each.id not in self._announced and each.seconds < delay:
                log.warning(
                    "log directory %s has failed: its replicas that another node leads are made again in other log "
                    "directories in %.0f s, unless it returns (%s)", each.path, delay - each.seconds, healing.CONFIG,
                )  # fmt: skip
        self._announced = frozenset(each.id for each in missing if each.recorded)

    def _round(self) -> list[TopicPartition]:
        node = self._node
        image = node.metadata.image
        may = [tp for tp in self._candidates(image) if not self._why_not(image, tp)][:BATCH]
        places = self._places(image, may) if may else {}
        if not places:
            return []
        places = self._without_moves(places)
        before = {tp: self._last_path(image, tp) for tp in places}
        reported = self._report(image, places)
        node.quotas.follower.healing |= reported
        made = node.metadata_publisher.make_again(reported)
        self._note(made, before)
        return [partition.tp for partition in made]

    def _candidates(self, image: ClusterImage) -> list[TopicPartition]:
        """Return the replicas that are offline because their directory is; others have a folder that explains why."""
        node, missing = self._node, self._node.dirs.missing_ids()
        found = []
        for tp in sorted(node.replicas.offline.copy()):
            row, last = image.partition(tp), node.replicas.last_directory(tp)
            if row is None or node.id not in row.replicas or tp in node.replicas.doomed:
                continue
            if tp in node.metadata_publisher.unresolved or (last is not None and last.online):
                continue
            gone = row.directory_of(node.id) in missing or tp in node.metadata_publisher.lost_replicas
            if last is not None or gone or tp in self._expected:
                found.append(tp)
        return found

    def _why_not(self, image: ClusterImage, tp: TopicPartition) -> str:
        row = image.partition(tp)
        return "it does not exist" if row is None else self._creation.why_not_again(row)

    def _last_path(self, image: ClusterImage, tp: TopicPartition) -> str:
        """Return the path of the offline directory that a replica was in, "" where it is not known."""
        last, row = self._node.replicas.last_directory(tp), image.partition(tp)
        assigned = row.directory_of(self._node.id) if row is not None else None
        directory = last or (self._node.dirs.by_id(assigned) if assigned is not None else None)
        return directory.name if directory is not None and not directory.online else ""

    def _places(self, image: ClusterImage, tps: list[TopicPartition]) -> dict[TopicPartition, str]:
        """Return where there is space for these replicas, as large as their leaders' are."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in tps:
            row = image.partition(tp)
            assert row is not None
            by_leader.setdefault(row.leader, []).append(tp)
        sizes: dict[TopicPartition, int] = {}
        for leader, led in by_leader.items():
            where = image.nodes.get(leader)
            try:
                found = self._sizes(where.host, where.port, led) if where is not None else {}
            except OSError as error:
                log.info("the sizes of replicas of node %d are not known: %s", leader, error)
                found = {}
            sizes |= {tp: found[tp] for tp in led if tp in found}
        places = healing.place(sizes, self._rooms(set(tps)))
        for tp in tps:
            if tp not in sizes:
                self._wait(tp, "its leader does not report how large it is")
            elif tp not in places:
                self._wait(tp, f"no log directory has space for its {sizes[tp]} bytes and a tenth more")
            else:
                self._expected[tp] = sizes[tp]
        return places

    def _rooms(self, placed_now: Collection[TopicPartition]) -> list[Room]:
        """Return the directories that may get replicas, without the space that copies under way will use."""
        node = self._node
        online = node.dirs.online()
        closed = cordoned(node.broker_values(), [directory.name for directory in node.dirs.directories])
        promised = {directory.name: 0 for directory in online}
        for move in node.engine.statuses():
            if move.directory in promised:
                promised[move.directory] += max(0, move.bytes_total - move.bytes_copied)
        for tp, size in self._expected.items():
            served = node.replicas.served.get(tp)
            if served is not None and tp not in placed_now and served.directory.name in promised:
                promised[served.directory.name] += max(0, size - served.log.size)
        held: dict[str, list[int]] = {directory.name: [] for directory in online}
        for directory, size in node.replicas.sizes():
            held.get(directory.name, []).append(size)
        rooms = []
        for directory in online:
            try:
                free = directory.usage().usable
            except StorageError:
                continue  # the next health check decides about it
            sharing = [other for other in online if other is directory or other.shares_disk_with(directory)]
            free -= sum(promised[other.name] for other in sharing)
            if directory.name not in closed:
                sizes = held[directory.name]
                rooms.append(Room(directory.name, online.index(sharing[0]), free, sum(sizes), len(sizes)))
        return rooms

    def _without_moves(self, places: dict[TopicPartition, str]) -> dict[TopicPartition, str]:
        """Cancel the moves of these replicas, and return the places of those that have none now.

        One whose move cannot be cancelled, such as while a step of it hangs in the failed directory, waits alone.
        """
        free = {}
        for tp, path in places.items():
            try:
                self._node.engine.cancel(tp, None, "its replica is made again after its log directory has failed")
            except (RequestRefused, StorageError) as error:
                self._expected.pop(tp, None)
                self._wait(tp, f"its move cannot be cancelled: {error}")
            else:
                free[tp] = path
                self._reasons.pop(tp, None)
        return free

    def _report(self, image: ClusterImage, places: dict[TopicPartition, str]) -> set[TopicPartition]:
        """Let the metadata have the replicas in their new directories, one generation higher; return those that it has
        there.
        """
        node = self._node
        rows = []
        for tp, path in places.items():
            row, topic = image.partition(tp), image.topics[tp.topic]
            assert row is not None
            generation = row.generation_of(node.id) + 1
            rows.append(ReplicaDirectory(tp, topic.id, node.dirs.by_path(path).id, generation))
        results = self.thread.ask(lambda controller: controller.assign_directories(rows, timeout=ASK_TIMEOUT)) or []
        reported = set()
        for sent, result in zip(rows, results, strict=False):
            if result.error:
                self._wait(sent.partition, f"the controller refused its new log directory: {result.message}")
            else:
                reported.add(sent.partition)
        if reported:
            node.metadata.wait_for_version(max(result.version for result in results), ARRIVAL)
        return reported

    def _note(self, made: list[Partition], before: dict[TopicPartition, str]) -> None:
        by_path: dict[str, list[TopicPartition]] = {}
        for partition in made:
            by_path.setdefault(before[partition.tp], []).append(partition.tp)
        for path, tps in by_path.items():
            if path:
                reason = "made again in other log directories of the node"
                self._node.history.add(self._node.dirs.by_path(path), Event.REMADE, reason, held=tps)

    def _wait(self, tp: TopicPartition, why: str) -> None:
        if self._reasons.get(tp) != why:
            self._reasons[tp] = why
            log.warning("%s: it is not made again after its log directory has failed: %s", tp, why)

    def _forget_in_sync(self) -> None:
        """End what applies only to replicas that catch up: their share of the space, and the throttle."""
        node = self._node
        if not self._expected:
            return
        image = node.metadata.image
        for tp in list(self._expected):
            row = image.partition(tp)
            if row is None or node.id not in row.replicas or node.id in row.isr:
                del self._expected[tp]
        node.quotas.follower.healing &= self._expected.keys()
