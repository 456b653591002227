"""Reads all records of a batch as columns, and checks that every consumer can read them.

A record is a length and so many bytes: attributes, timestamp delta, offset delta, key, value and headers, each number
a zigzag varint. The lengths are walked one by one; numpy reads the rest for thousands of records at once, which holds
the GIL for no more than about a millisecond. A few records, and large ones, are read byte by byte.

Decompressed data comes in chunks, of which few are in memory at a time. The cost is bounded: `TooLarge` for more
bytes, records or headers than a client has reason to send in one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from storage_node.log.batches.batch import Buffer
from storage_node.log.batches.record_runs import LEAST_RUN, LEAST_STRETCH, Run, run_of, stretch_of
from storage_node.log.batches.unpacking import TooLarge
from storage_node.small_first import pace

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Columns: TypeAlias = "tuple[list[int], list[int]] | tuple[Ints, Ints]"
"""Offset deltas and timestamp deltas of records that follow one another."""

MOST_PACKED_RECORDS = 1 << 20
"""Maximum number of records in a compressed batch that is decompressed."""
MOST_HEADERS = 1 << 20
"""Maximum number of record headers in a batch."""
_MANY_HEADERS = f"has more than {MOST_HEADERS} headers"
FEW = 64
"""Up to so many records are read faster one by one."""
_FEW_BYTES = 64 << 10
_FEW_HEADERS = 24
_NULL = -1
_KEY_AND_VALUE = range(2)
_ZIGZAG = np.array([(value >> 1) ^ -(value & 1) for value in range(1 << 14)], np.int64)
_ONE_BY_ONE = 4
_RUN = 16
_ONE_BYTE, _TWO_BYTES = 1 << 6, 1 << 13
_TOO_FEW = "fewer records than its header declares, or a record that ends beyond it"
_TOO_MANY = "more bytes than its records occupy"
_ANOTHER_LENGTH = "a record whose length differs from that of its fields"
_AT_ONCE = 16 << 10
_LARGE = 1 << 20
"""A larger record is read while it is decompressed and is never in memory as a whole."""
_INT_BYTES, _LONG_BYTES = 5, 10
#: Headers walked over between two calls of `pace`.
_STRETCH = 2_000
_MASKS = {_INT_BYTES: (1 << 32) - 1, _LONG_BYTES: (1 << 64) - 1}


class _Stream:
    """A sequence of chunks; positions count from the first byte of the first chunk."""

    def __init__(self, chunks: Iterator[Buffer]) -> None:
        self._chunks = chunks
        self.data: Buffer = b""
        self.base = 0

    def more(self, position: int) -> bool:
        """Read another chunk and drop the bytes before `position`; return False at the end."""
        chunk = next(self._chunks, None)
        rest = self.data[position - self.base :]
        self.base = position
        self.data = rest if chunk is None else b"".join((rest, chunk)) if len(rest) else chunk
        return chunk is not None

    def __getitem__(self, position: int) -> int:
        """Return the byte at a position, before which no byte is read any more; raises IndexError at the end."""
        while position >= self.base + len(self.data):
            if not self.more(self.base + len(self.data)):
                raise IndexError(position)
        return self.data[position - self.base]


def columns(chunks: Iterable[Buffer], count: int, *, packed: bool, exact: bool = True) -> Iterator[Columns]:
    """Yield the columns of `count` records, some thousands at a time.

    `packed`: whether the batch is compressed; `exact`: whether no bytes may follow the records. Raises ValueError for
    records that cannot be read, and `TooLarge`.
    """
    for found in runs_and_columns(chunks, count, packed=packed, exact=exact, runs=False):
        if not isinstance(found, Run):
            yield found


def runs_and_columns(
    chunks: Iterable[Buffer],
    count: int,
    *,
    packed: bool,
    exact: bool = True,
    runs: bool = True,
    most_headers: int | None = None,
) -> Iterator[Columns | Run]:
    """Yield columns like `columns`, but a `Run` for records that are in order and of one layout.

    `most_headers`: maximum number of record headers to walk over; those of runs do not count.
    """
    if packed and count > MOST_PACKED_RECORDS:
        raise TooLarge(f"has more than {MOST_PACKED_RECORDS} records")
    stream = _Stream(iter(chunks))
    position = 0
    left = MOST_HEADERS
    walks = left if most_headers is None else most_headers
    whole = count
    while count:
        start = position - stream.base
        if start >= len(stream.data):
            if stream.more(position):
                continue
            raise ValueError(_TOO_FEW)
        if runs and count >= LEAST_RUN and (run := _run_of(stream.data, start, whole - count, count)) is not None:
            position = stream.base + run.end
            count -= run.count
            left -= run.headers
            if left < 0:
                raise TooLarge(_MANY_HEADERS)
            yield run
            continue
        small = not packed or len(stream.data) - start <= _FEW_BYTES
        if count <= FEW and small and (few_of := _few_of(stream.data, start, count, min(left, walks))):
            offsets, times, end, more = few_of
            position = stream.base + end
            count = 0
            left -= more
            walks -= more
            yield offsets, times
            continue
        view = np.frombuffer(stream.data, np.uint8)
        bodies, ends, needed = _walk(stream.data, view, start, min(count, _AT_ONCE))
        if len(ends):
            found, more = _many(stream.data, view, bodies, ends, min(left, walks))
            position = stream.base + int(ends[-1])
            count -= len(ends)
        elif needed > _LARGE:
            found, position, more = _large(stream, position, min(left, walks))
            count -= 1
        elif stream.more(position):
            continue
        else:
            raise ValueError(_TOO_FEW)
        left -= more
        walks -= more
        yield found
    if exact and (position < stream.base + len(stream.data) or stream.more(position)):
        raise ValueError(_TOO_MANY)


def _run_of(data: Buffer, start: int, first: int, count: int) -> Run | None:
    found = run_of(data, start, first, count)
    return stretch_of(data, start, first, count) if found is None and count >= LEAST_STRETCH else found


def _few_of(data: Buffer, start: int, count: int, most: int) -> tuple[list[int], list[int], int, int] | None:
    """Read like `few`; return None if `data` does not hold all of the records."""
    try:
        found = few(data, count, start, most)
    except IndexError:
        return None
    return found if found[2] <= len(data) else None


def all_of(data: Buffer, count: int, most_headers: int | None = None) -> tuple[list[int], list[int]]:
    """Return the columns of a few records that occupy all of `data`; raises ValueError, `TooLarge`."""
    most = MOST_HEADERS if most_headers is None else min(most_headers, MOST_HEADERS)
    try:
        offsets, times, end, _headers = few(data, count, 0, most)
    except IndexError as exc:
        raise ValueError(_TOO_FEW) from exc
    if end > len(data):
        raise ValueError(_TOO_FEW)
    if end < len(data):
        raise ValueError(_TOO_MANY)
    return offsets, times


def _large(stream: _Stream, position: int, most: int) -> tuple[Columns, int, int]:
    """Return the columns of one record, its end, and its number of headers."""
    try:
        end, delta_ms, delta, headers = _one(stream, position, most)
        stream[end - 1]
    except IndexError as exc:
        raise ValueError(_TOO_FEW) from exc
    return ([delta], [delta_ms]), end, headers


def _walk(data: Buffer, view: Bytes, position: int, count: int) -> tuple[Ints, Ints, int]:
    """Return the starts and ends of the bodies of the next records that `data` holds entirely, and how many bytes the
    record after them needs (0 if it was not reached).

    Records of one size, as most batches have them, are found in one comparison.
    """
    bodies: list[int] = []
    ends: list[int] = []
    parts: list[tuple[Ints, Ints]] = []
    step = _ONE_BY_ONE
    needed = 0
    while count > 0:
        before = len(ends)
        needed = _steps(data, position, min(count, step), bodies, ends)
        count -= len(ends) - before
        if needed:
            break
        body, position = bodies[-1], ends[-1]
        run = _run(view, body, position, count)
        if run:
            parts += ((np.array(bodies, np.int64), np.array(ends, np.int64)), run)
            bodies, ends = [], []
            count -= len(run[1])
            position = int(run[1][-1])
            step = _ONE_BY_ONE
        else:
            step = min(4 * step, _AT_ONCE)
    if ends or not parts:
        parts.append((np.array(bodies, np.int64), np.array(ends, np.int64)))
    if len(parts) == 1:
        return *parts[0], needed
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]), needed


def _run(view: Bytes, body: int, end: int, count: int) -> tuple[Ints, Ints] | None:
    """Return the next records of the same size as the one with this body; None if they are too few to be worth it."""
    prefix = 1 if end - body < _ONE_BYTE else 2
    size = end - body + prefix
    start = end - size
    count = min(count, (len(view) - end) // size)
    if count < _RUN or end - body >= _TWO_BYTES or view[start + prefix - 1] > 0x7F:
        return None
    same = view[end : end + count * size : size] == view[start]
    if prefix == 2:
        same &= view[end + 1 : end + count * size : size] == view[start + 1]
    found = count if same.all() else int(same.argmin())
    if found < _RUN:
        return None
    ends = np.arange(end + size, end + found * size + 1, size, dtype=np.int64)
    return ends - (size - prefix), ends


def _steps(data: Buffer, position: int, count: int, bodies: list[int], ends: list[int]) -> int:
    """Walk records like `_walk`, one by one; return how many bytes the next one needs."""
    limit = len(data)
    try:
        for _ in range(count):
            start = position
            byte = data[position]
            if byte < 0x80:
                body = position + 1
                position = body + (byte >> 1)
            else:
                second = data[position + 1]
                if second < 0x80:
                    body = position + 2
                    position = body + ((second << 6) | ((byte & 0x7F) >> 1))
                else:
                    length, body = _varint(data, position, _INT_BYTES)
                    position = body + length
            if byte & 1:
                raise ValueError("a record of negative length")
            if position > limit:
                return position - start
            bodies.append(body)
            ends.append(position)
    except IndexError:
        return 1
    return 0


def _varint(data: Buffer | _Stream, position: int, most: int) -> tuple[int, int]:
    """Return the value and the end of a zigzag varint of up to `most` bytes. Raises IndexError, ValueError."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _MASKS[most]:
                raise ValueError("a varint that is too large")
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift == 7 * most:
            raise ValueError("a varint that is too long")


