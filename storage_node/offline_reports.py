"""Reporting replicas that are offline alone to the controller (KIP-18, step 2.4), and those that are usable again.

What this node cannot use is compared with what the newest image has of it, and whatever differs is reported until it
does not differ any more: over a controller that is away, a registration anew, and images that arrive late. Nothing of
it is kept on disk, since a start finds out by itself which replicas it can open; the registration names the others.

Replicas of a failed directory (DirectoryFailed) and those that no disk holds (LOST, KIP-858) are reported elsewhere.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from storage_node.asking import ASK_TIMEOUT, ask_controller
from storage_node.errors import RequestRefused
from storage_node.metadata import ClusterImage
from storage_node.ports import ReplicaReport
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

#: Characters of a reason, and of a file's path, at most; the controller cuts off the rest as well.
MAX_REASON = 500
MAX_FILE = 4096
#: Replicas of one report, and of a registration, at most: the others follow.
BATCH = 500
#: What fails within these seconds goes with the same report.
LINGER = 0.01
#: Seconds between two comparisons without an event, and between two attempts while the controller does not respond.
LOOK = 10.0
SHORTEST_PAUSE = 0.2
LONGEST_PAUSE = 2.0
#: Seconds to wait for the image that has what was reported.
ARRIVAL = 2.0


class OfflineReports:
    """A thread from `start` to `stop`; all other methods may be called from any thread, and return at once."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._reported: set[TopicPartition] = set()
        """Replicas that the metadata has, or may have, as offline on this node by a report."""
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"offline-{self._node.id}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(ASK_TIMEOUT + 5)
            self._thread = None

    def changed(self) -> None:
        """Replicas went offline or came back."""
        self._wake.set()

    def image_came(self) -> None:
        """There is a newer image to compare with."""
        if self._reported or self._node.replicas.offline:
            self._wake.set()

    def seen(self, tp: TopicPartition) -> None:
        """The image has this replica as reported offline."""
        self._reported.add(tp)

    def registered(self) -> tuple[ReplicaReport, ...]:
        """What a registration names: it takes the place of all earlier reports."""
        rows = tuple(self._offline(self._node.metadata.image))[:BATCH]
        self._reported.update(row.partition for row in rows)
        return rows

    def rows(self) -> list[dict[str, Any]]:
        """For people: every replica that is offline here, for whatever reason, with its directory and the bad file."""
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
        """What is to be reported; nothing as long as the controller does not know this start of the node."""
        node = self._node
        image = node.metadata.image
        known = image.nodes.get(node.id)
        if known is None or known.incarnation != node.incarnation or known.fenced:
            return []
        rows = [
            row
            for row in self._offline(image)
            if (held := image.partition(row.partition)) is not None
            and held.offline_on(node.id) != (row.reason, row.file)
        ]
        return rows + list(self._back(image))

    def _offline(self, image: ClusterImage) -> Iterator[ReplicaReport]:
        node = self._node
        failed = {directory.id for directory in node.dirs.directories if not directory.online}
        lost = {row.partition for row in node.failures.lost()} if failed else set()
        for tp, reason in node.replicas.offline.copy().items():
            row, topic = image.partition(tp), image.topics.get(tp.topic)
            if row is None or topic is None or node.id not in row.replicas or tp in lost or tp in node.images.lost:
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

    def _run(self) -> None:
        pause = LOOK
        while not self._stopping.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            self._stopping.wait(LINGER)
            try:
                pause = LOOK if self._report() else SHORTEST_PAUSE if pause >= LOOK else min(2 * pause, LONGEST_PAUSE)
            except (RequestRefused, TimeoutError) as error:
                log.info("replicas that are offline wait to be reported: %s", error)
                pause = SHORTEST_PAUSE if pause >= LOOK else min(2 * pause, LONGEST_PAUSE)
            except Exception:
                log.exception("reporting replicas that are offline")
                pause = LONGEST_PAUSE

    def _report(self) -> bool:
        """Report what differs now; False where that is to be done again soon."""
        rows = self.differing()[:BATCH]
        if not rows or self._stopping.is_set():
            return True
        node, epoch = self._node, self._node.epoch
        self._reported.update(row.partition for row in rows if row.reason)
        results = ask_controller(
            node,
            lambda controller: controller.report_replicas(rows, broker_epoch=epoch, timeout=ASK_TIMEOUT),
            self._stopping,
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
        node.metadata.wait_for_version(max(result.version for result in results), ARRIVAL)
        return not self.differing()
