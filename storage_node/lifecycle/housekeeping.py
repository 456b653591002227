"""Run the node's periodic work: retention, flushes, checkpoints, health of directories, and reports of replicas'
directories.

Work on a disk runs in that directory's background threads, so that one that hangs delays only its own, and no append
waits for it. Nothing is written to a directory that is offline.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from storage_node.asking import ASK_TIMEOUT, ask_controller
from storage_node.directories.directory import LogDirectory
from storage_node.errors import RequestRefused, StorageError
from storage_node.lifecycle.host import HousekeepingHost
from storage_node.model.commands import ReplicaDirectory
from storage_node.model.ids import LOST
from storage_node.model.image import ClusterImage
from storage_node.partitions.partition import Partition
from storage_node.partitions.producer_bounds import bound
from storage_node.ports import Controller
from storage_node.replication.balance import LeaderBalance

log = logging.getLogger(__name__)

T = TypeVar("T")

#: A removed segment or a lost disk is noticed at most this many seconds late.
TICK = 1.0
#: Seconds between two counts of the producers in all logs: clients can add only a few MB of them meanwhile.
PRODUCERS_EVERY = 2.0
#: Seconds between two attempts at deletions that have failed.
REMOVALS_EVERY = 10.0
#: Between attempts while the controller does not respond.
LONGEST_PAUSE = 10.0
#: AssignReplicasToDirs carries at most this many replicas at once (KIP-858's limit).
ASSIGN_BATCH = 2250


def now_ms() -> int:
    """Return the wall clock, in milliseconds."""
    return time.time_ns() // 1_000_000


class Housekeeping:
    """Two threads from `start` to `stop`: one for the disks, one for requests to the controller."""

    def __init__(self, node: HousekeepingHost) -> None:
        self._node = node
        self._stopping = threading.Event()
        self._moved = threading.Event()
        self._threads: list[threading.Thread] = []
        self._busy: WeakKeyDictionary[LogDirectory, dict[str, Future[None]]] = WeakKeyDictionary()
        self._removing: threading.Thread | None = None
        self._balance = LeaderBalance(node)
        self._agreed: ClusterImage | None = None
        """The image that had every replica in its directory, unless something has changed since."""
        self._compared = 0.0

    def start(self) -> None:
        for name, run in (("housekeeping", self._run), ("assignments", self._assign)):
            thread = threading.Thread(target=run, name=f"{name}-{self._node.id}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._stopping.set()
        self._moved.set()
        for thread in self._threads:
            thread.join(ASK_TIMEOUT + 5)
        self._threads = []

    # Disks

    def _run(self) -> None:
        config = self._node.config
        jobs: list[tuple[str, int, Callable[[LogDirectory], None]]] = [
            ("health", 1000, self._health),
            ("segments", 1000, self._segments),
            ("retention", config.retention_check_ms, self._retention),
            ("high-watermarks", config.high_watermark_checkpoint_ms, self._node.offset_files.high_watermarks),
            ("recovery-points", config.recovery_checkpoint_ms, self._node.offset_files.recovery_points),
            ("held-replicas", config.recovery_checkpoint_ms, self._held),
            ("log-starts", config.start_offset_checkpoint_ms, self._node.offset_files.log_starts),
            ("flush", min(config.flush_scheduler_ms, 10_000), self._flush),
        ]
        due = {name: time.monotonic() + interval / 1000 for name, interval, _ in jobs}
        look = 0.0
        removals = time.monotonic() + REMOVALS_EVERY
        while not self._stopping.wait(min(TICK, min(interval for _, interval, _ in jobs) / 1000)):
            for name, interval, job in jobs:
                if time.monotonic() >= due[name]:
                    due[name] = time.monotonic() + interval / 1000
                    self._everywhere(name, job)
            if time.monotonic() >= look:
                look = time.monotonic() + PRODUCERS_EVERY
                self._bound_producers()
            if time.monotonic() >= removals:
                removals = time.monotonic() + REMOVALS_EVERY
                self._retry_removals()

    def _retry_removals(self) -> None:
        """Beside the other jobs: a disk that hangs delays them."""
        if self._removing is None or not self._removing.is_alive():
            retry = self._node.metadata_publisher.retry_removals
            self._removing = threading.Thread(target=retry, name="removals", daemon=True)
            self._removing.start()

    def _everywhere(self, name: str, job: Callable[[LogDirectory], None]) -> None:
        """Start a job in every directory that is online and not still busy with it."""
        for directory in self._node.dirs.online():
            busy = self._busy.setdefault(directory, {})
            before = busy.get(name)
            if before is None or before.done():
                try:
                    busy[name] = directory.background(self._guarded, job, directory)
                except (StorageError, RuntimeError):
                    continue

    def _guarded(self, job: Callable[[LogDirectory], None], directory: LogDirectory) -> None:
        try:
            job(directory)
        except StorageError as error:
            self._node.storage_failed(error)
        except RequestRefused as error:
            log.warning("housekeeping in %s: %s", directory.path, error)
        except Exception:
            log.exception("housekeeping in %s", directory.path)

    def _bound_producers(self) -> None:
        """Count producers here, without access to disks; replicas forget them in the threads of their directories."""
        partitions = self._node.replicas.served.values()
        forget = bound(partitions)
        if forget is not None:

            def job(directory: LogDirectory) -> None:
                self._each(self._node.replicas.in_directory(directory), directory, forget)

            self._everywhere("producers", job)

    def _health(self, directory: LogDirectory) -> None:
        directory.verify()

    def _segments(self, directory: LogDirectory) -> None:
        """Flush full segments, so that a start after a crash scans only the last one, and purge removed ones."""
        untidy = [partition for partition in self._node.replicas.in_directory(directory) if partition.log.untidy]
        self._each(untidy, directory, lambda partition: partition.tidy(now_ms()))

    def _retention(self, directory: LogDirectory) -> None:
        replicas = self._node.replicas.in_directory(directory)
        self._each(replicas, directory, lambda partition: partition.delete_old_segments(now_ms()))

    def _held(self, directory: LogDirectory) -> None:
        served = self._node.replicas.served
        self._node.partition_epochs.write(
            directory, lambda tp: (part := served.get(tp)) is not None and part.directory is not directory
        )

    def _flush(self, directory: LogDirectory) -> None:
        replicas = self._node.replicas.in_directory(directory)
        self._each(replicas, directory, lambda partition: partition.flush_if_due(now_ms()))

    def _each(
        self, replicas: Iterable[Partition], directory: LogDirectory, work: Callable[[Partition], object]
    ) -> None:
        for partition in replicas:
            try:
                work(partition)
            except StorageError as error:
                self._node.storage_failed(error, partition.tp)
                if not directory.online:
                    return
            except RequestRefused as error:
                # A swap or a deletion has closed it meanwhile, or the disk is full: the next round tries again.
                log.debug("housekeeping of %s: %s", partition.tp, error)

    # The controller

    def directories_changed(self) -> None:
        """Report the directories of replicas soon, because some were created or moved."""
        self._agreed = None
        self._moved.set()

    def _assign(self) -> None:
        """Report to the controller whatever differs from the newest image, until nothing differs
        (AssignReplicasToDirs).
        """
        pause = TICK
        while not self._stopping.is_set():
            self._moved.wait(pause)
            self._moved.clear()
            if self._stopping.is_set():
                return
            try:
                reported = self._assign_once()
                self._ask(lambda _: self._node.producer_ids.top_up())
                self._ask(lambda _: self._balance.look())
                pause = TICK if reported else min(pause * 2, LONGEST_PAUSE)
            except (RequestRefused, TimeoutError) as error:
                log.info("the controller does not respond: %s", error)
                pause = min(pause * 2, LONGEST_PAUSE)
            except Exception:
                log.exception("talking to the controller")
                pause = LONGEST_PAUSE

    def _assign_once(self) -> bool:
        now, image = time.monotonic(), self._node.metadata.image
        if self._agreed is image and now < self._compared + LONGEST_PAUSE:
            return True
        # Before the comparison, because a change meanwhile must reset it.
        self._agreed, self._compared = image, now
        if self._node.controller is not None and self._registered_offline(image):
            self._node.controller.register_again()
        rows = self.differing()[:ASSIGN_BATCH]
        if not rows or self._node.controller is None:
            return True
        self._agreed = None
        results = self._ask(lambda controller: controller.assign_directories(rows, timeout=ASK_TIMEOUT))
        return results is not None and not any(result.error for result in results)

    def _registered_offline(self, image: ClusterImage) -> bool:
        """Return whether the metadata lacks, or has as failed, a directory that is online.

        It was brought back, and a report of its failure that was under way has arrived after that registration.
        """
        row = image.nodes.get(self._node.id)
        if row is None or row.incarnation != self._node.incarnation:
            return False
        online = {directory.id for directory in row.directories if directory.online}
        return not online.issuperset(directory.id for directory in self._node.dirs.online())

    def _ask(self, call: Callable[[Controller], Coroutine[Any, Any, T]]) -> T | None:
        return ask_controller(self._node, call, self._stopping)

    def differing(self) -> list[ReplicaDirectory]:
        """Return what the newest image lacks: `moved_replicas`, and those that no disk holds."""
        return [*self.moved_replicas(), *self._lost()]

    def moved_replicas(self) -> tuple[ReplicaDirectory, ...]:
        """Return replicas that are in another directory than in the newest image, or at a higher generation."""
        node = self._node
        image = node.metadata.image
        rows = []
        for tp, partition in node.replicas.served.items():
            row = image.partition(tp)
            if row is None or node.id not in row.replicas or not partition.topic_id:
                continue
            if image.topics[tp.topic].id != partition.topic_id:
                continue
            here = partition.directory.id
            # An announced move has raised the metadata's generation already; a lower one here is expected.
            if row.directory_of(node.id) != here or row.generation_of(node.id) < partition.generation:
                rows.append(ReplicaDirectory(tp, partition.topic_id, here, partition.generation))
        return tuple(rows)

    def _lost(self) -> list[ReplicaDirectory]:
        """Return replicas that no disk holds and that are not reported so yet; reported as lost, they leave the ISR."""
        node = self._node
        image = node.metadata.image
        if node.dirs.missing_ids():
            return []  # a missing directory may have them
        found = [
            (tp, image.partition(tp)) for tp in node.metadata_publisher.lost_replicas if tp in node.replicas.offline
        ]
        return [
            ReplicaDirectory(tp, image.topics[tp.topic].id, LOST, row.generation_of(node.id))
            for tp, row in found
            if row is not None and node.id in row.replicas and row.directory_of(node.id) != LOST
        ]