def few(data: Buffer, count: int, end: int, most: int) -> tuple[list[int], list[int], int, int]:
    """Return the columns of `count` records from `end` on, their end, and their number of headers, at most `most`.

    Records with lengths of one or two bytes and no headers, which most are, are read here; others by `_one`. Raises
    IndexError where `data` ends before them (they may also end behind it), ValueError, `TooLarge`.
    """
    offsets: list[int] = []
    times: list[int] = []
    headers = 0
    for _ in range(count):
        start = end
        size = data[start]
        at = start + 3
        if size > 0x7F:
            second = data[start + 1]
            size = size & 0x7F | second << 7 if second < 0x80 else 1
            at += 1
        end = at - 2 + (size >> 1)
        time, delta = data[at - 1], data[at]
        plain = not (size & 1 or (time | delta) & 0x80)
        if plain:
            at += 1
            size = data[at]
            if size != 1:
                if size > 0x7F:
                    at += 1
                    second = data[at]
                    size = size & 0x7F | second << 7 if second < 0x80 else 1
                plain = not size & 1
                at += size >> 1
        if plain:
            at += 1
            size = data[at]
            if size > 0x7F:
                at += 1
                second = data[at]
                size = size & 0x7F | second << 7 if second < 0x80 else 1
            at += 1 + (size >> 1)
            plain = not (size & 1 or at != end - 1 or data[at])
        if plain:
            offsets.append(delta >> 1 if not delta & 1 else ~(delta >> 1))
            times.append(time >> 1 if not time & 1 else ~(time >> 1))
        else:
            end, time, delta, more = _one(data, start, most - headers)
            offsets.append(delta)
            times.append(time)
            headers += more
    return offsets, times, end, headers


