"""Assemble the storage node: directories, replicas, move engine, metadata and listener.

It knows neither Temporal nor its controller's location: `ports` declares what it needs from above. It serves what is on
its disks with or without a controller. No other module of the package imports it: each part declares what it needs of
its node as a Protocol.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from storage_node import descriptors
from storage_node.admin import Admin, ProducerIds
from storage_node.alter_log_dirs import LogDirRequests
from storage_node.config.changes import log_config
from storage_node.config.node_config import NodeConfig
from storage_node.config.table import RECOVERY_THREADS
from storage_node.config.values import BrokerValues
from storage_node.directories import health
from storage_node.directories.directory import LogDirectory
from storage_node.directories.errors import StartRefused
from storage_node.directories.io_faults import Fault, fault_of, file_of, reason_of
from storage_node.directories.manager import DirectoryManager
from storage_node.errors import (
    LogDirectoryOffline,
    NotLeaderOrFollower,
    RequestRefused,
    StorageError,
    UnknownTopicOrPartition,
)
from storage_node.groups.coordinator import GroupCoordinator
from storage_node.lifecycle import interpreter, missing_directories
from storage_node.lifecycle.directory_history import DirectoryHistory, Event
from storage_node.lifecycle.failures import Failures, assigned
from storage_node.lifecycle.housekeeping import ASSIGN_BATCH, Housekeeping
from storage_node.lifecycle.offline_reports import OfflineReports
from storage_node.lifecycle.shut_down import close_logs, unless_hung
from storage_node.lifecycle.start_up import Started, start_up
from storage_node.log.rejected_first_batches import RejectedFirstBatches
from storage_node.metadata.cache import MetadataCache
from storage_node.metadata.check import MetadataCheck
from storage_node.model.commands import DirectoryFailed, Registration, ReplicaDirectory
from storage_node.model.evidence import evidence_row
from storage_node.model.ids import TopicPartition
from storage_node.model.image import BadImage, ClusterImage, decode_whole
from storage_node.model.metadata import DirectoryRegistration
from storage_node.move.engine import MoveEngine
from storage_node.move.host import PartitionLike
from storage_node.partitions.offset_files import OffsetFiles
from storage_node.partitions.partition import Partition
from storage_node.partitions.registry import Replicas
from storage_node.ports import Controller
from storage_node.protocol.apis.metadata_responses import Answers
from storage_node.protocol.fetch.sessions import FetchSessions
from storage_node.protocol.listener import Listener
from storage_node.publisher.creation import Creation
from storage_node.publisher.directory_changes import DirectoryChanges
from storage_node.publisher.healing import Healing
from storage_node.publisher.metadata_publisher import MetadataPublisher
from storage_node.publisher.next_image import NextImage
from storage_node.publisher.removal import Removal
from storage_node.publisher.reopening import reopen
from storage_node.publisher.roles import Roles
from storage_node.publisher.unresolved import Unresolved
from storage_node.replicas.preferred_log_dirs import PreferredLogDirs
from storage_node.replication.alter_partition_manager import AlterPartitionManager
from storage_node.replication.fetcher_manager import ReplicaFetcherManager
from storage_node.replication.partition_epoch_checkpoint import PartitionEpochCheckpoint
from storage_node.replication.quota import Quotas

log = logging.getLogger(__name__)

UNCLEAN = "unclean.leader.election.enable"

#: Seconds that a start that waits for one disk may still take after a directory was taken offline.
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
        self.alter_partition_manager = AlterPartitionManager(self)
        removal, roles = Removal(self), Roles(self)
        creation = Creation(self, roles, removal.result)
        self.metadata_publisher = MetadataPublisher(
            self,
            next_image=NextImage(self),
            roles=roles,
            removal=removal,
            creation=creation,
            unresolved=Unresolved(self, roles, removal.result),
            reopen=partial(reopen, self, removal.result),
        )
        self.directory_changes = DirectoryChanges(self, removal.result)
        self.healing = Healing(self, creation)
        self.offset_files = OffsetFiles(self.replicas)
        self.groups = GroupCoordinator(self)
        self.listener = Listener(self)
        self.housekeeping = Housekeeping(self)
        self.quotas = Quotas(self.id)
        self.fetch_sessions = FetchSessions()
        self.replica_fetchers = ReplicaFetcherManager(self)
        self.partition_epochs = PartitionEpochCheckpoint()
        self.rejected_first_batches = RejectedFirstBatches()
        self.failures = Failures(self.incarnation, self._report_failure)
        self.history = DirectoryHistory()
        self.offline_reports = OfflineReports(self)
        self.replicas.changed = self.offline_reports.changed
        self.halt: Callable[[str], None] = log.critical
        """Called with one sentence when the node cannot continue: its last log directory has failed."""
        self.controller_client: Callable[[], dict[str, Any] | None] = lambda: None
        """The state of the client by which this node reaches its controller, as JSON; None without a client."""
        self.catching_up: Callable[[], list[dict[str, Any]]] = list
        """Returns the progress of this node's new replicas; set by the runner of reassignments' steps."""
        self.recovered_bytes = 0
        self._watch: health.Watch
        self.dirs: DirectoryManager
        self.engine: MoveEngine
        self.preferred_log_dirs: PreferredLogDirs
        self.admin: Admin
        self.log_dirs: LogDirRequests
        self.producer_ids: ProducerIds
        self._failure_listeners: list[Callable[[LogDirectory, str], None]] = []
        self._state = threading.Lock()
        self._running = False
        self._patient = threading.Event()
        """Set unless the start's own thread waits for a disk: logs are being opened, or the node is up."""

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
            # First, so that the next start does not take a killed start for a clean stop.
            clean = self.dirs.take_clean_shutdowns()
            # Names are flushed before anything is decided by what was read under them.
            self.dirs.flush_found_names()
            self._load_image()
            self.failures.start(self.dirs, self.metadata.image, self.id)
            known = self.metadata.image.nodes.get(self.id)
            self.history.start(self.dirs, {each.id: each.path for each in known.directories} if known else {})
            self.preferred_log_dirs = PreferredLogDirs(self.dirs)
            self.preferred_log_dirs.load()
            self.partition_epochs.load(self.dirs.online())
            self.engine = MoveEngine(
                self,
                slots=config.move_threads,
                rate=config.move_rate,
                swap_seconds=config.move_deadline_ms / 1000,
                delete_delay_ms=config.log.file_delete_delay_ms,
                chunk=config.move_chunk,
            )
            self.dirs.on_failure(self._directory_failed)
            self.replica_fetchers.start()
            self._watch = health.Watch(
                self.dirs.directories,
                config.health_check_ms / 1000,
                patience,
                self.engine.swapper.asked,
                lambda directory, sign: self.history.add(directory, Event.SIGN, sign),
            )
            self._watch.start()
            image = self.metadata.image
            values = self.broker_values(image)
            threads, defaults = values.number(RECOVERY_THREADS), log_config(values)
            started = start_up(self.dirs, clean, image, self.id, defaults, threads, self._alone)
            self.serve_opened(started)
            self.failures.report_found(self.replicas.in_online_directories())
            self.metadata_publisher.reconcile(image)
            self.admin = Admin(self)
            self.log_dirs = LogDirRequests(self)
            self.producer_ids = ProducerIds(self)
            self.listener.start()
        except BaseException:
            self._abandon()
            raise
        self.housekeeping.start()
        self.alter_partition_manager.thread.start()
        self.offline_reports.thread.start()
        self.healing.thread.start()
        self._running = True
        self._patient.set()
        if self.unclean:
            log.warning(
                "node %d allows unclean elections (%s in its server.properties), which take place where all nodes do: "
                "records that only unavailable nodes have acknowledged are lost by one", self.id, UNCLEAN,
            )  # fmt: skip
        log.info("node %d listens on %s:%d, incarnation %s", self.id, self.host, self.port, self.incarnation)

    def _abandon(self) -> None:
        """Clean up after a failed start: everything on disk stays as it is for the next one."""
        self.listener.stop()
        self.replica_fetchers.stop()
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
                self.metadata.publish(decode_whole(stored.image))
                self.dirs.images.spread(stored)
            except BadImage as error:
                log.error("the cluster image on disk is not used: %s", error)

    def serve_opened(self, started: Started) -> None:
        """Serve what was opened, and continue its moves and deletions."""
        self.metadata_publisher.unresolved.add(started.left)
        self.replicas.add_all(started.partitions)
        for directory in self.dirs.directories:
            # The directory failed after its replicas were opened, so the failure did not take these offline.
            if not directory.online and (late := self.replicas.in_directory(directory)):
                self.take_offline_with(directory, [partition.tp for partition in late])
        self.recovered_bytes += started.recovered_bytes
        self.replicas.set_offline(started.offline, started.files)
        for plan in started.plans:
            if plan.state == "online" and plan.tp not in self.replicas.served:
                continue
            try:
                self.engine.resume(plan)
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
        self.alter_partition_manager.thread.stop()
        self.offline_reports.thread.stop()
        self.healing.thread.stop()
        self.listener.stop()
        self.groups.close()
        unless_hung(self.dirs, "creating and removing replicas", self.metadata_publisher.stop)
        unless_hung(self.dirs, "ending the fetchers", self.replica_fetchers.stop)
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
        """The host name in responses to clients."""
        return self.config.advertised.host

    @property
    def port(self) -> int:
        """The port in responses to clients; for a configured port 0 the one that was assigned."""
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
        """Return this broker's configs: its own, those of all brokers and server.properties."""
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
            image.cluster_generation,
            image.version,
            image.encode() if image.version and with_image else "",
            self.failures.offline_replicas(self.replicas.in_online_directories()),
            self.offline_reports.registered(),
            self.config.rack,
            self.unclean,
            image.cluster,
            self.housekeeping.moved_replicas()[:ASSIGN_BATCH],
        )

    def status(self) -> dict[str, Any]:
        """Return, for operators, the state of directories, replicas, moves and metadata."""
        generation, version = self.metadata.image.pair
        return {
            "node": self.id,
            "incarnation": self.incarnation,
            "generation": generation,
            "version": version,
            "metadata": self.metadata_check.status(),
            "directories": [
                {
                    "id": d.id,
                    "path": d.name,
                    "online": d.online,
                    "failure": d.failure,
                    "evidence": None if d.evidence is None else evidence_row(d.evidence),
                    "signs": d.signs() if d.online else {},
                }
                for d in self.dirs.directories
            ],
            "missing": missing_directories.rows(self.dirs, self.history, self.id),
            "replicas": len(self.replicas.served),
            "led": sum(partition.is_leader for partition in self.replicas.served.values()),
            "under_replicated": self.alter_partition_manager.under_replicated(),
            "offline": {str(tp): reason for tp, reason in self.replicas.offline.items()},
            "offline_replicas": self.offline_reports.rows(),
            "moves_stopped": self.engine.moves_stopped,
            "moves": len(self.engine.statuses()),
        }

    # Metadata

    def apply_images(self, images: Iterable[str], patience: float | None = None) -> tuple[int, int]:
        """Apply the controller's images, oldest first; return the (generation, version) applied after it.

        A higher pair than the controller's own means that the controller lost its state. `patience`: seconds to wait
        for the log directories, see `MetadataPublisher.apply`. Raises BadImage.
        """
        return self.metadata_publisher.apply(images, patience)

    def directories_changed(self) -> None:
        """Report soon to the controller that replicas were created or moved."""
        self.housekeeping.directories_changed()

    # Replicas

    def leader(self, tp: TopicPartition) -> Partition:
        """Return the replica of a partition that this node leads, or raise the error for the client."""
        partition = self.replicas.served.get(tp)
        if partition is not None:
            if not partition.is_leader:
                raise NotLeaderOrFollower(f"node {self.id} does not lead {tp}")
            return partition
        reason = self.replicas.offline.get(tp)
        row = self.metadata.image.partition(tp)
        if reason is not None and (row is None or self.id in row.replicas):
            raise LogDirectoryOffline(", ".join(d.name for d in self.dirs.directories), f"use of {tp} ({reason})")
        if row is not None:
            raise NotLeaderOrFollower(f"node {self.id} does not lead {tp}")
        raise UnknownTopicOrPartition(f"this node has no partition {tp}")

    def partition(self, tp: TopicPartition) -> Partition | None:
        """Return the replica that is served, with any leader (for the move engine)."""
        return self.replicas.served.get(tp)

    def directories(self) -> Sequence[LogDirectory]:
        """Return all of log.dirs, online or not (for the move engine)."""
        return self.dirs.directories

    def checkpoint(self, directory: LogDirectory, moving: PartitionLike | None) -> None:
        """Write one directory's checkpoint files, durably (for the move engine); raises StorageError."""
        self.offset_files.write_all(directory, moving)

    def moved(self) -> None:
        """Report soon to the controller that a replica has moved to another directory (for the move engine)."""
        self.directories_changed()

    def replica_failed(self, tp: TopicPartition, reason: str) -> None:
        """Take a replica offline alone (for the move engine): its directory is good, its name cannot be restored."""
        log.error("%s is taken offline: %s", tp, reason)
        self.replicas.set_offline({tp: reason})

    # Log directories at run time

    def watch(self, directory: LogDirectory) -> None:
        """Handle the failures of a directory from now on, and find them by health checks."""
        directory.on_failure(self._directory_failed)
        self._watch.add(directory)

    def unwatch(self, directory: LogDirectory) -> None:
        """End the health checks of a directory that is removed."""
        self._watch.remove(directory)

    # Failures

    def storage_failed(self, error: StorageError, tp: TopicPartition | None = None) -> None:
        """Take the directory that the error names offline: the one place that handles storage errors.

        If the directory is good and only a file of it is not (it does not exist, or is something else), only the
        replica `tp` goes offline, and the node reports it to the controller (KIP-18).
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

    def take_offline_with(self, directory: LogDirectory, tps: Iterable[TopicPartition]) -> None:
        """Take replicas offline whose directory failed while they were created, opened or moved there, and report
        them.
        """
        offline = [partition for tp in tps if (partition := self.replicas.served.get(tp)) is not None]
        self.replicas.set_offline({partition.tp: _why(directory) for partition in offline})
        self.failures.add_replicas(directory, _held(directory, offline))
        self._notify_listeners(directory, directory.failure or "")

    def _directory_failed(self, directory: LogDirectory, reason: str) -> None:
        offline = self.replicas.in_directory(directory)
        self.replicas.set_offline({partition.tp: _why(directory) for partition in offline})
        # During a start nothing is served yet: what the metadata has there is offline as well.
        known = {row.partition: row for row in assigned(self.metadata.image, self.id, directory.id)}
        held = _held(directory, offline)
        elsewhere = self.replicas.served.keys() | {row.partition for row in held}
        held += [row for tp, row in known.items() if tp not in elsewhere]
        self.failures.note(directory, reason, held, self.engine.statuses(), self.history.signs_of(directory))
        self.history.add(directory, Event.FAILED, reason, directory.evidence, [row.partition for row in held])
        self._notify_listeners(directory, reason)
        if not self._patient.is_set():
            threading.Thread(target=self._unless_stuck, args=(directory,), name="start", daemon=True).start()
        if not self.dirs.online():
            self.halt(
                f"node {self.id} stops: all its log directories are offline, the last one, {directory.path}, since "
                f"{reason}; repair one of them and start the node again"
            )

    def _alone(self, alone: bool) -> None:
        """Note whether the start's own thread is about to touch disks, or others that the start can abandon."""
        if alone:
            self._patient.clear()
        else:
            self._patient.set()

    def _unless_stuck(self, directory: LogDirectory) -> None:
        """End a start that hangs in a disk; the next one finds that the disk does not respond, and leaves it out."""
        if not self._patient.wait(START_PATIENCE):
            self.halt(
                f"node {self.id} stops: its start hangs in log directory {directory.path} ({directory.failure}); start "
                f"the node again, which leaves that directory offline until it responds"
            )

    def _notify_listeners(self, directory: LogDirectory, reason: str) -> None:
        for listener in list(self._failure_listeners):
            listener(directory, reason)

    def _report_failure(self, failure: DirectoryFailed, taken: Callable[[], None]) -> None:
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
