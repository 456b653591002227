"""Validate record batches in a stream of bytes that may be cut within a record or a header.

The disk's block size and the throttle cut what a copier moves, not batches. Each batch's header and CRC are still
validated before the copy's log end offset passes it; index entries, epochs and producers are collected on the way, so
that nothing is read a second time.
"""

from __future__ import annotations

import struct
from collections import deque

import crc32c as _crc32c

from storage_node.errors import CorruptRecord
from storage_node.log.batches.batch import (
    CRC_START,
    HEADER_SIZE,
    MAGIC,
    MIN_LENGTH,
    NO_PRODUCER,
    PREFIX_SIZE,
    BatchHeader,
    parse,
    problem,
)
from storage_node.log.blocks import Recent, Walked

_crc = _crc32c.crc32c
_FIELDS = struct.Struct(">qiibI2xi8xqq6xi")
"""Base offset, length, leader epoch, magic, CRC, last offset delta, max timestamp, producer id, count."""
_MAX_RELATIVE = 2**31 - 1
_MARKERS = 0x30
"""Transactional and control batches: a producer's state depends on all of them, not only on the last few."""


class BatchWalk:
    """A validator that takes the bytes of one segment in order, block by block.

    `position` is where the first byte will be written in a segment that starts at `base_offset`; `expected` is the
    lowest offset that may come first. `entry` is the position of that segment's last index entry, `largest` its largest
    timestamp and the offset that has it, `epoch` the newest leader epoch of the log.
    """

    def __init__(
        self,
        *,
        position: int,
        base_offset: int,
        expected: int,
        interval: int,
        entry: int,
        largest: tuple[int, int],
        epoch: int,
    ) -> None:
        self.expected = expected
        self._at = position  # of the next byte
        self._base = base_offset
        self._interval = interval
        self._entry = entry
        self._max_ts, self._max_offset = largest
        self._epoch = epoch
        self._head = b""  # a partial header
        self._need = 0  # missing bytes of the batch that was begun
        self._crc = 0  # of the bytes of that batch so far
        self._begun: tuple[int, ...] = ()
        self._begun_at = 0
        self._begun_header: BatchHeader | None = None

    def feed(self, view: memoryview) -> Walked:
        """Validate the next bytes. Raises `CorruptRecord` for a batch that is corrupt or out of order."""
        found = Walked(end=-1)
        size, at = len(view), 0
        if self._head:
            at = self._feed_head(view)
            if self._head:
                self._at += size
                return self._done(found)
        if self._need:
            taken = min(self._need, size - at)
            self._crc = _crc(view[at : at + taken], self._crc)
            self._need -= taken
            at += taken
            if self._need:
                self._at += size
                return self._done(found)
        if self._begun:
            self._finish(found)
        at = self._whole(view, at, size, found)
        self._rest(view, at, size)
        self._at += size
        return self._done(found)

    def _done(self, found: Walked) -> Walked:
        found.next_offset = self.expected
        found.largest = (self._max_ts, self._max_offset)
        return found

    def _whole(self, view: memoryview, at: int, size: int, found: Walked) -> int:
        """Validate the batches that the block holds wholly; return the position of the next one."""
        unpack, crc, interval, shift = _FIELDS.unpack_from, _crc, self._interval, self._at
        expected, entry, epoch_now = self.expected, self._entry, self._epoch
        max_ts, max_offset, last = self._max_ts, self._max_offset, size - HEADER_SIZE
        count, entries = 0, found.entries
        while at <= last:
            base, length, epoch, magic, wanted, delta, timestamp, producer, records = unpack(view, at)
            end = at + PREFIX_SIZE + length
            if magic != MAGIC or length < MIN_LENGTH or delta < 0 or records < 0:
                self._refuse(parse(view, at), expected)
            if base < expected and not (self._may_straddle and expected <= base + delta):
                self._refuse(parse(view, at), expected)
            if end > size:
                break
            if crc(view[at + CRC_START : end]) != wanted:
                self._damaged(base)
            if count == 0 and found.count == 0:
                found.first_offset = base
            self._may_straddle = False
            expected = base + delta + 1
            if expected - 1 - self._base > _MAX_RELATIVE:
                self._refuse(parse(view, at), expected)
            if timestamp > max_ts:
                max_ts, max_offset = timestamp, expected - 1
            position = shift + at
            if position - entry > interval:
                entries.append((position, expected - 1, max_ts, max_offset))
                entry = position
            if epoch > epoch_now:
                found.epochs.append((epoch, base))
                epoch_now = epoch
            if producer != NO_PRODUCER:
                _remember(found, parse(view, at))
            count += 1
            at = end
        self.expected, self._entry, self._epoch = expected, entry, epoch_now
        self._max_ts, self._max_offset = max_ts, max_offset
        if count:
            found.count += count
            found.end = shift + at
        return at

    _may_straddle = False

    def straddling(self) -> None:
        """Allow the first batch to begin below `expected`, if it reaches that offset."""
        self._may_straddle = True

    def _rest(self, view: memoryview, at: int, size: int) -> None:
        """Begin the batch that the block holds only in part."""
        if at >= size:
            return
        if size - at < HEADER_SIZE:
            self._head = bytes(view[at:])
            self._begun_at = self._at + at
            return
        self._begin(parse(view, at), self._at + at)
        self._crc = _crc(view[at + CRC_START :])
        self._need -= size - at - HEADER_SIZE

    def _feed_head(self, view: memoryview) -> int:
        """Complete a partial header; return the bytes of the block that it took."""
        missing = HEADER_SIZE - len(self._head)
        self._head += bytes(view[:missing])
        if len(self._head) < HEADER_SIZE:
            return len(view)
        head, self._head = self._head, b""
        self._begin(parse(head), self._begun_at)
        self._crc = _crc(head[CRC_START:])
        return missing

    def _begin(self, header: BatchHeader, position: int) -> None:
        straddles = self._may_straddle and header.base_offset < self.expected <= header.last_offset
        if problem(header) or (header.base_offset < self.expected and not straddles):
            self._refuse(header, self.expected)
        self._begun_header, self._begun_at = header, position
        self._begun = (header.base_offset,)
        self._need = header.length - HEADER_SIZE

    def _finish(self, found: Walked) -> None:
        header = self._begun_header
        assert header is not None
        self._begun, self._begun_header = (), None
        if self._crc != header.crc:
            self._damaged(header.base_offset)
        if header.last_offset - self._base > _MAX_RELATIVE:
            self._refuse(header, self.expected)
        self._may_straddle = False
        if found.count == 0:
            found.first_offset = header.base_offset
        found.count += 1
        self.expected = header.next_offset
        if header.max_timestamp > self._max_ts:
            self._max_ts, self._max_offset = header.max_timestamp, header.last_offset
        if self._begun_at - self._entry > self._interval:
            found.entries.append((self._begun_at, header.last_offset, self._max_ts, self._max_offset))
            self._entry = self._begun_at
        if header.leader_epoch > self._epoch:
            found.epochs.append((header.leader_epoch, header.base_offset))
            self._epoch = header.leader_epoch
        if header.producer_id != NO_PRODUCER:
            _remember(found, header)
        found.end = self._begun_at + header.length

    def _refuse(self, header: BatchHeader, expected: int) -> None:
        wrong = problem(header)
        if wrong is None:
            wrong = f"the offsets {header.base_offset} to {header.last_offset}, which do not follow {expected}"
        self.expected = expected
        raise CorruptRecord(f"the batch has {wrong}")

    def _damaged(self, base: int) -> None:
        self.expected = max(self.expected, base)
        raise CorruptRecord(f"the CRC of the batch with base offset {base} is wrong")


def _remember(found: Walked, header: BatchHeader) -> None:
    recent = found.producers.get(header.producer_id)
    if recent is None:
        recent = found.producers[header.producer_id] = Recent()
    if header.attributes & _MARKERS and recent.headers.maxlen is not None:
        recent.headers = deque(recent.headers)
    recent.headers.append(header)
    if header.max_timestamp > recent.timestamp:
        recent.timestamp = header.max_timestamp
