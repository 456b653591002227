"""The state of a log's idempotent producers, and Kafka's `.snapshot` files of it.

Per producer id: the epoch and the last five batches, so that a duplicate gets the offsets of the first append and a gap
in the sequence is rejected. Sequences run from 0 to 2^31-1 and wrap around.

A `.snapshot` of Apache Kafka has only the last batch of each producer. A broker that restarts from one rejects a
duplicate of an earlier batch with OUT_OF_ORDER_SEQUENCE_NUMBER although its log holds that batch: the batches in flight
when the broker died were appended but never acknowledged. librdkafka then fails with a fatal error. Therefore the
earlier batches follow behind Kafka's part of the file, under the same CRC. Apache Kafka ignores them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from storage_node.errors import InvalidProducerEpoch, OutOfOrderSequence
from storage_node.log.batches.batch import NO_PRODUCER, BatchHeader, checksum

MAX_SEQUENCE = 2**31 - 1
REMEMBERED = 5
#: Maximum number of producers per log: any client may append under a new id each time, and Apache Kafka forgets ids
#: only by time (producer.id.expiration.ms). storage_node/partitions/producer_bounds.py bounds all logs of a node
#: together.
MOST_PRODUCERS = 5_000
SUFFIX = ".snapshot"

_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_EARLIER = struct.Struct(">qiqiq")
"""Producer id, last sequence, last offset, offset delta, timestamp."""
_CRC_FROM = 6
_VERSION = 1
_NONE = -1


def after(sequence: int, steps: int = 1) -> int:
    """Return the sequence `steps` later."""
    return (sequence + steps) & MAX_SEQUENCE


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """A batch that a producer appended; `timestamp` is its max timestamp in ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """The sequence of its first record."""
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE if self.last_sequence >= 0 else _NONE

    @property
    def first_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta


