"""Applying the controller's images: partitions are created, led and deleted as they say.

What goes is decided in `removal`: nothing for being unknown.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import reduce
from typing import TYPE_CHECKING

from storage_node.directories.directory import LogDirectory
from storage_node.errors import RequestRefused, StorageError
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.metadata import LOST, BadImage, ClusterImage, PartitionImage, TopicImage, decode_row, set_back
from storage_node.partition import Partition
from storage_node.removal import Removal
from storage_node.reopening import reopen
from storage_node.replicas import NewReplica, create_logs
from storage_node.replication import anew
from storage_node.topic_configs import cordoned, log_config, move_rate, topic_config
from storage_node.types import TopicPartition
from storage_node.undecided import Undecided

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

_Wanted = tuple[TopicPartition, TopicImage, PartitionImage]
"""A replica that this node is to hold and does not have yet."""
NOBODY = -1

DIRECTORIES_PATIENCE = 1.0
"""Seconds for the directories to come up to an image that the controller sent: what is slow among them keeps neither
the next image nor what this node has to tell the controller.
"""
KNOWN = 1.0  # seconds for the other directories to have an image, before replicas are made that only it tells of


class Images:
    """Blocking. First, one image at a time, the replicas that are here take their roles, which is a matter of memory
    alone; what directories are to remove and to create follows, for the newest image that there is by then. So a disk
    that hangs, or has much to do, keeps no partition in others from its new leader.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        """Held by who takes over an image, which waits for no disk."""
        self._disks = threading.Lock()
        """Held by who does what directories have to do for one."""
        self._publishing = threading.Lock()
        self._newest: ClusterImage | None = None
        """The image by which the replicas have their roles."""
        self._settled: ClusterImage | None = None
        """The image that the directories are up to."""
        self._waiting: Future[None] | None = None
        """Of who will do it next."""
        self._stopped = False
        self._defaults = node.config.log
        self._cordoned: frozenset[str] = frozenset()
        self._removal = Removal(node)
        self.lost: frozenset[TopicPartition] = frozenset()
        """Replicas that the metadata has here, that no disk holds, and that may be made anew at some time."""
        self.undecided = Undecided(node, self._removal.result)
        self._generation = 0
        """Of the newest image."""
        self._registered = self._settled_registered = False
        """Whether the controller knows this start of the node, so that it may lead what has other replicas."""

    def apply(self, texts: Iterable[str], patience: float | None = None) -> tuple[int, int]:
        """Apply images, oldest first; answers the (generation, version) this node knows after it.

        An image that is not newer is ignored, one of an older generation is refused: the answer then shows the higher
        pair. A whole one that the node has requested takes its image's place, unless it is older. A delta that does
        not fit the node's image is ignored, and the whole image requested; so is an image that sets partitions back,
        for which the controller collects. Raises BadImage for what cannot be decoded.

        `patience`: seconds to wait for the directories (None: as long as they take); what they have not come to by then
        they go on with, and requests are answered by the image.
        """
        with self._lock:
            before = self._newest or self._node.metadata.image
            image = self._after(before, list(texts))
            if image is not before:
                self._keep(image)
                self._settled = self._settled or before
                self._newest = image
                self._take_roles(image, before)
        if self._settled is not self._newest:
            if patience is None:
                self._settle()
            else:
                self._settle_beside(patience)
        return image.age

    def reconcile(self, image: ClusterImage) -> None:
        """Make this node's replicas what the image says, at a start."""
        with self._lock, self._disks:
            self._newest = self._settled = image
            self._take_roles(image, None)
            self._follow(self._reconcile(image, None))

    def reopen(self, tp: TopicPartition) -> bool:
        """Serve a replica again that went offline alone; False when it is online already.

        One of which no disk has anything is made anew where a start would make it. Raises RequestRefused with what is
        wrong still; it stays offline then.
        """
        with self._disks:
            node, image = self._node, self._node.metadata.image
            if tp in node.replicas.served:
                return False
            started = reopen(node, tp, image, self._defaults, self._removal.result)
            topic, row = image.topics[tp.topic], image.topics[tp.topic].partitions[tp.partition]
            node.take_over(started)
            if (partition := node.replicas.served.get(tp)) is not None:
                self.lost -= {tp}
                self._update(partition, topic, row, self._config(topic))
            else:
                self._create([(tp, topic, row)], first=True)
            if tp not in node.replicas.served:
                raise RequestRefused(f"{tp} is offline still: {node.replicas.offline.get(tp)}")
            node.directories_changed()
            node.fetchers.follow([tp])
            log.info("%s is online again", tp)
            return True

    def stop(self) -> None:
        """Begin nothing more in directories; returns when nothing more is done there."""
        self._stopped = True
        with self._disks:
            pass

    # Roles

    def _take_roles(self, image: ClusterImage, before: ClusterImage | None) -> None:
        """What the image makes of the replicas that are served, and of those who lead what they follow."""
        node = self._node
        self._generation = image.generation
        registered, self._registered = self._registered, self._may_lead(image)
        node.isr.brokers_are(image)
        for served in node.replicas.served.values():
            if served.topic_id and served.topic_id in image.gone:
                served.delete()  # it takes no records for a topic that has its name now
        known = before.topics if before is not None and registered == self._registered else {}
        for topic in image.topics.values():
            if known.get(topic.name) is topic:
                continue
            for row in topic.partitions.values():
                partition = node.replicas.served.get(TopicPartition(topic.name, row.partition))
                if partition is not None and partition.topic_id in ("", topic.id):
                    # Also where the metadata has it elsewhere now: it must not go on leading here.
                    self._assign(partition, topic.id, row)
        broker = node.broker_values(image)
        node.engine.set_node_rate(move_rate(broker))
        node.listener.limit(broker.number("max.connections"), broker.number("max.connections.per.ip"))
        node.fetchers.reconcile(image)

    # Directories

    def _settle(self) -> None:
        """Do what directories have to do for the newest image, after what they do for an earlier one."""
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
        """The same on a thread of its own, which is left to itself after so many seconds."""
        with self._lock:
            image, waiting = self._newest, self._waiting
            if waiting is None:
                waiting = self._waiting = Future()
                threading.Thread(target=self._settle_in_turn, args=(waiting,), name="images", daemon=True).start()
        if wait([waiting], patience).done:
            return waiting.result()
        waiting.add_done_callback(_tell_failed)
        if image is not None:
            self._publish(image)

    def _settle_in_turn(self, waiting: Future[None]) -> None:
        """Behind what is under way; whoever comes before it begins waits for the same one, which does the newest."""
        try:
            with self._disks:
                self._waiting = None
                self._settle_newest()
            waiting.set_result(None)
        except BaseException as error:
            waiting.set_exception(error)

    def _publish(self, image: ClusterImage) -> None:
        """Answer requests by this image, unless they are answered by a newer one already."""
        metadata = self._node.metadata
        with self._publishing:
            if metadata.image is self._newest or image.age < metadata.image.age:
                return
            metadata.publish(image)
        self._node.offline_reports.image_came()

    def _after(self, image: ClusterImage, texts: Sequence[str]) -> ClusterImage:
        """Return an image after the others, oldest first."""
        check = self._node.metadata_check
        if texts and check.expects_whole:
            # All parts of a split whole image but the last are older than the node's image.
            fresh = reduce(self._next, texts, ClusterImage())
            if fresh.version and fresh.age >= image.age:
                check.replaced()
                return self._unless_set_back(image, fresh)
        return reduce(self._next, texts, image)

    def _next(self, image: ClusterImage, text: str) -> ClusterImage:
        row = decode_row(text)
        try:
            age, since = (int(row["generation"]), int(row["version"])), int(row["from"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadImage(f"an image without generation and version: {error!r}") from error
        # Parts of one image that was cut may share their version: a part that goes on from here is taken, no other is.
        if age < image.age or (age == image.age and since != image.version):
            return image
        if since and (age[0] != image.generation or image.version < since):
            # The delta builds on what this node does not have; the answer shows that, and a whole image will come.
            log.info("delta from version %d does not fit the image at %s", since, image.age)
            return image
        try:
            return self._unless_set_back(image, image.apply(row))
        except BadImage as misfit:
            if not since:
                raise
            # Sent again, the same delta would fail again, and the registration that brings it as well.
            self._node.metadata_check.misfit(image, age, misfit)
            return image

    def _unless_set_back(self, image: ClusterImage, after: ClusterImage) -> ClusterImage:
        """The image after a change, or the one before: within a generation no partition goes back.

        The replicas would not follow: they have led and fetched under epochs that this image has yet to come to.
        """
        if after.generation == image.generation and (partitions := set_back(image, after)):
            self._node.metadata_check.contradicted(image, partitions)
            return image
        return after

    def _keep(self, image: ClusterImage) -> None:
        """Write the image to all directories; it is used also where that fails."""
        try:
            self._node.dirs.images.save(image.encode(), image.generation, image.version)
        except StorageError as error:
            self._node.storage_failed(error)
            log.error("the cluster image at %s is not on disk: %s", image.age, error)

    def _reconcile(self, image: ClusterImage, before: ClusterImage | None) -> list[_Wanted]:
        """Make this node's replicas what the image says, but for new ones that follow another node: these are answered.

        Clients wait for this much alone: to make a thousand logs takes seconds, and nobody asks a follower for them.
        Topics that are the same as `before` are passed over, unless the broker's configs give logs other defaults.
        """
        node = self._node
        broker = node.broker_values(image)
        self._cordoned = cordoned(broker, [directory.name for directory in node.dirs.directories])
        defaults, self._defaults = self._defaults, log_config(broker)
        # What is served from now on, or gone, meets all of the image, not only what is new in it.
        known = None if self.undecided.decide(image, self._defaults) else before
        self._removal.delete_gone(image, before)
        self._removal.take_away(image, known)
        registered, self._settled_registered = self._settled_registered, self._registered
        same = defaults == self._defaults and registered == self._settled_registered
        wanted: list[_Wanted] = []
        late: list[TopicPartition] = []
        for topic in image.topics.values():
            if same and known is not None and known.topics.get(topic.name) is topic:
                continue
            config = self._config(topic)
            for row in topic.partitions.values():
                tp = TopicPartition(topic.name, row.partition)
                if node.id in row.replicas:
                    node.held.note(tp, topic.id, row)
                    if row.offline and row.offline_on(node.id) is not None:
                        node.offline_reports.seen(tp)
                partition = node.replicas.served.get(tp)
                if partition is None:
                    if node.id in row.replicas and (tp not in node.replicas.offline or tp in self.lost):
                        wanted.append((tp, topic, row))
                elif partition.topic_id in ("", topic.id):
                    if partition.row != row:
                        late.append(tp)  # it was not served yet when the others took their roles
                    self._update(partition, topic, row, config)
                else:
                    reason = f"it is of topic id {partition.topic_id}, the metadata has another topic of that name"
                    node.replicas.set_offline({tp: reason})
        following = [] if before is None else [new for new in wanted if new[2].leader not in (node.id, NOBODY)]
        later = {tp for tp, _, _ in following}
        self._create([new for new in wanted if new[0] not in later], first=before is None)
        node.fetchers.follow([*late, *(new[0] for new in wanted if new[0] not in later)])
        return following

    def _follow(self, wanted: list[_Wanted]) -> None:
        """Make these replicas, and let them fetch from who leads them."""
        self._create(wanted, first=False)
        self._node.fetchers.follow([new[0] for new in wanted])

    def _update(self, partition: Partition, topic: TopicImage, row: PartitionImage, config: LogConfig) -> None:
        self._assign(partition, topic.id, row)
        partition.configure(config)

    def _assign(self, partition: Partition, topic_id: str, row: PartitionImage) -> None:
        # A start that the controller has not heard of does not know who leads by now: what is on its disks may be old.
        node = self._node.id
        leads = row.leader == node and (len(row.replicas) == 1 or self._registered)
        partition.host = self._node.isr
        brokers = self._node.isr.brokers
        partition.assign(row, topic_id, node, brokers, leads=leads, generation=self._generation)

    def _may_lead(self, image: ClusterImage) -> bool:
        node = self._node
        row = image.nodes.get(node.id)
        return node.controller is None or (row is not None and row.incarnation == node.incarnation)

    def _config(self, topic: TopicImage) -> LogConfig:
        return topic_config(topic, self._defaults)

    # Creation

    def _create(self, wanted: list[_Wanted], *, first: bool) -> None:
        with self._node.wishes.making([tp for tp, _, _ in wanted]):
            self._make_all(wanted, first)
        if wanted:
            self._node.directories_changed()

    def _make_all(self, wanted: list[_Wanted], first: bool) -> None:
        places = self._place(wanted, first)
        if places:
            # Whichever directories are left at the next start then know that one which is missing may hold a replica.
            self._node.dirs.images.flush(KNOWN)
        above = 0
        while places:
            failed = self._create_in(places, wanted, above)
            # What a failed directory did not take another one takes, as long as there is one (KIP-112). Whatever it has
            # of the replica is older than the one that is made now, for a start that sees both.
            above += 1
            places = self._elsewhere(failed)

    def _elsewhere(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, LogDirectory]:
        """Other directories for replicas that failed ones were to take; nothing where there is none."""
        try:
            places = self._node.dirs.place(self._node.replicas.sizes(), len(tps), self._cordoned) if tps else []
        except StorageError:
            return {}
        return dict(zip(tps, places, strict=True))

    def _create_in(
        self,
        places: Mapping[TopicPartition, LogDirectory],
        wanted: list[_Wanted],
        above: int,
    ) -> list[TopicPartition]:
        """Make the replicas, at generations that much `above` those of the metadata; answers which directories failed
        to take.
        """
        by_directory: dict[str, list[NewReplica]] = {}
        rows = {tp: row for tp, _, row in wanted}
        generations = {tp: row.generation_of(self._node.id) + above + self._anew(row) for tp, _, row in wanted}
        failed: list[TopicPartition] = []
        missing = self._node.dirs.missing_ids()
        for tp, topic, row in wanted:
            directory = places.get(tp)
            if directory is not None:
                generation = generations[tp] if above or self._anew(row) else 0
                epoch = row.partition_epoch if missing else -1
                new = NewReplica(tp, topic.id, self._config(topic), generation, epoch)
                by_directory.setdefault(directory.name, []).append(new)
        jobs: list[tuple[LogDirectory, list[TopicPartition], Future[list[tuple[TopicPartition, str, Log]]] | None]] = []
        for name, specs in by_directory.items():
            directory = self._node.dirs.by_path(name)
            tps = [spec.tp for spec in specs]
            try:
                jobs.append((directory, tps, directory.for_image(self._make, directory, specs)))
            except StorageError:
                jobs.append((directory, tps, None))
        for directory, tps, job in jobs:
            try:
                made = self._removal.result(job, directory) if job is not None else []
            except StorageError as error:
                self._node.storage_failed(error)
                log.error("replicas could not be created in %s: %s", directory.path, error)
                made = []
            partitions = [
                self._partition(directory, tp, topic_id, new, rows[tp], generations[tp]) for tp, topic_id, new in made
            ]
            self._node.replicas.add_all(partitions)
            if not directory.online:
                # It failed after they were made, and whoever took its replicas offline did not see these.
                self._node.lose(directory, partitions)
            created = {partition.tp for partition in partitions}
            self._forget_wishes(created)
            reason = f"it could not be created in log directory {directory.path}"
            left = [tp for tp in tps if tp not in created]
            self._node.replicas.set_offline(dict.fromkeys(left, reason))
            failed += left if not directory.online else []
        return failed

    def _forget_wishes(self, created: Collection[TopicPartition]) -> None:
        try:
            self._node.wishes.forget(created)
        except StorageError as error:
            # The replica is there: what stands in the file now is only looked at for one that is not.
            self._node.storage_failed(error)

    def _make(self, directory: LogDirectory, specs: list[NewReplica]) -> list[tuple[TopicPartition, str, Log]]:
        """Runs on the threads that the directory has for images."""
        self._node.offset_files.forget(directory, [spec.tp for spec in specs])
        self._node.held.add(directory, [spec.tp for spec in specs])
        return create_logs(directory, specs)

    def _anew(self, row: PartitionImage) -> bool:
        """Whether a replica that is to be made was here once: a copy that turns up again is older."""
        return row.directory_of(self._node.id) is not None

    def _place(self, wanted: list[_Wanted], first: bool) -> dict[TopicPartition, LogDirectory]:
        """Where each new replica goes: a remembered wish, then the directory that metadata names, then by load.

        `first`: at a start, for what the image on the disks has. The last run may have made a replica then, and filled
        it, before the controller learned where: none is made while a directory is missing that may hold it.
        """
        node = self._node
        missing = node.dirs.missing_ids()
        places: dict[TopicPartition, LogDirectory] = {}
        free: list[TopicPartition] = []
        offline: dict[TopicPartition, str] = {}
        lost = set(self.lost)
        for tp, _, row in wanted:
            lost.discard(tp)
            assigned = row.directory_of(node.id)
            wish = node.wishes.get(tp)
            here = node.dirs.by_id(assigned) if assigned is not None else None
            if assigned is not None:
                why = anew.why_not(row, node.id, registered=self._registered, missing=missing)
                if why:
                    lost.add(tp)
                    offline[tp] = f"{_gone(assigned, here)}; {why}"
                    continue
                log.warning("%s: %s; it is made anew and copied from node %d", tp, _gone(assigned, here), row.leader)
            elif missing and first:
                ids = ", ".join(sorted(missing))
                offline[tp] = f"it may be in the log directory with id {ids}, which is not online"
                continue
            if wish is not None and wish.online:
                places[tp] = wish
            elif here is not None and here.online:
                places[tp] = here
            else:
                free.append(tp)
        self.lost = frozenset(lost)
        self._tell_offline({tp: why for tp, why in offline.items() if node.replicas.offline.get(tp) != why})
        node.replicas.set_offline(offline)
        if free:
            try:
                places.update(zip(free, node.dirs.place(node.replicas.sizes(), len(free), self._cordoned), strict=True))
            except StorageError as error:
                node.replicas.set_offline({tp: str(error) for tp in free})
        return places

    def _tell_offline(self, reasons: Mapping[TopicPartition, str]) -> None:
        """A line per reason: a directory may have held thousands."""
        by_reason: dict[str, list[TopicPartition]] = {}
        for tp, reason in reasons.items():
            by_reason.setdefault(reason, []).append(tp)
        for reason, tps in by_reason.items():
            more = f" and {len(tps) - 1} more" if len(tps) > 1 else ""
            # Before the controller has been heard, most of these are no more than a moment away from being made anew.
            log.log(logging.ERROR if self._registered else logging.WARNING, "%s%s: offline, %s", tps[0], more, reason)

    def _partition(
        self, directory: LogDirectory, tp: TopicPartition, topic_id: str, new: Log, row: PartitionImage, generation: int
    ) -> Partition:
        made = Partition(tp, topic_id, new, directory, generation=generation, is_leader=False)
        self._assign(made, topic_id, row)
        return made


def _tell_failed(settled: Future[None]) -> None:
    if (error := settled.exception()) is not None:
        log.error("directories could not be made what an image says", exc_info=error)


def _gone(assigned: str, here: LogDirectory | None) -> str:
    """What became of a replica that was in this log directory."""
    if assigned == LOST:
        return "no log directory of this node holds a copy of it any more"
    where = str(here.path) if here is not None else f"with id {assigned}"
    reason = "is not online" if here is None or not here.online else "holds no copy of it any more"
    return f"its log directory {where} {reason}"
