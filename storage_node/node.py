"""The storage node: directories, replicas, mover, metadata and listener, put together.

Knows neither Temporal nor who its controller is: what it needs from above stands in `ports`. It serves what is on its
disks with or without a controller.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from storage_node import descriptors, interpreter
from storage_node.admin import Admin, ProducerIds
from storage_node.alter_log_dirs import LogDirRequests
from storage_node.config import NodeConfig
from storage_node.config_table import RECOVERY_THREADS
from storage_node.config_values import BrokerValues
from storage_node.directories import health
from storage_node.directories.directory import LogDirectory
from storage_node.directories.errors import StartRefused
from storage_node.directories.latch import Fault, fault_of, file_of, reason_of
from storage_node.directories.manager import DirectoryManager
from storage_node.errors import (
    LogDirectoryOffline,
    NotLeaderOrFollower,
    RequestRefused,
    StorageError,
    UnknownTopicOrPartition,
)
from storage_node.failures import Failures, assigned
from storage_node.groups.coordinator import GroupCoordinator
from storage_node.housekeeping import Housekeeping
from storage_node.images import Images
from storage_node.log.overtaking import RefusedEarly
from storage_node.metadata import BadImage, ClusterImage, MetadataCache, decode
from storage_node.metadata_check import MetadataCheck
from storage_node.move.engine import MoveEngine
from storage_node.move.host import PartitionLike
from storage_node.offline_reports import OfflineReports
from storage_node.offset_files import OffsetFiles
from storage_node.partition import Partition
from storage_node.ports import (
    Controller,
    DirectoryFailed,
    DirectoryRegistration,
    Registration,
    ReplicaDirectory,
)
from storage_node.protocol.answers import Answers
from storage_node.protocol.fetch_sessions import FetchSessions
from storage_node.protocol.server import Listener
from storage_node.replicas import Replicas
from storage_node.replication.fetcher import Fetchers
from storage_node.replication.held import HeldEpochs
from storage_node.replication.quota import Quotas
from storage_node.replication.reporter import IsrReporter
from storage_node.shut_down import close_logs, unless_hung
from storage_node.start_up import Started, start_up
from storage_node.topic_configs import log_config
from storage_node.types import TopicPartition
from storage_node.wishes import Wishes

log = logging.getLogger(__name__)

UNCLEAN = "unclean.leader.election.enable"

#: Seconds that a start may still take where it waits for one disk, after a directory was taken offline.
START_PATIENCE = 15.0


class Node:
    """One storage node, from `start` to `stop`. Calls block; the listener has a loop of its own."""

    def __init__(self, config: NodeConfig, controller: Controller | None = None) -> None:
        self.config = config
        self.id = config.node_id
        self.controller = controller
        self.incarnation = secrets.token_hex(8)
        self.metadata = MetadataCache()
        self.metadata_check = MetadataCheck(self.metadata)
        self.replicas = Replicas()
        self.answers = Answers()
        self.metadata.prepare = self.answers.rows.prepare
        self.isr = IsrReporter(self)
        self.images = Images(self)
        self.offset_files = OffsetFiles(self.replicas)
        self.groups = GroupCoordinator(self)
        self.listener = Listener(self)
        self.housekeeping = Housekeeping(self)
        self.quotas = Quotas(self.id)
        self.fetch_sessions = FetchSessions()
        self.fetchers = Fetchers(self)
        self.held = HeldEpochs()
        self.refused_early = RefusedEarly()
        self.failures = Failures(self.incarnation, self._tell_failure)
        self.offline_reports = OfflineReports(self)
        self.replicas.changed = self.offline_reports.changed
        self.halt: Callable[[str], None] = log.critical
        """Called with one sentence when the node cannot go on: its metadata directory, or the last one, has failed."""
        self.controller_client: Callable[[], dict[str, Any] | None] = lambda: None
        """The state of the client by which this node reaches its controller, as JSON; None without a client."""
        self.catching_up: Callable[[], list[dict[str, Any]]] = list
        """Returns the progress of this node's new replicas; set by the runner of reassignments' steps."""
        self.recovered_bytes = 0
        self._watch: health.Watch
        self.dirs: DirectoryManager
        self.engine: MoveEngine
        self.wishes: Wishes
        self.admin: Admin
        self.log_dirs: LogDirRequests
        self.producer_ids: ProducerIds
        self._failure_listeners: list[Callable[[LogDirectory, str], None]] = []
        self._state = threading.Lock()
        self._running = False
        self._patient = threading.Event()
        """Set while nobody waits for a disk alone: logs are being opened, or the node is up."""

    # Start and stop

    def start(self) -> None:
        """Lock the directories, recover what is on them, open the logs, listen.

        Raises StartRefused, ConfigError, or OSError when the listener's address is taken; nothing is left locked then.
        """
        if refused := interpreter.refusal():
            raise StartRefused(refused)
        config = self.config
        descriptors.raise_limit()
        patience = config.log_dir_failure_timeout_ms / 1000
        self.dirs = DirectoryManager.open(
            config.log_dirs,
            node_id=self.id,
            cluster_id=config.cluster_id or None,
            threads=config.io_threads_per_dir,
            patience=patience,
            metadata=config.metadata_beside,
        )
        try:
            self.listener.bind()
            # First of all: a start that is killed half-way must not look like a clean stop to the next one.
            clean = self.dirs.take_clean_shutdowns()
            # Nothing is read from which something could follow before it is there to stay.
            self.dirs.flush_found_names()
            self._load_image()
            self.failures.start(self.dirs, self.metadata.image, self.id)
            self.wishes = Wishes(self.dirs)
            self.wishes.load()
            self.held.load(self.dirs.online())
            self.engine = MoveEngine(
                self,
                slots=config.move_threads,
                rate=config.move_rate,
                swap_seconds=config.move_deadline_ms / 1000,
                delete_delay_ms=config.log.file_delete_delay_ms,
                chunk=config.move_chunk,
            )
            self.dirs.on_failure(self._directory_failed)
            self.fetchers.start()
            self._watch = health.Watch(
                self.dirs.directories, config.health_check_ms / 1000, patience, self.engine.swapper.asked
            )
            self._watch.start()
            image = self.metadata.image
            values = self.broker_values(image)
            threads, defaults = values.number(RECOVERY_THREADS), log_config(values)
            started = start_up(self.dirs, clean, image, self.id, defaults, threads, self._alone)
            self.take_over(started)
            self.images.reconcile(image)
            self.admin = Admin(self)
            self.log_dirs = LogDirRequests(self)
            self.producer_ids = ProducerIds(self)
            self.listener.start()
        except BaseException:
            self._abandon()
            raise
        self.housekeeping.start()
        self.isr.start()
        self.offline_reports.start()
        self._running = True
        self._patient.set()
        if self.unclean:
            log.warning(
                "node %d allows unclean elections (%s in its server.properties), which counts where all nodes do: what "
                "only nodes that are away have acknowledged is lost then", self.id, UNCLEAN,
            )  # fmt: skip
        log.info("node %d listens on %s:%d, incarnation %s", self.id, self.host, self.port, self.incarnation)

    def _abandon(self) -> None:
        """A start that failed: everything on disk stays as it is for the next one."""
        self.listener.stop()
        self.fetchers.stop()
        self.groups.close()
        self.failures.stop()
        if hasattr(self, "_watch"):
            self._watch.stop(1.0)
        if hasattr(self, "engine"):
            self.engine.close()
        close_logs(self.dirs, self.replicas, self.offset_files, 1, self.epoch, clean=False)
        self.dirs.close()

    def _load_image(self) -> None:
        stored, problems = self.dirs.images.load()
        for problem in problems:
            log.warning("%s", problem)
        if stored is not None:
            try:
                self.metadata.publish(decode(stored.image))
                self.dirs.images.spread(stored)
            except BadImage as error:
                log.error("the cluster image on disk is not used: %s", error)

    def take_over(self, started: Started) -> None:
        """Serve what was opened, and go on with its moves and deletions."""
        self.images.undecided.add(started.left)
        self.replicas.add_all(started.partitions)
        for directory in self.dirs.directories:
            # It failed after its replicas were opened, and whoever took them offline did not see these.
            if not directory.online and (late := self.replicas.in_directory(directory)):
                self.lose(directory, late)
        self.recovered_bytes += started.recovered_bytes
        self.replicas.set_offline(started.offline, started.files)
        for plan in started.plans:
            if plan.state == "online" and plan.tp not in self.replicas.served:
                continue
            try:
                self.engine.take_over(plan)
            except StorageError as error:
                self.storage_failed(error)
            except RequestRefused as error:
                log.warning("%s: %s", plan.tp, error)

    def stop(self, clean: bool = True) -> None:
        """Stop serving; after a clean stop the next start scans nothing. May be called twice."""
        with self._state:
            if not self._running:
                return
            self._running = False
        self.housekeeping.stop()
        self.isr.stop()
        self.offline_reports.stop()
        self.listener.stop()
        self.groups.close()
        unless_hung(self.dirs, "creating and removing replicas", self.images.stop)
        unless_hung(self.dirs, "ending the fetchers", self.fetchers.stop)
        unless_hung(self.dirs, "ending the moves", partial(self.engine.close, clean))
        threads, epoch = self.broker_values().number(RECOVERY_THREADS), self.epoch
        closing = partial(close_logs, self.dirs, self.replicas, self.offset_files, threads, epoch, clean)
        unless_hung(self.dirs, "closing the logs", closing)
        self._watch.stop(1.0)
        self.failures.stop()
        self.dirs.close()
        log.info("node %d stopped", self.id)

    # What it is

    @property
    def host(self) -> str:
        """The host name that clients are told."""
        return self.config.advertised.host

    @property
    def port(self) -> int:
        """The port that clients are told; of a configured port 0 the one that was free."""
        return self.config.advertised.port or self.listener.port

    @property
    def unclean(self) -> bool:
        """unclean.leader.election.enable of its server.properties."""
        return BrokerValues({}, {}, self.config.values).effective().get(UNCLEAN, "").lower() == "true"

    @property
    def cluster_id(self) -> str:
        return self.dirs.cluster_id

    @property
    def epoch(self) -> int:
        """The broker epoch of the newest image; -1 before the first registration."""
        row = self.metadata.image.nodes.get(self.id)
        return row.broker_epoch if row is not None else -1

    def broker_values(self, image: ClusterImage | None = None) -> BrokerValues:
        """This broker's configs: its own, those of all brokers and server.properties."""
        own, default = (image or self.metadata.image).dynamic_configs(self.id)
        return BrokerValues(own, default, self.config.values)

    def registration(self, *, with_image: bool = True) -> Registration:
        """Return what a starting node sends to the controller, with its newest image, which is encoded for it."""
        image = self.metadata.image
        return Registration(
            self.id,
            self.incarnation,
            self.host,
            self.port,
            tuple(DirectoryRegistration(d.id, d.name, d.online) for d in self.dirs.directories),
            image.generation,
            image.version,
            image.encode() if image.version and with_image else "",
            self.failures.lost(),
            self.offline_reports.registered(),
            self.config.rack,
            self.unclean,
        )

    def status(self) -> dict[str, Any]:
        """For people: directories, replicas, moves, metadata."""
        generation, version = self.metadata.image.age
        return {
            "node": self.id,
            "incarnation": self.incarnation,
            "generation": generation,
            "version": version,
            "metadata": self.metadata_check.status(),
            "directories": [
                {"id": d.id, "path": d.name, "online": d.online, "failure": d.failure} for d in self.dirs.directories
            ],
            "replicas": len(self.replicas.served),
            "led": sum(partition.is_leader for partition in self.replicas.served.values()),
            "under_replicated": self.isr.under_replicated(),
            "offline": {str(tp): reason for tp, reason in self.replicas.offline.items()},
            "offline_replicas": self.offline_reports.rows(),
            "moves_stopped": self.engine.moves_stopped,
            "moves": len(self.engine.statuses()),
        }

    # Metadata

    def apply_images(self, images: Iterable[str], patience: float | None = None) -> tuple[int, int]:
        """Apply the controller's images, oldest first; answers the (generation, version) known after it.

        A higher pair than the controller's own means that the controller lost its memory. `patience`: seconds to wait
        for the log directories, see `Images.apply`. Raises BadImage.
        """
        return self.images.apply(images, patience)

    def directories_changed(self) -> None:
        """Replicas were created or moved: the controller is told soon."""
        self.housekeeping.directories_changed()

    # Replicas

    def leader(self, tp: TopicPartition) -> Partition:
        """The replica of a partition that this node leads; raises what the client is told when there is none."""
        partition = self.replicas.served.get(tp)
        if partition is not None:
            if not partition.is_leader:
                raise NotLeaderOrFollower(f"node {self.id} does not lead {tp}")
            return partition
        reason = self.replicas.offline.get(tp)
        row = self.metadata.image.partition(tp)
        if reason is not None and (row is None or self.id in row.replicas):
            raise LogDirectoryOffline(", ".join(self.config.log_dirs), f"use of {tp} ({reason})")
        if row is not None:
            raise NotLeaderOrFollower(f"node {self.id} does not lead {tp}")
        raise UnknownTopicOrPartition(f"this node knows no partition {tp}")

    def partition(self, tp: TopicPartition) -> Partition | None:
        """The replica that is served, whoever leads it (for the mover)."""
        return self.replicas.served.get(tp)

    def directories(self) -> Sequence[LogDirectory]:
        """All of log.dirs, online or not (for the mover)."""
        return self.dirs.directories

    def checkpoint(self, directory: LogDirectory, moving: PartitionLike | None) -> None:
        """Write one directory's checkpoint files, durable (for the mover); raises StorageError."""
        self.offset_files.write_all(directory, moving)

    def moved(self) -> None:
        """A replica has moved to another directory (from the mover): the controller is told soon."""
        self.directories_changed()

    def lost(self, tp: TopicPartition, reason: str) -> None:
        """A replica goes offline alone (from the mover): its directory is good, its name cannot be given back."""
        log.error("%s is taken offline: %s", tp, reason)
        self.replicas.set_offline({tp: reason})

    # Failures

    def storage_failed(self, error: StorageError, tp: TopicPartition | None = None) -> None:
        """The one place that handles storage errors, whoever met them: the directory that it names goes offline.

        Where the directory is good and only a file of it is not (it is gone, or something else stands there), the
        replica `tp` goes offline alone, and the controller is told (KIP-18).
        """
        if self.dirs.handle(error) or tp is None or fault_of(error) is not Fault.FILE:
            return
        partition = self.replicas.served.get(tp)
        if partition is not None and partition.directory.online and partition.directory.name == error.directory:
            file = file_of(error, partition.log.path)
            log.error("%s is taken offline: %s (%s)", tp, reason_of(error), file)
            self.replicas.set_offline({tp: reason_of(error)}, {tp: str(file)})

    def on_directory_failure(self, listener: Callable[[LogDirectory, str], None]) -> None:
        """Call `listener(directory, reason)` after the replicas of a failed directory were taken offline."""
        self._failure_listeners.append(listener)

    def lose(self, directory: LogDirectory, partitions: Iterable[Partition]) -> None:
        """Replicas were made in a directory that failed meanwhile: they are offline, and the controller is told."""
        lost = list(partitions)
        self.replicas.set_offline({partition.tp: _why(directory) for partition in lost})
        self.failures.lose(directory, _held(directory, lost))
        self._tell_listeners(directory, directory.failure or "")

    def _directory_failed(self, directory: LogDirectory, reason: str) -> None:
        lost = self.replicas.in_directory(directory)
        self.replicas.set_offline({partition.tp: _why(directory) for partition in lost})
        # During a start nothing is served yet: what the metadata has there is lost as well.
        known = {row.partition: row for row in assigned(self.metadata.image, self.id, directory.id)}
        held = _held(directory, lost)
        elsewhere = self.replicas.served.keys() | {row.partition for row in held}
        held += [row for tp, row in known.items() if tp not in elsewhere]
        self.failures.note(directory, reason, held, self.engine.statuses())
        self._tell_listeners(directory, reason)
        if not self._patient.is_set():
            threading.Thread(target=self._unless_stuck, args=(directory,), name="start", daemon=True).start()
        if not self.dirs.online():
            self.halt(
                f"node {self.id} stops: all its log directories are offline, the last one, {directory.path}, since "
                f"{reason}; repair one of them and start the node again"
            )
        elif directory is self.dirs.metadata_directory:
            self.halt(
                f"node {self.id} stops: its metadata log directory {directory.path} is offline since {reason}; repair "
                f"it, or put another one first in log.dirs, and start the node again"
            )

    def _alone(self, alone: bool) -> None:
        """Whether the start's own thread is about to touch disks, or others that nobody waits for."""
        if alone:
            self._patient.clear()
        else:
            self._patient.set()

    def _unless_stuck(self, directory: LogDirectory) -> None:
        """A start that hangs in a disk ends here; the next one finds the disk silent, and leaves it out."""
        if not self._patient.wait(START_PATIENCE):
            self.halt(
                f"node {self.id} stops: its start hangs in log directory {directory.path} ({directory.failure}); start "
                f"the node again, which leaves that directory offline until it answers"
            )

    def _tell_listeners(self, directory: LogDirectory, reason: str) -> None:
        for listener in list(self._failure_listeners):
            listener(directory, reason)

    def _tell_failure(self, failure: DirectoryFailed, taken: Callable[[], None]) -> None:
        if self.controller is not None:
            self.controller.directory_failed(failure, taken)


def _why(directory: LogDirectory) -> str:
    return f"log directory {directory.path} is offline: {directory.failure}"


def _held(directory: LogDirectory, partitions: Iterable[Partition]) -> list[ReplicaDirectory]:
    return [
        ReplicaDirectory(partition.tp, partition.topic_id, directory.id, partition.generation)
        for partition in partitions
        if partition.topic_id
    ]