@dataclass(frozen=True, slots=True)
class Producer:
    """The state of one producer id; `batches` are in order of append."""

    epoch: int
    batches: tuple[AppendedBatch, ...] = ()
    timestamp: int = -1
    coordinator_epoch: int = _NONE
    transaction_start: int = _NONE

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; -1 if it is unknown."""
        return self.batches[-1].last_sequence if self.batches else _NONE

    @property
    def last_offset(self) -> int:
        """The offset of the last record; -1 if it is unknown."""
        return self.batches[-1].last_offset if self.batches else _NONE

    def duplicate_of(self, header: BatchHeader) -> AppendedBatch | None:
        """Return the remembered batch with the same epoch and sequences, or None."""
        if header.producer_epoch != self.epoch:
            return None
        first, last = header.base_sequence, after(header.base_sequence, header.last_offset_delta)
        return next((b for b in self.batches if b.first_sequence == first and b.last_sequence == last), None)

    def refuse_unless_next(self, header: BatchHeader) -> None:
        """Raise `InvalidProducerEpoch` or `OutOfOrderSequence` unless the batch may follow."""
        if header.producer_epoch < self.epoch:
            raise InvalidProducerEpoch(
                f"Epoch of producer {header.producer_id} is {header.producer_epoch}, "
                f"which is smaller than the last seen epoch {self.epoch}"
            )
        if header.producer_epoch > self.epoch:
            if header.base_sequence != 0:
                raise OutOfOrderSequence(
                    f"Invalid sequence number for new epoch of producer {header.producer_id}: "
                    f"{header.producer_epoch} (request epoch), {header.base_sequence} (seq. number), "
                    f"{self.epoch} (current epoch)"
                )
            return
        last = self.last_sequence
        if header.base_sequence != (after(last) if last >= 0 else 0):
            raise OutOfOrderSequence(
                f"Out of order sequence number for producer {header.producer_id}: "
                f"{header.base_sequence} (incoming seq. number), {last} (current end sequence number)"
            )

    def appended(self, header: BatchHeader) -> Producer:
        """Return the state after the append of this batch."""
        epoch = max(self.epoch, header.producer_epoch)
        timestamp = max(self.timestamp, header.max_timestamp)
        if header.is_control:
            kept = self.batches if epoch == self.epoch else ()
            return Producer(epoch, kept, timestamp, self.coordinator_epoch, _NONE)
        batch = AppendedBatch(
            after(header.base_sequence, header.last_offset_delta) if header.base_sequence >= 0 else _NONE,
            header.last_offset,
            header.last_offset_delta,
            header.max_timestamp,
        )
        kept = self.batches[1 - REMEMBERED :] if epoch == self.epoch else ()
        start = self.transaction_start
        if header.is_transactional and start == _NONE:
            start = header.base_offset
        return Producer(epoch, (*kept, batch), timestamp, self.coordinator_epoch, start)


@dataclass(slots=True)
class ProducerState:
    """All producers of a log. Only the log's writer changes it; the values in it are immutable."""

    producers: dict[int, Producer] = field(default_factory=dict)
    seen_ms: dict[int, int] = field(default_factory=dict)
    """When each producer last appended, by this node's clock: its records' timestamps may be arbitrary."""
    has_forgotten: bool = False
    """Whether this process has dropped any producer: one without state here may have batches in the log."""

    def get(self, producer_id: int) -> Producer | None:
        """Return the state of a producer; None if it is unknown."""
        return self.producers.get(producer_id)

    def known(self) -> dict[int, Producer]:
        """Return a copy of all producers; for any thread."""
        return self.producers.copy()

    def update(self, header: BatchHeader, now_ms: int) -> None:
        """Update the state with an appended batch."""
        if header.producer_id != NO_PRODUCER:
            self.seen_ms[header.producer_id] = now_ms
            # The dict is ordered by last append, so that `forget` drops the producers that were idle for longest.
            known = self.producers.pop(header.producer_id, None) or Producer(header.producer_epoch)
            self.producers[header.producer_id] = known.appended(header)
            self.forget(MOST_PRODUCERS)

    def __len__(self) -> int:
        return len(self.producers)

    def forget(self, most: int) -> int:
        """Forget the producers that were idle for longest until `most` are left; return how many were forgotten."""
        gone = 0
        while len(self.producers) > most:
            oldest = next(iter(self.producers))
            del self.producers[oldest]
            self.seen_ms.pop(oldest, None)
            gone += 1
        self.has_forgotten |= gone > 0
        return gone

    def take_over(self, other: ProducerState) -> None:
        """Add all of another log's producers and the times of their last appends."""
        self.producers.update(other.producers)
        self.seen_ms.update(other.seen_ms)
        self.has_forgotten |= other.has_forgotten

    def expire(self, now_ms: int, after_ms: int) -> int:
        """Forget producers that have not appended for `after_ms`; return how many."""
        gone = [
            pid
            for pid, p in self.producers.items()
            if now_ms - max(p.timestamp, self.seen_ms.get(pid, _NONE)) >= after_ms and p.transaction_start == _NONE
        ]
        for pid in gone:
            del self.producers[pid]
            self.seen_ms.pop(pid, None)
        self.has_forgotten |= bool(gone)
        return len(gone)

    def encode(self) -> bytes:
        """Return the content of a `.snapshot` file: version 1, the CRC-32C of what follows it, the producers, and then
        their earlier batches, the oldest first. Producers are in the order of their last append, so that a log and its
        copy have the same file.
        """
        rows = [_HEAD.pack(_VERSION, 0, len(self.producers))]
        earlier: list[bytes] = []
        for pid, producer in sorted(self.producers.items(), key=_last_append):
            for each in producer.batches[:-1]:
                row = (pid, each.last_sequence, each.last_offset, each.offset_delta, each.timestamp)
                earlier.append(_EARLIER.pack(*row))
            last = producer.batches[-1] if producer.batches else AppendedBatch(_NONE, -1, 0, producer.timestamp)
            batch = (last.last_sequence, last.last_offset, last.offset_delta, producer.timestamp)
            transaction = (producer.coordinator_epoch, producer.transaction_start)
            rows.append(_ENTRY.pack(pid, producer.epoch, *batch, *transaction))
        data = bytearray(b"".join(rows + earlier))
        struct.pack_into(">I", data, 2, _crc(data))
        return bytes(data)

    @staticmethod
    def decode(data: bytes) -> ProducerState:
        """Parse a `.snapshot` file, also one of Apache Kafka; raises ValueError if damaged or of another version."""
        if len(data) < _HEAD.size:
            raise ValueError("a producer snapshot of less than its header")
        version, crc, count = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"unknown version {version} of a producer snapshot")
        end = _HEAD.size + count * _ENTRY.size
        if crc != _crc(data) or count < 0 or len(data) < end or (len(data) - end) % _EARLIER.size:
            raise ValueError("a producer snapshot whose CRC or size is wrong")
        earlier: dict[int, tuple[AppendedBatch, ...]] = {}
        for pid, *batch in _EARLIER.iter_unpack(data[end:]):
            earlier[pid] = (*earlier.get(pid, ()), AppendedBatch(*batch))[1 - REMEMBERED :]
        producers: dict[int, Producer] = {}
        for pid, epoch, sequence, offset, delta, timestamp, coordinator, start in _ENTRY.iter_unpack(
            data[_HEAD.size : end]
        ):
            last = AppendedBatch(sequence, offset, delta, timestamp)
            batches = (*earlier.get(pid, ()), last) if offset >= 0 else ()
            producers[pid] = Producer(epoch, batches, timestamp, coordinator, start)
        return ProducerState(producers)


def _last_append(item: tuple[int, Producer]) -> tuple[int, int]:
    pid, producer = item
    return (producer.last_offset, pid)


def _crc(data: bytes | bytearray) -> int:
    return checksum(memoryview(data)[_CRC_FROM:])


def snapshot_name(offset: int) -> str:
    """Return the name of the snapshot as of `offset`."""
    return f"{offset:020d}{SUFFIX}"
