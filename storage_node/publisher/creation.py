"""Create the replicas that an image has on this node: where, with which generation, and what their failure means."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar

from storage_node.config.changes import cordoned, log_config, topic_config
from storage_node.config.values import BrokerValues
from storage_node.directories.directory import LogDirectory
from storage_node.errors import StorageError
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.model.ids import LOST, TopicPartition
from storage_node.model.metadata import PartitionImage, TopicImage
from storage_node.partitions.partition import Partition
from storage_node.publisher.host import CreationHost
from storage_node.publisher.roles import Roles
from storage_node.replicas.new_logs import Created, NewReplica, create_logs
from storage_node.replication import healing, lost_replicas

log = logging.getLogger(__name__)

Wanted = tuple[TopicPartition, TopicImage, PartitionImage]
"""A replica that this node must hold and does not have yet."""


class Result(Protocol):
    """Waits for the result of a job in a directory; `progress` grows while the job makes progress."""

    def __call__(self, job: Future[T], directory: LogDirectory, progress: Callable[[], int]) -> T: ...


T = TypeVar("T")

KNOWN = 1.0  # seconds for the other directories to store an image, before replicas are created that only it names


class Creation:
    """The creator of replicas; its calls block, for one image at a time."""

    def __init__(self, node: CreationHost, roles: Roles, result: Result) -> None:
        """Create it; `result` returns the result of a job in a directory's pool, or raises StorageError once that
        directory is given up; its third argument reports the job's progress.
        """
        self._node, self._roles, self._result = node, roles, result
        self.defaults = node.config.log
        """The configs of a log whose topic has none of its own."""
        self._cordoned: frozenset[str] = frozenset()
        self.lost_replicas: frozenset[TopicPartition] = frozenset()
        """Replicas that the metadata has here, that no disk holds, and that may be created again later."""

    def configure(self, broker: BrokerValues) -> None:
        """Take over the broker's configs: the logs' defaults, and the directories that get no new replica."""
        self._cordoned = cordoned(broker, [directory.name for directory in self._node.dirs.directories])
        self.defaults = log_config(broker)

    def config(self, topic: TopicImage) -> LogConfig:
        """Return the configs of a topic's logs."""
        return topic_config(topic, self.defaults)

    def why_not_again(self, row: PartitionImage) -> str:
        """Return why a replica in a failed directory is not made again in another one now, or ""."""
        node = self._node
        return healing.why_not(
            row,
            node.id,
            registered=self._roles.registered,
            missing=node.failures.missing(node.metadata.image, node.id),
            delay=node.config.log_dir_heal_delay_ms / 1000,
        )

    def found(self, tp: TopicPartition) -> None:
        """Note that a lost replica is served again."""
        self.lost_replicas -= {tp}

    def create(self, wanted: Sequence[Wanted], *, first: bool) -> None:
        """Create these replicas; `first` at a start, for the image on the disks."""
        with self._node.preferred_log_dirs.making([tp for tp, _, _ in wanted]):
            self._make_all(wanted, first)
        if wanted:
            self._node.directories_changed()

    def _make_all(self, wanted: Sequence[Wanted], first: bool) -> None:
        beside = bool(self._node.dirs.missing_ids())
        again = {tp for tp, _, row in wanted if beside and self._recreated(row)}
        places = self._place(wanted, first)
        if places:
            # With this image, a start on the remaining directories knows that a missing one may hold a replica.
            self._node.dirs.images.flush(KNOWN)
        above = 0
        while places:
            failed = self._create_in(places, wanted, above)
            # Another directory takes what a failed one did not, as long as there is one (KIP-112). Whatever the failed
            # one has of the replica is older than the one that is created now, for a start that finds both.
            above += 1
            # (The metadata must know first where a replica is that a missing directory may hold.)
            places = self._elsewhere([tp for tp in failed if tp not in again])

    def _elsewhere(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, LogDirectory]:
        """Return other directories for replicas whose directories failed; empty if there is none."""
        try:
            places = self._node.dirs.place(self._node.replicas.sizes(), len(tps), self._cordoned) if tps else []
        except StorageError:
            return {}
        return dict(zip(tps, places, strict=True))

    def _create_in(
        self,
        places: Mapping[TopicPartition, LogDirectory],
        wanted: Sequence[Wanted],
        above: int,
    ) -> list[TopicPartition]:
        """Create the replicas, at generations `above` those of the metadata; return those whose directories failed."""
        by_directory: dict[str, list[NewReplica]] = {}
        rows = {tp: row for tp, _, row in wanted}
        generations = {tp: row.generation_of(self._node.id) + above + self._recreated(row) for tp, _, row in wanted}
        failed: list[TopicPartition] = []
        missing = self._node.dirs.missing_ids()
        for tp, topic, row in wanted:
            directory = places.get(tp)
            if directory is not None:
                generation = generations[tp] if above or self._recreated(row) else 0
                epoch = row.partition_epoch if missing else -1
                new = NewReplica(tp, topic.id, self.config(topic), generation, epoch)
                by_directory.setdefault(directory.name, []).append(new)
        jobs: list[tuple[LogDirectory, list[TopicPartition], list[Created], Future[list[Created]] | None]] = []
        refused: dict[TopicPartition, str] = {}
        for name, specs in by_directory.items():
            directory = self._node.dirs.by_path(name)
            tps, progress = [spec.tp for spec in specs], list[Created]()
            try:
                jobs.append(
                    (directory, tps, progress, directory.for_image(self._make, directory, specs, progress, refused))
                )
            except StorageError:
                jobs.append((directory, tps, progress, None))
        for directory, tps, progress, job in jobs:
            try:
                made = self._result(job, directory, progress.__len__) if job is not None else []
            except StorageError as error:
                self._node.storage_failed(error)
                log.error("replicas could not be created in %s: %s", directory.path, error)
                made = []
            partitions = [
                self._partition(directory, tp, topic_id, new, rows[tp], generations[tp]) for tp, topic_id, new in made
            ]
            self._node.replicas.add_all(partitions)
            if not directory.online:
                # It failed after they were created, so the failure did not take them offline.
                self._node.take_offline_with(directory, [partition.tp for partition in partitions])
            created = {partition.tp for partition in partitions}
            self._forget_preferences(created)
            reason = f"it could not be created in log directory {directory.path}"
            left = [tp for tp in tps if tp not in created]
            self._node.replicas.set_offline(
                {tp: f"{reason}: {refused[tp]}" if tp in refused else reason for tp in left}
            )
            failed += left if not directory.online else []
        return failed

    def _forget_preferences(self, created: Collection[TopicPartition]) -> None:
        try:
            self._node.preferred_log_dirs.forget(created)
        except StorageError as error:
            # The replica exists: its entry in the file only matters while it does not.
            self._node.storage_failed(error)

    def _make(
        self,
        directory: LogDirectory,
        specs: list[NewReplica],
        made: list[Created],
        refused: dict[TopicPartition, str],
    ) -> list[Created]:
        """Create the logs; runs on the threads that the directory has for images."""
        self._node.offset_files.forget(directory, [spec.tp for spec in specs])
        self._node.partition_epochs.add(directory, [spec.tp for spec in specs])
        return create_logs(directory, specs, made, refused)

    def _recreated(self, row: PartitionImage) -> bool:
        """Return whether this node held the replica before: a copy that turns up again is older."""
        return row.directory_of(self._node.id) is not None

    def _place(self, wanted: Sequence[Wanted], first: bool) -> dict[TopicPartition, LogDirectory]:
        """Return the directory of each new replica: the preferred one, then the metadata's, then the least loaded.

        `first`: at a start, for the image on the disks. The last run may have created a replica then, and filled it,
        before it reported the directory: none is created while a directory is missing that may hold it.
        """
        node = self._node
        missing = node.dirs.missing_ids()
        places: dict[TopicPartition, LogDirectory] = {}
        free: list[TopicPartition] = []
        offline: dict[TopicPartition, str] = {}
        lost = set(self.lost_replicas)
        for tp, _, row in wanted:
            lost.discard(tp)
            assigned = row.directory_of(node.id)
            preferred = node.preferred_log_dirs.get(tp)
            here = node.dirs.by_id(assigned) if assigned is not None else None
            if missing and here is not None and here.online and not self.why_not_again(row):
                # In no other directory: the metadata has it here, so that the older copy loses wherever it turns up.
                places[tp] = here
                names = ", ".join(each.path for each in node.failures.missing(node.metadata.image, node.id))
                log.warning(
                    "%s: it is made again in %s, and fetched from node %d, since log directory %s has failed",
                    tp, here.path, row.leader, names,
                )  # fmt: skip
                continue
            if assigned is not None:
                why = lost_replicas.why_not(row, node.id, registered=self._roles.registered, missing=missing)
                if why:
                    lost.add(tp)
                    offline[tp] = f"{_gone(assigned, here)}; {why}"
                    continue
                log.warning(
                    "%s: %s; it is created again and fetched from node %d", tp, _gone(assigned, here), row.leader
                )
            elif missing and first:
                ids = ", ".join(sorted(missing))
                offline[tp] = f"it may be in the log directory with id {ids}, which is not online"
                continue
            if preferred is not None and preferred.online:
                places[tp] = preferred
            elif here is not None and here.online:
                places[tp] = here
            else:
                free.append(tp)
        self.lost_replicas = frozenset(lost)
        self._log_offline({tp: why for tp, why in offline.items() if node.replicas.offline.get(tp) != why})
        node.replicas.set_offline(offline)
        if free:
            try:
                places.update(zip(free, node.dirs.place(node.replicas.sizes(), len(free), self._cordoned), strict=True))
            except StorageError as error:
                node.replicas.set_offline({tp: str(error) for tp in free})
        return places

    def _log_offline(self, reasons: Mapping[TopicPartition, str]) -> None:
        """Log a line per reason: a directory may have held thousands of replicas."""
        by_reason: dict[str, list[TopicPartition]] = {}
        for tp, reason in reasons.items():
            by_reason.setdefault(reason, []).append(tp)
        for reason, tps in by_reason.items():
            more = f" and {len(tps) - 1} more" if len(tps) > 1 else ""
            # Until the controller has responded, most of these are about to be created again.
            log.log(
                logging.ERROR if self._roles.registered else logging.WARNING, "%s%s: offline, %s", tps[0], more, reason
            )

    def _partition(
        self, directory: LogDirectory, tp: TopicPartition, topic_id: str, new: Log, row: PartitionImage, generation: int
    ) -> Partition:
        made = Partition(tp, topic_id, new, directory, generation=generation, is_leader=False)
        self._roles.assign(made, topic_id, row)
        return made


def _gone(assigned: str, here: LogDirectory | None) -> str:
    """Return what became of a replica that was in this log directory."""
    if assigned == LOST:
        return "no log directory of this node holds a copy of it any more"
    where = str(here.path) if here is not None else f"with id {assigned}"
    reason = "is not online" if here is None or not here.online else "holds no copy of it any more"
    return f"its log directory {where} {reason}"