def _one(data: Buffer | _Stream, position: int, most: int = MOST_HEADERS) -> tuple[int, int, int, int]:
    """Return a record's end, its timestamp and offset deltas, and its number of headers, at most `most`.

    Most numbers take one byte.
    """
    byte = data[position]
    if byte < 0x80:
        position += 1
        end = position + (byte >> 1)
        if byte & 1:
            raise ValueError("a record of negative length")
    else:
        length, position = _varint(data, position, _INT_BYTES)
        end = position + length
        if length < 0:
            raise ValueError("a record of negative length")
    position += 1  # attributes, all of which are unused
    byte = data[position]
    if byte < 0x80:
        delta_ms = (byte >> 1) ^ -(byte & 1)
        position += 1
    else:
        delta_ms, position = _varint(data, position, _LONG_BYTES)
    byte = data[position]
    if byte < 0x80:
        delta = (byte >> 1) ^ -(byte & 1)
        position += 1
    else:
        delta, position = _varint(data, position, _INT_BYTES)
    for _ in _KEY_AND_VALUE:
        byte = data[position]
        if byte == 1:
            position += 1
        else:
            size, position = _varint(data, position, _INT_BYTES)
            if size < 0:
                raise ValueError("a key or a value of negative length")
            position += size
    headers = data[position]
    position += 1
    if headers:
        headers, position = _varint(data, position - 1, _INT_BYTES)
        position = _headers(data, position, end, headers, most)
    if position != end:
        raise ValueError(_ANOTHER_LENGTH)
    return end, delta_ms, delta, headers


