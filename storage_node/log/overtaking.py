"""No batch of an idempotent producer overtakes one that was sent before it and refused.

A producer of which a log knows nothing may begin with any sequence: its earlier records may be gone. So if its first
batch is refused and the reason ends before the next one, which it has sent right behind, is looked at, that one would
be taken as its beginning. Clients conclude from an acknowledged batch that all before it are there (librdkafka says so
to its application): the first one would be lost. Apache Kafka takes it.

Therefore a refused batch with acks=all is noted, and what comes behind it is OUT_OF_ORDER_SEQUENCE_NUMBER until it has
come again:

- whatever refused it once the replica was found (too few in sync, no leader any more, no room, a failed write, a batch
  that is too large): by `Overtaking`, under the partition's lock;
- what refused it before that (another node leads, the topic or its replica is not there yet, the replica or directory
  is offline) and what was given up because the directory hangs: by `RefusedEarly`.

A note is moot as soon as the log holds a batch of that producer and epoch, whoever led then: the log's own sequences
say what may follow. It is forgotten `KEPT` seconds after the refusal (by the monotonic clock), so that no producer is
refused for ever. One that never sends the noted batch again is refused until then, as it always is by a log that knows
it: the Java client and librdkafka end a gap (a batch that expired or was too large) with a new producer id or epoch, or
by numbering what follows anew.

Not known is what another node refused, or this one before it was started again, or a replica of it that was deleted
meanwhile; nor what was appended and cut off again by a change of leader. In most of these the connection breaks or the
leader changes, and clients send the first batch again before any other. Remembered is a bounded number, the newest.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace

from storage_node.errors import OutOfOrderSequence
from storage_node.log.batch import HEADER_SIZE, MAGIC, NO_PRODUCER, Buffer, parse
from storage_node.log.producer_state import MAX_SEQUENCE, ProducerState

#: Producers remembered for a replica, the newest.
REMEMBERED = 1024
#: Producers of partitions remembered on the loop, the newest.
REMEMBERED_EARLY = 8192
#: Seconds: longer than the requests that a client has sent behind one another can wait for a directory that hangs.
KEPT = 300.0


@dataclass(frozen=True, slots=True)
class Note:
    """The first of a producer's batches that were refused, and when the last of them was (seconds, monotonic)."""

    producer: int
    epoch: int
    sequence: int
    at: float

    def after(self, before: Note | None) -> Note:
        """This one, made after `before`: an older epoch says nothing of a newer one."""
        if before is None or before.epoch < self.epoch or self.at - before.at >= KEPT:
            return self
        if before.epoch > self.epoch:
            return before
        return replace(before, at=self.at) if _behind(self.sequence, before.sequence) else self

    def moot(self, known: ProducerState) -> bool:
        """Whether the log holds a batch of this producer and epoch, or of a newer one."""
        producer = known.get(self.producer)
        return producer is not None and producer.epoch >= self.epoch


class Overtaking:
    """What was refused of producers that the log does not know. Under the partition's lock, but for `refused_early`."""

    def __init__(self) -> None:
        self._notes: dict[int, Note] = {}
        self._early: deque[Note] = deque(maxlen=REMEMBERED)

    def __len__(self) -> int:
        return len(self._notes) + len(self._early)

    def forget(self, most: int) -> None:
        """Keep the newest `most` notes."""
        self._take_in()
        while len(self._notes) > most:
            del self._notes[next(iter(self._notes))]

    def refused_early(self, note: Note) -> None:
        """Before the replica could be asked; any thread, without a lock."""
        self._early.append(note)

    def refused_unseen(self, records: Buffer) -> None:
        """This batch was refused and may come again; any thread, without a lock."""
        note = _note_of(records)
        if note is not None:
            self._early.append(note)

    def refused(self, records: Buffer, known: ProducerState) -> None:
        """This batch was refused and may come again."""
        note = _note_of(records)
        if note is not None and known.get(note.producer) is None:
            self._add(note)

    def _add(self, note: Note) -> None:
        self._notes[note.producer] = note.after(self._notes.pop(note.producer, None))
        while len(self._notes) > REMEMBERED:
            del self._notes[next(iter(self._notes))]

    def check(self, records: Buffer, known: ProducerState) -> bool:
        """Raises `OutOfOrderSequence` for a batch behind one that was refused: its producer sends both again.

        Answers whether something is noted of its producer, so that `forget_known` is to be called once it is appended.
        """
        if not self._notes and not self._early:
            return False
        self._take_in()
        batch = _note_of(records)
        before = self._notes.get(batch.producer) if batch is not None else None
        if batch is None or before is None:
            return False
        if not before.moot(known) and batch.epoch == before.epoch and _behind(batch.sequence, before.sequence):
            raise OutOfOrderSequence(
                f"Out of order sequence number for producer {batch.producer}: {batch.sequence} (incoming seq. number), "
                f"{before.sequence} was refused and has not come again"
            )
        return True

    def forget_known(self, known: ProducerState) -> None:
        """Batches were appended, by whoever leads: what the log knows by now needs no note."""
        if not self._notes and not self._early:
            return
        self._take_in()
        for producer in [note.producer for note in self._notes.values() if note.moot(known)]:
            del self._notes[producer]

    def _take_in(self) -> None:
        """What was noted without the lock; and what is too old goes. (The oldest come first.)"""
        while self._early:
            self._add(self._early.popleft())
        latest = time.monotonic() - KEPT
        while self._notes and next(iter(self._notes.values())).at <= latest:
            del self._notes[next(iter(self._notes))]


class RefusedEarly:
    """What was refused before a replica could be asked, for when it can be. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notes: dict[tuple[str | bytes, int, int], Note] = {}

    def __len__(self) -> int:
        return len(self._notes)

    def refused(self, topic: str | bytes, partition: int, records: Buffer | None) -> None:
        """A batch was refused; `topic` is the name or the id that the request has."""
        note = _note_of(records) if records is not None else None
        if note is None:
            return
        key = (topic, partition, note.producer)
        with self._lock:
            self._notes[key] = note.after(self._notes.pop(key, None))
            while len(self._notes) > REMEMBERED_EARLY:
                del self._notes[next(iter(self._notes))]

    def take(self, topic: str | bytes, partition: int, records: Buffer | None) -> Note | None:
        """What was noted of this batch's producer, for the replica that it goes to now."""
        batch = _note_of(records) if records is not None else None
        if batch is None:
            return None
        with self._lock:
            # The oldest come first; nobody may ever ask for them again.
            while self._notes and batch.at - next(iter(self._notes.values())).at >= KEPT:
                del self._notes[next(iter(self._notes))]
            return self._notes.pop((topic, partition, batch.producer), None)


def _behind(sequence: int, other: int) -> bool:
    """Whether a sequence comes after another; they start over after 2^31-1."""
    return 0 < (sequence - other) & MAX_SEQUENCE <= MAX_SEQUENCE // 2


def _note_of(records: Buffer) -> Note | None:
    """Producer id, epoch and base sequence of the first batch, now; None without them."""
    if len(records) < HEADER_SIZE:
        return None
    header = parse(records)
    if header.magic != MAGIC or header.producer_id == NO_PRODUCER or header.base_sequence < 0:
        return None
    return Note(header.producer_id, header.producer_epoch, header.base_sequence, time.monotonic())
