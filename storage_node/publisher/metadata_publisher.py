"""Apply the controller's images: each image's roles at once, and what the disks are to remove and create in turn.

Its parts decide: `next_image` which image is the next, `roles` who leads, `removal` what is deleted (nothing for being
unknown), `creation` what is created and where, `unresolved` what becomes of folders that no image has explained yet.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait

from storage_node.errors import RequestRefused
from storage_node.lifecycle.start_up import Started
from storage_node.log.config import LogConfig
from storage_node.model.ids import NO_LEADER, TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import PartitionImage, TopicImage
from storage_node.partitions.partition import Partition
from storage_node.publisher.creation import Creation, Wanted
from storage_node.publisher.host import PublisherHost
from storage_node.publisher.next_image import NextImage
from storage_node.publisher.removal import Removal
from storage_node.publisher.returning import Returned
from storage_node.publisher.roles import Roles
from storage_node.publisher.unresolved import Unresolved

log = logging.getLogger(__name__)

DIRECTORIES_PATIENCE = 1.0
"""Seconds to wait for the directories to apply an image from the controller: slow ones delay neither the next image nor
this node's reports.
"""

_OUTDATED = "a newer replica is in a log directory that is not online"

Reopen = Callable[[TopicPartition, ClusterImage, LogConfig], Started]
"""Opens a replica again that went offline alone, see `storage_node.publisher.reopening`."""


class MetadataPublisher:
    """The publisher of images; its calls block.

    It applies one image at a time. First the replicas on this node take their roles, which needs only memory; then the
    directories remove and create replicas, for the newest image at that time. So a disk that hangs, or has much to do,
    does not keep partitions in other directories from their new leaders.
    """

    def __init__(
        self,
        node: PublisherHost,
        *,
        next_image: NextImage,
        roles: Roles,
        removal: Removal,
        creation: Creation,
        unresolved: Unresolved,
        reopen: Reopen,
    ) -> None:
        self._node = node
        self._next_image, self._roles, self._removal, self._creation = next_image, roles, removal, creation
        self._reopen = reopen
        self.unresolved = unresolved
        self._lock = threading.Lock()
        """Held while an image's roles are applied, which waits for no disk."""
        self._disks = threading.Lock()
        """Held while directories apply an image."""
        self._publishing = threading.Lock()
        self._newest: ClusterImage | None = None
        """The image whose roles the replicas have."""
        self._settled: ClusterImage | None = None
        """The image that the directories have applied."""
        self._waiting: Future[None] | None = None
        """The result of the directories' next turn, which has not begun yet."""
        self._stopped = False
        self._settled_registered = False
        """Whether the controller had registered this incarnation when the directories applied their last image."""

    @property
    def lost_replicas(self) -> frozenset[TopicPartition]:
        """Replicas that the metadata has here, that no disk holds, and that may be created again later."""
        return self._creation.lost_replicas

    def apply(self, texts: Iterable[str], patience: float | None = None) -> tuple[int, int]:
        """Apply images, oldest first; return the (cluster generation, version) that this node has after it.

        An image that is not newer is ignored, and one of an older cluster generation is rejected: the returned pair is
        then the higher one. A whole image that the node has requested replaces its image, unless it is older. A delta
        that does not fit the node's image is ignored, and the node requests the whole image; so is an image that sets
        partitions back, for which the controller collects. Raises BadImage for what cannot be decoded.

        `patience`: seconds to wait for the directories (None: without limit); they complete the rest in the background,
        and the node responds by the image.
        """
        with self._lock:
            before = self._newest or self._node.metadata.image
            image = self._next_image.after(before, list(texts))
            if image is not before:
                self._next_image.keep(image)
                self._settled = self._settled or before
                self._newest = image
                self._roles.take(image, before)
        if self._settled is not self._newest:
            if patience is None:
                self._settle()
            else:
                self._settle_beside(patience)
        return image.pair

    def reconcile(self, image: ClusterImage) -> None:
        """Apply an image to this node's replicas, at a start."""
        with self._lock, self._disks:
            self._newest = self._settled = image
            self._roles.take(image, None)
            self._follow(self._reconcile(image, None))

    def reopen(self, tp: TopicPartition) -> bool:
        """Serve a replica again that went offline alone; return False when it is online already.

        If no disk holds anything of it, it is created again where a start would create it. Raises RequestRefused with
        the remaining problem; the replica then stays offline.
        """
        with self._disks:
            node, image = self._node, self._node.metadata.image
            if tp in node.replicas.served:
                return False
            started = self._reopen(tp, image, self._creation.defaults)
            topic = image.topics[tp.topic]
            row = topic.partitions[tp.partition]
            node.serve_opened(started)
            if (partition := node.replicas.served.get(tp)) is not None:
                self._creation.found(tp)
                self._update(partition, topic, row, self._creation.config(topic))
            else:
                self._creation.create([(tp, topic, row)], first=True)
            if tp not in node.replicas.served:
                raise RequestRefused(f"{tp} is still offline: {node.replicas.offline.get(tp)}")
            node.directories_changed()
            node.replica_fetchers.follow([tp])
            log.info("%s is online again", tp)
            return True

    def take_in(self, decide: Callable[[ClusterImage, LogConfig], Returned]) -> Returned:
        """Serve what a directory holds that has come online, and create what it lacks where a start would.

        `decide` makes the node use the directory and opens what it holds, while no image is applied. Raises what it
        raises.
        """
        with self._disks:
            node, image = self._node, self._node.metadata.image
            returned = decide(image, self._creation.defaults)
            node.serve_opened(returned.started)
            node.replicas.remove(returned.absent - node.replicas.served.keys())
            for tp in returned.absent:
                self._creation.found(tp)  # whether it is lost is decided again
            self._follow(self._reconcile(image, None))
            node.directories_changed()
            node.replica_fetchers.follow([partition.tp for partition in returned.started.partitions])
            return returned

    def make_again(self, tps: Iterable[TopicPartition]) -> list[Partition]:
        """Create replicas that are in no online directory, where the metadata has them by now; return those that are
        served.
        """
        with self._disks:
            node, image = self._node, self._node.metadata.image
            wanted = []
            for tp in tps:
                topic, row = image.topics.get(tp.topic), image.partition(tp)
                if topic is not None and row is not None and node.id in row.replicas and tp in node.replicas.offline:
                    wanted.append((tp, topic, row))
            if self._stopped:
                return []
            self._follow(wanted)
            made = [tp for tp, _, _ in wanted]
            return [partition for tp in made if (partition := node.replicas.served.get(tp)) is not None]

    def retry_removals(self) -> None:
        """Delete what could not be deleted before; once it is, create the replica that waited for its name."""
        if self._stopped or not self._removal.pending.retry():
            return
        with self._disks:
            image = self._settled
            if image is not None and not self._stopped:
                self._follow(self._reconcile(image, None, first=False))

    def between_images(self, work: Callable[[], None]) -> None:
        """Do something while no image is applied in the directories."""
        with self._disks:
            work()

    def stop(self) -> None:
        """Begin nothing more in directories; returns when nothing is in progress there."""
        self._stopped = True
        with self._disks:
            pass

    # Directories

    def _settle(self) -> None:
        """Let the directories apply the newest image, once they have applied an earlier one."""
        with self._disks:
            self._settle_newest()

    def _settle_newest(self) -> None:
        image, before = self._newest, self._settled
        if image is None or image is before or self._stopped:
            return
        following = self._reconcile(image, before)
        self._publish(image)
        self._follow(following)
        self._settled = image

    def _settle_beside(self, patience: float) -> None:
        """Do the same on a thread of its own, and wait for it for at most `patience` seconds."""
        with self._lock:
            image, waiting = self._newest, self._waiting
            if waiting is None:
                waiting = self._waiting = Future()
                threading.Thread(target=self._settle_in_turn, args=(waiting,), name="images", daemon=True).start()
        if wait([waiting], patience).done:
            return waiting.result()
        waiting.add_done_callback(_log_failure)
        if image is not None:
            self._publish(image)

    def _settle_in_turn(self, waiting: Future[None]) -> None:
        """Let the directories apply the newest image in their turn; images that arrive before it begins share it."""
        try:
            with self._disks:
                self._waiting = None
                self._settle_newest()
            waiting.set_result(None)
        except BaseException as error:
            waiting.set_exception(error)

    def _publish(self, image: ClusterImage) -> None:
        """Respond to requests by this image, unless a newer one is published already."""
        metadata = self._node.metadata
        with self._publishing:
            if metadata.image is self._newest or image.pair < metadata.image.pair:
                return
            metadata.publish(image)
        self._node.offline_reports.image_came()

    def _reconcile(
        self, image: ClusterImage, before: ClusterImage | None, *, first: bool | None = None
    ) -> list[Wanted]:
        """Apply the image to this node's replicas, and return the new ones that follow another node.

        Clients wait only for the others: creating a thousand logs takes seconds, and clients do not read from
        followers. Topics that are the same as in `before` are skipped, unless the broker's configs change the logs'
        defaults. `first`: create what a start would, by default without `before`.
        """
        node = self._node
        defaults = self._creation.defaults
        self._creation.configure(node.broker_values(image))
        # Replicas that are served or deleted from now on must be compared with the whole image, not only with its
        # changes.
        known = None if self.unresolved.decide(image, self._creation.defaults) else before
        self._removal.delete_gone(image, before)
        self._removal.take_away(image, known)
        registered, self._settled_registered = self._settled_registered, self._roles.registered
        same = defaults == self._creation.defaults and registered == self._settled_registered
        wanted: list[Wanted] = []
        late: list[TopicPartition] = []
        for topic in image.topics.values():
            if same and known is not None and known.topics.get(topic.name) is topic:
                continue
            config = self._creation.config(topic)
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.index)
                if node.id in row.replicas:
                    node.partition_epochs.note(tp, topic.id, row)
                    if row.offline and row.offline_on(node.id) is not None:
                        node.offline_reports.seen(tp)
                partition = node.replicas.served.get(tp)
                if partition is None:
                    if node.id in row.replicas and (
                        tp not in node.replicas.offline or tp in self._creation.lost_replicas
                    ):
                        wanted.append((tp, topic, row))
                elif partition.topic_id in ("", topic.id) and self._outdated(partition, row):
                    node.replicas.set_offline({tp: _OUTDATED})
                elif partition.topic_id in ("", topic.id):
                    if partition.row != row:
                        late.append(tp)  # it was not served yet when the others took their roles
                    self._update(partition, topic, row, config)
                else:
                    reason = f"it is of topic id {partition.topic_id}, the metadata has another topic of that name"
                    node.replicas.set_offline({tp: reason})
        following = [] if before is None else [new for new in wanted if new[2].leader not in (node.id, NO_LEADER)]
        later = {tp for tp, _, _ in following}
        self._creation.create(
            [new for new in wanted if new[0] not in later], first=before is None if first is None else first
        )
        node.replica_fetchers.follow([*late, *(new[0] for new in wanted if new[0] not in later)])
        return following

    def _outdated(self, partition: Partition, row: PartitionImage) -> bool:
        """Return whether a start would not serve this replica: a missing directory has a newer one.

        The start knew only an older image: the newer replica was made, and reported, while this one's directory was
        offline.
        """
        node = self._node
        assigned = row.directory_of(node.id)
        return (
            partition.generation < row.generation_of(node.id)
            and assigned != partition.directory.id
            and assigned in node.dirs.missing_ids()
        )

    def _follow(self, wanted: list[Wanted]) -> None:
        """Create these replicas, and let them fetch from their leaders."""
        self._creation.create(wanted, first=False)
        self._node.replica_fetchers.follow([new[0] for new in wanted])

    def _update(self, partition: Partition, topic: TopicImage, row: PartitionImage, config: LogConfig) -> None:
        self._roles.assign(partition, topic.id, row)
        partition.configure(config)


def _log_failure(settled: Future[None]) -> None:
    if (error := settled.exception()) is not None:
        log.error("directories could not apply an image", exc_info=error)
