"""Report replicas that are offline alone to the controller (KIP-18, step 2.4), and those that are usable again.

The node compares its offline replicas with the newest image, and reports whatever differs until nothing does: across an
unavailable controller, a repeated registration, and images that arrive late. Nothing of it is kept on disk, since a
start finds by itself which replicas it can open; the registration names the others.

Replicas of a failed directory (DirectoryFailed) and those that no disk holds (LOST, KIP-858) are reported elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from storage_node.asking import ASK_TIMEOUT, Backoff, ReportingThread
from storage_node.errors import RequestRefused
from storage_node.lifecycle.host import OfflineReportsHost
from storage_node.model.command_rows import MAX_FILE, MAX_REASON
from storage_node.model.commands import ReplicaReport
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import OfflineReplica

log = logging.getLogger(__name__)

#: Replicas of one report, and of a registration, at most: the others follow.
BATCH = 500
#: Replicas that fail within these seconds share one report.
LINGER = 0.01
#: Seconds between two comparisons without an event.
LOOK = 10.0
#: Seconds to wait for the image that has what was reported.
ARRIVAL = 2.0


class OfflineReports:
    """The reporter of offline replicas, on a thread of its own. Thread-safe; its methods return at once."""

    def __init__(self, node: OfflineReportsHost) -> None:
        self._node = node
        self._reported: set[TopicPartition] = set()
        """Replicas that the metadata has, or may have, as offline on this node by a report."""
        self.thread = ReportingThread(node, f"offline-{node.id}", self._compare)
        self._backoff = Backoff()

    def changed(self) -> None:
        """Compare soon, because replicas went offline or online."""
        self.thread.wake()

    def image_came(self) -> None:
        """Compare soon with a newer image."""
        if self._reported or self._node.replicas.offline:
            self.thread.wake()

    def seen(self, tp: TopicPartition) -> None:
        """Note that the image has this replica as reported offline."""
        self._reported.add(tp)

    def registered(self) -> tuple[ReplicaReport, ...]:
        """Return the reports of a registration, which replaces all earlier reports."""
        rows = tuple(self._offline(self._node.metadata.image))[:BATCH]
        self._reported.update(row.partition for row in rows)
        return rows

    def rows(self) -> list[dict[str, Any]]:
        """Return, for operators, every replica that is offline here, for whatever reason, with its directory and bad
        file.
        """
        node = self._node
        image = node.metadata.image
        paths = {directory.id: directory.name for directory in node.dirs.directories if directory.id}
        rows = []
        for tp, reason in sorted(node.replicas.offline.copy().items()):
            here, row = node.replicas.last_directory(tp), image.partition(tp)
            assigned = row.directory_of(node.id) if row is not None else None
            directory = here.name if here is not None else paths.get(assigned or "", "")
            file = node.replicas.files.get(tp, "")
            rows.append(
                {"topic": tp.topic, "partition": tp.partition, "directory": directory, "file": file, "reason": reason}
            )
        return rows

    def differing(self) -> list[ReplicaReport]:
        """Return what to report; nothing until the controller has registered this incarnation."""
        node = self._node
        image = node.metadata.image
        known = image.nodes.get(node.id)
        if known is None or known.incarnation != node.incarnation or known.fenced:
            return []
        rows = [
            row
            for row in self._offline(image)
            if (held := image.partition(row.partition)) is not None
            and held.offline_on(node.id) != OfflineReplica(node.id, row.reason, row.file)
        ]
        return rows + list(self._back(image))

    def _offline(self, image: ClusterImage) -> Iterator[ReplicaReport]:
        node = self._node
        failed = {directory.id for directory in node.dirs.directories if not directory.online}
        served = node.replicas.in_online_directories()
        held = {row.partition for row in node.failures.offline_replicas(served)} if failed else set()
        for tp, reason in node.replicas.offline.copy().items():
            row, topic = image.partition(tp), image.topics.get(tp.topic)
            if (
                row is None
                or topic is None
                or node.id not in row.replicas
                or tp in held
                or tp in node.metadata_publisher.lost_replicas
            ):
                continue
            here = node.replicas.last_directory(tp)
            if (here is not None and not here.online) or row.directory_of(node.id) in failed:
                continue
            last = node.replicas.retired.get(tp)
            where, generation = "", row.generation_of(node.id)
            if last is not None and last.topic_id == topic.id:
                where, generation = last.directory.id, last.generation
            file = node.replicas.files.get(tp, "")[:MAX_FILE]
            yield ReplicaReport(tp, topic.id, where, generation, (reason or "offline")[:MAX_REASON], file)

    def _back(self, image: ClusterImage) -> Iterator[ReplicaReport]:
        node = self._node
        for tp in list(self._reported):
            row, topic = image.partition(tp), image.topics.get(tp.topic)
            if row is None or topic is None or row.offline_on(node.id) is None:
                if tp not in node.replicas.offline:
                    self._reported.discard(tp)
                continue
            partition = node.replicas.served.get(tp)
            if partition is not None and partition.topic_id in ("", topic.id):
                yield ReplicaReport(tp, topic.id, partition.directory.id, partition.generation)

    def _compare(self) -> float:
        """Report what differs; return the seconds until the next comparison."""
        self.thread.linger(LINGER)
        try:
            if not self._report():
                return self._backoff.failed()
        except (RequestRefused, TimeoutError) as error:
            log.info("replicas that are offline wait to be reported: %s", error)
            return self._backoff.failed()
        self._backoff.succeeded()
        return LOOK

    def _report(self) -> bool:
        """Report what differs now; return False if the report must be repeated soon."""
        rows = self.differing()[:BATCH]
        if not rows or self.thread.stopping:
            return True
        epoch = self._node.epoch
        self._reported.update(row.partition for row in rows if row.reason)
        results = self.thread.ask(
            lambda controller: controller.report_replicas(rows, broker_epoch=epoch, timeout=ASK_TIMEOUT)
        )
        if results is None:
            return True
        for row, result in zip(rows, results, strict=False):
            what = f"offline: {row.reason}" if row.reason else "online"
            if result.error:
                log.warning("%s: the controller refused the report (%s): %s", row.partition, what, result.message)
            else:
                log.info("%s: reported %s", row.partition, what)
        if any(result.error for result in results):
            return False
        self._node.metadata.wait_for_version(max(result.version for result in results), ARRIVAL)
        return not self.differing()
