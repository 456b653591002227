"""A partition that this node follows: applies the leader's fetch responses to the replica.

As in Kafka, a follower appends what it fetched, truncates where the leader's log diverges, starts over where the leader
no longer has its offset, adopts the high watermark and the log start offset, and retries failures with backoff.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from enum import Enum, auto

from storage_node.errors import CorruptRecord, RequestRefused, StorageError
from storage_node.log_hold import LogHeld
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.replication.fetch_request import FetchRow
from storage_node.replication.host import FollowedHost, FollowedReplica
from storage_node.replication.truncation import truncation_offset

log = logging.getLogger(__name__)

#: Seconds before the first retry; each further pause is twice as long, up to replica.fetch.backoff.ms.
FIRST_PAUSE = 0.03
#: Seconds before the same reason is logged again.
REPEAT = 60.0

#: Errors that end when the image reaches both nodes.
_PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)


class Kind(Enum):
    """The kinds of replicas, fetched separately: those in sync never wait for those catching up or throttled."""

    IN_SYNC = auto()
    CATCHING_UP = auto()
    THROTTLED = auto()


@dataclass(frozen=True, slots=True)
class Place:
    """Identifies a fetcher thread: one per leader and log directory, so that a hanging disk delays only its own."""

    leader: int
    host: str
    port: int
    directory: str
    kind: Kind
    index: int


class Followed:
    """A followed partition under one leader epoch. Only its fetcher thread changes it, except for `place`."""

    __slots__ = (
        "_complained",
        "_complaint",
        "epoch",
        "key",
        "mark",
        "node",
        "partition",
        "pause",
        "place",
        "retry_at",
        "start",
        "topic_id",
        "tp",
    )

    def __init__(
        self, node: FollowedHost, partition: FollowedReplica, topic_id: bytes, epoch: int, place: Place | None
    ) -> None:
        self.node = node
        self.tp: TopicPartition = partition.tp
        self.partition = partition
        self.topic_id = topic_id
        self.key = (topic_id, partition.tp.partition)
        self.epoch = epoch
        self.place = place
        """The thread that fetches it; None once this object does not follow the partition any more."""
        self.retry_at = 0.0
        self.pause = FIRST_PAUSE
        self.mark = self.start = -2  # high watermark and log start offset applied last
        self._complaint = ""
        self._complained = -math.inf

    def due(self, now: float) -> bool:
        """Return whether it may be fetched now."""
        if self.retry_at > now or self.partition.offline:
            return False
        if self.partition.log.latest_epoch > self.epoch:
            # The replica has an epoch of a newer leader than this image, and must not truncate to an older leader's
            # log.
            self.later("the metadata is older than the replica: its leader epoch precedes the newest one of the log")
            return False
        return True

    def apply(self, row: FetchRow, offset: int) -> bool:
        """Apply the response to a fetch at `offset`; return False if that offset is out of the leader's range."""
        try:
            if row.error:
                return self._rejected(row.error)
            if row.diverging is not None:
                self._truncate(row.diverging)
            elif row.records:
                if self.partition.log.log_end_offset != offset:
                    return True  # the fetch preceded a truncation or a failed append
                self._append(row)
            elif (row.high_watermark, row.log_start) != (self.mark, self.start):
                self._append(row)
            self.pause = FIRST_PAUSE
        except CorruptRecord as error:
            self.later(f"the leader's records from offset {offset} are corrupt and were not appended: {error.message}")
        except StorageError as error:
            self.node.storage_failed(error, self.tp)
            self.later(str(error))
        except LogHeld as error:
            # This thread fetches other partitions too and does not wait: it fetches these records again after the swap.
            self.later(error.message, quietly=True)
        except RequestRefused as error:
            self.later(error.message, quietly=error.code in _PASSING)
        return True

    def _append(self, row: FetchRow) -> None:
        with self.partition.directory.working():
            self.partition.append_as_follower(row.records, self.epoch, row.high_watermark, row.log_start)
        self.mark, self.start = row.high_watermark, row.log_start

    def _rejected(self, error: int) -> bool:
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return False
        self.later(f"the leader responds with error {error}", quietly=error in _PASSING)
        return True

    def _over(self) -> bool:
        """Return whether the replica has another leader epoch, leads, or was deleted; under the partition's lock."""
        partition = self.partition
        return self.place is None or partition.is_leader or partition.leader_epoch != self.epoch

    def _truncate(self, diverging: tuple[int, int]) -> None:
        partition = self.partition
        with partition.directory.working(), partition.changing(waits=False):
            if self._over():
                return
            end = partition.log.log_end_offset
            offset = truncation_offset(partition.log.leader_epochs, end, diverging)
            if offset < partition.high_watermark:
                log.warning(
                    "truncating %s to %d, below its high watermark %d: the leader's log diverges from epoch %d on",
                    self.tp, offset, partition.high_watermark, diverging[0],
                )  # fmt: skip
            else:
                log.info(
                    "truncating %s to %d, from %d: the leader's epoch %d ends there", self.tp, offset, end, diverging[0]
                )
            self.node.offset_files.truncate(partition, offset)

    def out_of_range(self, latest: int, earliest: int) -> None:
        """Truncate or restart the log: the leader's ends at `latest` and starts at `earliest`."""
        partition = self.partition
        try:
            with partition.directory.working(), partition.changing(waits=False):
                if self._over():
                    return
                start, end = partition.log.log_start_offset, partition.log.log_end_offset
                if start < latest < end:
                    log.warning("truncating %s to %d, from %d: the leader's log ends there", self.tp, latest, end)
                    self.node.offset_files.truncate(partition, latest)
                elif latest < end or earliest > end:
                    # Where truncating would leave nothing, an empty log at the leader's end would count as in sync,
                    # without any of the leader's records.
                    log.warning(
                        "removing all %d bytes of %s, offsets %d to %d, and restarting it at %d, where the leader's "
                        "log starts: that ends at %d", partition.log.size, self.tp, start, end, earliest, latest,
                    )  # fmt: skip
                    self.node.offset_files.restart_at(partition, earliest)
        except StorageError as error:
            self.node.storage_failed(error, self.tp)
            self.later(str(error))
        except RequestRefused as error:
            self.later(error.message, quietly=isinstance(error, LogHeld))

    def later(self, why: str, *, quietly: bool = False) -> None:
        """Retry after a pause; log the reason unless it was logged lately."""
        now = time.monotonic()
        self.retry_at = now + self.pause
        self.pause = min(self.pause * 2, self.node.config.fetch.backoff_ms / 1000)
        if quietly:
            log.debug("fetching %s from its leader failed for now: %s", self.tp, why)
        elif why != self._complaint or now > self._complained + REPEAT:
            self._complaint, self._complained = why, now
            log.error("fetching %s from its leader failed: %s", self.tp, why)
