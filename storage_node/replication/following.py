"""One partition that this node follows: what its leader answers is applied to the replica.

Kafka's follower: it appends what it asked for, cuts its log off where the leader's history is another one, starts over
where the leader does not have its offset any more, takes over high watermark and log start, and tries again later, a
little later each time, what cannot be done now.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from storage_node.errors import CorruptRecord, ErrorCode, RequestRefused, StorageError
from storage_node.log_hold import LogHeld
from storage_node.replication.fetch_request import FetchRow
from storage_node.replication.truncation import truncation_offset
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node
    from storage_node.partition import Partition

log = logging.getLogger(__name__)

#: Seconds until the first next try; each further one waits twice as long, replica.fetch.backoff.ms at most.
FIRST_PAUSE = 0.03
#: Seconds until the same complaint is logged again.
REPEAT = 60.0

#: What passes by itself while an image is on its way to one of the two nodes.
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
    """Which replicas are fetched together: those in sync never wait for those that catch up or are throttled."""

    IN_SYNC = auto()
    CATCHING_UP = auto()
    THROTTLED = auto()


@dataclass(frozen=True, slots=True)
class Place:
    """Which thread fetches: one per leader and log directory, so that a disk that hangs holds up only its own."""

    leader: int
    host: str
    port: int
    directory: str
    kind: Kind
    index: int


class Followed:
    """A partition under one leader epoch. Only the thread that fetches it changes it, but for `place`."""

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

    def __init__(self, node: Node, partition: Partition, topic_id: bytes, epoch: int, place: Place | None) -> None:
        self.node = node
        self.tp: TopicPartition = partition.tp
        self.partition = partition
        self.topic_id = topic_id
        self.key = (topic_id, partition.tp.partition)
        self.epoch = epoch
        self.place = place
        """Where it is fetched; None once it is not followed any more, or by another such object."""
        self.retry_at = 0.0
        self.pause = FIRST_PAUSE
        self.mark = self.start = -2  # high watermark and log start that were last taken over
        self._complaint = ""
        self._complained = -math.inf

    def due(self, now: float) -> bool:
        """Whether it may be asked for."""
        if self.retry_at > now or self.partition.offline:
            return False
        if self.partition.log.latest_epoch > self.epoch:
            # This replica was told of a newer leader than this image: nothing is ever cut off by the word of an older.
            self.later("the metadata here is older than the replica: it names a leader epoch before the log's newest")
            return False
        return True

    def apply(self, row: FetchRow, asked: int) -> bool:
        """Take over what the leader answered to a fetch at `asked`; False where its offset is out of range there."""
        try:
            if row.error:
                return self._refused(row.error)
            if row.diverging is not None:
                self._truncate(row.diverging)
            elif row.records:
                if self.partition.log.log_end_offset != asked:
                    return True  # an answer to what was asked before it was truncated, or before an append failed
                self._append(row)
            elif (row.high_watermark, row.log_start) != (self.mark, self.start):
                self._append(row)
            self.pause = FIRST_PAUSE
        except CorruptRecord as error:
            self.later(f"what the leader sent from offset {asked} on is corrupt and was not appended: {error.message}")
        except StorageError as error:
            self.node.storage_failed(error, self.tp)
            self.later(str(error))
        except LogHeld as error:
            # This thread fetches others, too: what was sent is asked for again after the swap.
            self.later(error.message, quietly=True)
        except RequestRefused as error:
            self.later(error.message, quietly=error.code in _PASSING)
        return True

    def _append(self, row: FetchRow) -> None:
        self.partition.append_as_follower(row.records, self.epoch, row.high_watermark, row.log_start)
        self.mark, self.start = row.high_watermark, row.log_start

    def _refused(self, error: int) -> bool:
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return False
        self.later(f"its leader answers with error {error}", quietly=error in _PASSING)
        return True

    def _over(self) -> bool:
        """Whether the replica follows under another epoch by now, leads, or was deleted; under the partition's lock."""
        partition = self.partition
        return self.place is None or partition.is_leader or partition.leader_epoch != self.epoch

    def _truncate(self, diverging: tuple[int, int]) -> None:
        partition = self.partition
        with partition.changing(waits=False):
            if self._over():
                return
            end = partition.log.log_end_offset
            offset = truncation_offset(partition.log.leader_epochs, end, diverging)
            if offset < partition.high_watermark:
                log.warning(
                    "%s is cut off at %d, below its high watermark %d: its leader has another history from epoch %d on",
                    self.tp, offset, partition.high_watermark, diverging[0],
                )  # fmt: skip
            else:
                log.info("%s is cut off at %d of %d, epoch %d ends there", self.tp, offset, end, diverging[0])
            self.node.offset_files.truncate(partition, offset)

    def out_of_range(self, latest: int, earliest: int) -> None:
        """The leader does not have the offset asked for: its log ends at `latest` and starts at `earliest`."""
        partition = self.partition
        try:
            with partition.changing(waits=False):
                if self._over():
                    return
                end = partition.log.log_end_offset
                if latest < end:
                    log.warning("%s is cut off at %d of %d, where its leader's log ends", self.tp, latest, end)
                    self.node.offset_files.truncate(partition, latest)
                elif earliest > end:
                    log.warning("%s starts over at %d, where its leader's log starts", self.tp, earliest)
                    self.node.offset_files.restart_at(partition, earliest)
        except StorageError as error:
            self.node.storage_failed(error, self.tp)
            self.later(str(error))
        except RequestRefused as error:
            self.later(error.message, quietly=isinstance(error, LogHeld))

    def later(self, why: str, *, quietly: bool = False) -> None:
        """Try again after a pause; the reason is logged, but not the same one over and over."""
        now = time.monotonic()
        self.retry_at = now + self.pause
        self.pause = min(self.pause * 2, self.node.config.fetch.backoff_ms / 1000)
        if quietly:
            log.debug("%s cannot be fetched from its leader now: %s", self.tp, why)
        elif why != self._complaint or now > self._complained + REPEAT:
            self._complaint, self._complained = why, now
            log.error("%s cannot be fetched from its leader: %s", self.tp, why)