def _headers(data: Buffer | _Stream, position: int, end: int, count: int, most: int) -> int:
    """Return the end of `count` headers. Most lengths take one byte."""
    if count < 0:
        raise ValueError("a negative number of headers")
    if count > (end - position) // 2:
        raise ValueError("more headers than a record has bytes for")
    if count > most:
        raise TooLarge(_MANY_HEADERS)
    for number in range(count):
        if number % _STRETCH == _STRETCH - 1:
            pace()
        byte = data[position]
        if byte < 0x80 and not byte & 1:
            position += 1 + (byte >> 1)
        else:
            size, position = _varint(data, position, _INT_BYTES)
            if size < 0:
                raise ValueError("a header without a key")
            position += size
        byte = data[position]
        if byte < 0x80:
            position += 1 if byte & 1 else 1 + (byte >> 1)
        else:
            size, position = _varint(data, position, _INT_BYTES)
            position += max(size, 0)
        if position > end:
            raise ValueError("a header that ends beyond its record")
    return position


def _many(data: Buffer, view: Bytes, bodies: Ints, ends: Ints, most: int) -> tuple[Columns, int]:
    """Return the columns of the records with these bodies, and their number of headers, at most `most`.

    A number that is read beyond the end of its record leads further beyond it, and the final check detects it.
    """
    times, at = _varints(view, bodies + 1, _LONG_BYTES)
    offsets, at = _varints(view, at, _INT_BYTES)
    keys, at = _varints(view, at, _INT_BYTES)
    at += np.maximum(keys, 0)
    values, at = _varints(view, at, _INT_BYTES)
    at += np.maximum(values, 0)
    headers, at = _varints(view, at, _INT_BYTES)
    if keys.min() < _NULL or values.min() < _NULL:
        raise ValueError("a key or a value of negative length")
    if headers.any():
        return (offsets, times), _skip_headers(data, view, at, ends, headers, most)
    if not (at == ends).all():
        raise ValueError(_ANOTHER_LENGTH)
    return (offsets, times), 0


def _skip_headers(data: Buffer, view: Bytes, at: Ints, ends: Ints, headers: Ints, most: int) -> int:
    """Check that the headers fill the rest of their records; return how many there are."""
    if (headers < 0).any() or (headers > ends - at).any():
        raise ValueError("a negative number of headers, or more than a record has bytes for")
    total = int(headers.sum())
    if total > most:
        raise TooLarge(_MANY_HEADERS)
    if (at[headers == 0] != ends[headers == 0]).any():
        raise ValueError(_ANOTHER_LENGTH)
    left = np.flatnonzero(headers)
    at, ends, headers = at[left], ends[left], headers[left]
    # Each pass reads one header of every record; a few records with many headers are read one by one.
    while len(at) >= _FEW_HEADERS:
        sizes, at = _varints(view, at, _INT_BYTES)
        if (sizes < 0).any():
            raise ValueError("a header without a key")
        sizes, at = _varints(view, at + sizes, _INT_BYTES)
        at = at + np.maximum(sizes, 0)
        headers = headers - 1
        more = headers > 0
        if (at[~more] != ends[~more]).any():
            raise ValueError(_ANOTHER_LENGTH)
        at, ends, headers = at[more], ends[more], headers[more]
    for position, end, count in zip(at.tolist(), ends.tolist(), headers.tolist(), strict=True):
        try:
            after = _headers(data, position, end, count, most)
        except IndexError as exc:
            raise ValueError("a header that ends beyond its record") from exc
        if after != end:
            raise ValueError(_ANOTHER_LENGTH)
    return total


def _varints(view: Bytes, at: Ints, most: int) -> tuple[Ints, Ints]:
    """Return the zigzag varint of up to `most` bytes at each position, and its end; zeros beyond the end."""
    first = view.take(at, mode="clip")
    after = at + 1
    if first.max() < 0x80:
        return _ZIGZAG.take(first), after
    second = view.take(after, mode="clip")
    longer = first > 0x7F
    if np.minimum(first, second).max() < 0x80:
        after += longer
        second *= longer
        return _ZIGZAG.take(second.astype(np.int64) << 7 | first & 0x7F), after
    value = (first & 0x7F).astype(np.uint64)
    rest = np.flatnonzero(longer)
    shift = 7
    while len(rest):
        if shift == 7 * most:
            raise ValueError("a varint that is too long")
        byte = view.take(after[rest], mode="clip")
        if shift == 7 * (most - 1) and (byte & 0x7F > _MASKS[most] >> shift).any():
            raise ValueError("a varint that is too large")
        value[rest] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[rest] += 1
        rest = rest[byte > 0x7F]
        shift += 7
    return ((value >> np.uint64(1)) ^ (~(value & np.uint64(1)) + np.uint64(1))).view(np.int64), after
