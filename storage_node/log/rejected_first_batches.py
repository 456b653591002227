"""Keeps a batch of an idempotent producer from overtaking an earlier one that was rejected.

A log without state for a producer accepts any first sequence, since the producer's earlier records may be deleted.
Suppose the producer's first batch is rejected, and the reason ends before the next batch, sent right behind it, is
validated: the log would accept that one as the producer's first. Clients conclude from an acknowledgement that all
earlier batches were appended (librdkafka reports them so to the application), and the first batch would be lost.
Apache Kafka accepts it.

Therefore a rejected batch with acks=all is noted, and later batches get OUT_OF_ORDER_SEQUENCE_NUMBER until the producer
sends it again:

- `ReplicaRejections` notes, under the partition's lock, what is rejected once the replica was found: too few replicas
  in sync, no longer the leader, disk full, a failed write, a batch that is too large;
- `RejectedFirstBatches` notes what is rejected before that (another node leads, topic or replica does not exist yet,
  replica or directory offline) and requests abandoned because the directory hangs.

A note is moot as soon as the log holds a batch of that producer and epoch, whichever node led: the log's own sequences
then decide. It expires `KEPT` seconds after the rejection (monotonic clock), so that no producer is rejected forever. A
producer that never sends the noted batch again is rejected until then, as it is by any log that has its state: the Java
client and librdkafka end a gap (a batch that expired or was too large) with a new producer id or epoch, or renumber the
batches that follow.

A leader change has the same effect without a note here: the previous leader rejects the first batch, or appends it and
truncates it later, while the producer sends the next one to the new leader. librdkafka waits for the previous leader's
responses, but its thread for the new leader may send before the thread for the previous one has put the rejected batch
back; the Java client does not wait. Therefore a new leader rejects, for `UNSETTLED` seconds after its election, the
batches of a producer without state that do not begin at sequence 0:

- with OUT_OF_ORDER_SEQUENCE_NUMBER if the log still has its first record and has forgotten no producer, since then no
  batch of this producer was ever appended. Both clients then send the first batch again and the others behind it;
- else with UNKNOWN_PRODUCER_ID, since the records may have been deleted. Clients then continue under a new producer
  epoch. (librdkafka would fail with a fatal error after the other code if no earlier batch is missing.)

Not covered: batches rejected by this node before a restart, or by a replica deleted meanwhile, without an election. The
connection breaks then, and clients resend the first batch before any other. The number of notes is bounded; the oldest
are dropped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace

from storage_node.errors import OutOfOrderSequence, UnknownProducer
from storage_node.log.batches.batch import HEADER_SIZE, MAGIC, NO_PRODUCER, Buffer, parse
from storage_node.log.producers.state import MAX_SEQUENCE, ProducerState

#: Maximum number of producers noted per replica.
REMEMBERED = 1024
#: Maximum number of (partition, producer) pairs noted before their replica is found.
REMEMBERED_EARLY = 8192
#: Seconds; longer than pipelined requests of one client can wait for a directory that hangs.
KEPT = 300.0
#: Seconds for which a producer may still wait for the previous leader's responses: the Java client's default of
#: delivery.timeout.ms, and twice librdkafka's socket.timeout.ms.
UNSETTLED = 120.0


@dataclass(frozen=True, slots=True)
class Note:
    """The earliest rejected batch of a producer, and the time of the latest rejection (seconds, monotonic)."""

    producer: int
    epoch: int
    sequence: int
    at: float

    def after(self, before: Note | None) -> Note:
        """Merge this note with the one before it; the newer producer epoch supersedes the older."""
        if before is None or before.epoch < self.epoch or self.at - before.at >= KEPT:
            return self
        if before.epoch > self.epoch:
            return before
        return replace(before, at=self.at) if _behind(self.sequence, before.sequence) else self

    def moot(self, known: ProducerState) -> bool:
        """Return whether the log holds a batch of this producer and epoch, or of a newer one."""
        producer = known.get(self.producer)
        return producer is not None and producer.epoch >= self.epoch


class ReplicaRejections:
    """Rejected batches of producers without state in the log.

    Guarded by the partition's lock, except for `refused_early` and `refused_unseen`.
    """

    def __init__(self) -> None:
        self._notes: dict[int, Note] = {}
        self._early: deque[Note] = deque(maxlen=REMEMBERED)
        self._unsettled_until = 0.0
        """Until when a producer may wait for the responses of the previous leader; 0 if no election was lately."""

    def elected(self) -> None:
        """Record that this replica has become the leader after another one: producers may not know of it yet."""
        self._unsettled_until = time.monotonic() + UNSETTLED

    def __len__(self) -> int:
        return len(self._notes) + len(self._early)

    def forget(self, most: int) -> None:
        """Keep only the newest `most` notes."""
        self._take_in()
        while len(self._notes) > most:
            del self._notes[next(iter(self._notes))]

    def refused_early(self, note: Note) -> None:
        """Add a note of a batch that was rejected before the replica was found; lock-free, for any thread."""
        self._early.append(note)

    def refused_unseen(self, records: Buffer) -> None:
        """Note a rejected batch that its producer may send again; lock-free, for any thread."""
        note = _note_of(records)
        if note is not None:
            self._early.append(note)

    def refused(self, records: Buffer, known: ProducerState) -> None:
        """Note a rejected batch that its producer may send again."""
        note = _note_of(records)
        if note is not None and known.get(note.producer) is None:
            self._add(note)

    def _add(self, note: Note) -> None:
        self._notes[note.producer] = note.after(self._notes.pop(note.producer, None))
        while len(self._notes) > REMEMBERED:
            del self._notes[next(iter(self._notes))]

    def check(self, records: Buffer, known: ProducerState, log_start: int = 0) -> bool:
        """Raise `OutOfOrderSequence` for a batch behind a rejected one; its producer then sends both again.

        Also raises `OutOfOrderSequence` or `UnknownProducer` after an election, as described above; `log_start` is the
        log start offset. Returns whether the producer has a note, so that the caller must call `forget_known` after the
        append.
        """
        if not self._notes and not self._early and not self._unsettled_until:
            return False
        self._take_in()
        batch = _note_of(records)
        if batch is None:
            return False
        before = self._notes.get(batch.producer)
        if before is None:
            self._check_first(batch, known, log_start)
            return False
        if not before.moot(known) and batch.epoch == before.epoch and _behind(batch.sequence, before.sequence):
            raise OutOfOrderSequence(
                f"Out of order sequence number for producer {batch.producer}: {batch.sequence} (incoming seq. number), "
                f"{before.sequence} was rejected and has not been sent again"
            )
        return True

    def _check_first(self, batch: Note, known: ProducerState, log_start: int) -> None:
        """Reject a producer's first batch after an election if it is not the producer's first one."""
        if not self._unsettled_until:
            return
        if batch.at > self._unsettled_until:
            self._unsettled_until = 0.0
        elif batch.sequence != 0 and known.get(batch.producer) is None:
            if log_start == 0 and not known.has_forgotten:
                raise OutOfOrderSequence(
                    f"Out of order sequence number for producer {batch.producer}: {batch.sequence} (incoming seq. "
                    f"number), but the log has no batch of it, and this leader was elected lately"
                )
            raise UnknownProducer(
                f"The log has no batch of producer {batch.producer} any more, which sends sequence {batch.sequence}, "
                f"and this leader was elected lately"
            )

    def forget_known(self, known: ProducerState) -> None:
        """Drop the notes of producers that the log has state for by now; call it after any append."""
        if not self._notes and not self._early:
            return
        self._take_in()
        for producer in [note.producer for note in self._notes.values() if note.moot(known)]:
            del self._notes[producer]

    def _take_in(self) -> None:
        """Merge the notes added without the lock, and drop expired ones. (The oldest come first.)"""
        while self._early:
            self._add(self._early.popleft())
        latest = time.monotonic() - KEPT
        while self._notes and next(iter(self._notes.values())).at <= latest:
            del self._notes[next(iter(self._notes))]


class RejectedFirstBatches:
    """Batches rejected before their replica was found, to be handed to the replica once it is. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notes: dict[tuple[str | bytes, int, int], Note] = {}

    def __len__(self) -> int:
        return len(self._notes)

    def refused(self, topic: str | bytes, partition: int, records: Buffer | None) -> None:
        """Note a rejected batch; `topic` is the topic name or id of the request."""
        note = _note_of(records) if records is not None else None
        if note is None:
            return
        key = (topic, partition, note.producer)
        with self._lock:
            self._notes[key] = note.after(self._notes.pop(key, None))
            while len(self._notes) > REMEMBERED_EARLY:
                del self._notes[next(iter(self._notes))]

    def take(self, topic: str | bytes, partition: int, records: Buffer | None) -> Note | None:
        """Remove and return the note of this batch's producer, for the replica that the batch is appended to now."""
        batch = _note_of(records) if records is not None else None
        if batch is None:
            return None
        with self._lock:
            # The oldest come first, and their producers may never send another batch.
            while self._notes and batch.at - next(iter(self._notes.values())).at >= KEPT:
                del self._notes[next(iter(self._notes))]
            return self._notes.pop((topic, partition, batch.producer), None)


def _behind(sequence: int, other: int) -> bool:
    """Return whether a sequence follows another one; sequences wrap around after 2^31-1."""
    return 0 < (sequence - other) & MAX_SEQUENCE <= MAX_SEQUENCE // 2


def _note_of(records: Buffer) -> Note | None:
    """Return a note of the first batch's producer id, epoch and base sequence; None if it has none."""
    if len(records) < HEADER_SIZE:
        return None
    header = parse(records)
    if header.magic != MAGIC or header.producer_id == NO_PRODUCER or header.base_sequence < 0:
        return None
    return Note(header.producer_id, header.producer_epoch, header.base_sequence, time.monotonic())
