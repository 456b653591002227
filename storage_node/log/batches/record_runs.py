"""Runs: consecutive records of one layout, as most batches hold them, checked all at once.

The first record is read byte by byte. The others are valid if their length bytes equal those of the first record, if
their timestamp deltas take as many bytes, and if their offset deltas rise by one. The same byte of all records is one
slice with a step, compared as a whole: a few microseconds for any number of records. Records of another layout are not
rejected here but left to `record_columns`, which reads every record by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from storage_node.log.batches.batch import Buffer

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Words: TypeAlias = npt.NDArray[np.uint16]

LEAST_RUN, LEAST_STRETCH = 12, 40
"""Minimum number of records; fewer are read faster one by one."""
NEAR = 1 << 35
"""Bound of the absolute value of a run's timestamp deltas, in milliseconds."""
_MOST_TIME_BYTES = 5
_MOST_HEADERS = 8
_ONE_BYTE, _TWO_BYTES = 1 << 6, 1 << 13
_ASCII = bytes(range(0x80))
#: Translates a byte with a continuation bit to ASCII, and a number's last byte to non-ASCII.
_TURNED = bytes(byte ^ 0x80 for byte in range(256))
#: Translates a number of one byte so that the order of the bytes is the order of the numbers.
_RANKED = bytes(((byte >> 1) ^ -(byte & 1)) + 64 & 0xFF for byte in range(256))
_RANK_OF_ZERO = 64
#: The bytes of the offset deltas 0 to 63, and both bytes of 64 to 8191.
_SHORT = bytes(range(0, 0x80, 2))
_LOW = bytes(2 * delta & 0x7F | 0x80 for delta in range(_TWO_BYTES))
_HIGH = bytes(2 * delta >> 7 for delta in range(_TWO_BYTES))

#: For each pair of bytes that begins a number of one or two bytes: how many bytes the number takes, its value, and how
#: many bytes the field takes whose length it is, itself included; `_FAR` for a longer number or a length below -1.
_WORDS = np.arange(1 << 16)
_LONGER = _WORDS & 0x80 != 0
_NO_NUMBER = _LONGER & (_WORDS >> 15 != 0)
_FAR = 1 << 40
_TAKES: Ints = np.where(_NO_NUMBER, _FAR, 1 + _LONGER)
_RAW = np.where(_LONGER, _WORDS & 0x7F | _WORDS >> 8 << 7, _WORDS & 0x7F)
_NUMBERS: Ints = (_RAW >> 1) ^ -(_RAW & 1)
_REACHES: Ints = np.where(_NUMBERS < -1, _FAR, _TAKES + np.maximum(_NUMBERS, 0))
_DELTAS: Ints = np.arange(_TWO_BYTES)


class Run(NamedTuple):
    """Consecutive records whose offset deltas rise by one."""

    count: int  # type: ignore[assignment]  # as in a batch's header
    end: int
    """The end of the last record."""
    low: int
    """The smallest and the largest timestamp delta in ms."""
    high: int
    headers: int


class _Layout(NamedTuple):
    """Positions of one record's fields in the buffer."""

    end: int
    time: int
    offset: int
    fixed: list[int]
    """Positions of the bytes that all records of a run have in common."""
    headers: int


def run_of(data: Buffer, start: int, first: int, count: int) -> Run | None:
    """Return the run of up to `count` records from `start` on, with one layout and offset deltas from `first` on.

    None if they are fewer than `LEAST_RUN`, or if the first record is not valid.
    """
    most = min(count, (_ONE_BYTE if first < _ONE_BYTE else _TWO_BYTES) - first)
    if most < LEAST_RUN:
        return None
    try:
        length, body = _number(data, start)
        end = body + length
        # Most records of another size begin with another length byte.
        if length < 0 or data[end] != data[start]:
            return None
        layout = _layout(data, start, body, end)
    except IndexError:
        return None
    if layout is None:
        return None
    size = layout.end - start
    most = min(most, (len(data) - start) // size)
    cut = partial(_column, data if isinstance(data, bytes) else np.frombuffer(data, np.uint8), size)
    times: list[bytes] = []
    for at in layout.fixed:
        if most < LEAST_RUN:
            return None
        column = cut(at, most)
        if column != column[:1] * most:
            most -= len(column.lstrip(column[:1]))
    for at in range(layout.time, layout.offset):
        column = cut(at, most)
        times.append(column)
        ends = column if at == layout.offset - 1 else column.translate(_TURNED)
        if not ends.isascii():
            most -= len(ends.lstrip(_ASCII))
    if most < LEAST_RUN or not _rises(cut, layout.offset, first, most):
        return None
    low, high = _bounds([column[:most] for column in times])
    return Run(most, start + most * size, low, high, most * layout.headers)


def stretch_of(data: Buffer, start: int, first: int, count: int) -> Run | None:
    """Return a run of records of any size up to 8 KiB, with any keys and no headers: all that `data` holds entirely.

    None like `run_of`, and if one of the records is of another kind.
    """
    starts = _starts(data, start, min(count, _TWO_BYTES - first))
    found = len(starts) - 1
    if found < LEAST_STRETCH:
        return None
    view = np.frombuffer(data, np.uint8)
    words: Words = np.ndarray((len(view) - 1,), "<u2", view, 0, (1,))
    places = np.array(starts, np.int64)
    begins, ends = places[:-1], places[1:]
    try:
        at = begins + _TAKES.take(words[begins])
        at += 1
        word = words[at]
        times = _NUMBERS.take(word)
        at += _TAKES.take(word)
        word = words[at]
        if _NUMBERS.take(word).tobytes() != _DELTAS[first : first + found].tobytes():
            return None
        at += _TAKES.take(word)
        at += _REACHES.take(words[at])
        at += _REACHES.take(words[at])
        headers = view[at].tobytes()
    except IndexError:
        return None
    at += 1
    if at.tobytes() != ends.tobytes() or headers.count(0) != found:
        return None
    return Run(found, starts[-1], int(times.min()), int(times.max()), 0)


def _starts(data: Buffer, position: int, count: int) -> list[int]:
    """Return the starts of the next records with lengths of one or two bytes, and the end of the last one."""
    starts = [position]
    add = starts.append
    try:
        for _ in range(count):
            byte = data[position]
            if byte < 0x80:
                position += 1 + (byte >> 1)
            else:
                second = data[position + 1]
                if second > 0x7F:
                    break
                position += 2 + (second << 6 | (byte & 0x7F) >> 1)
            if byte & 1:
                break
            add(position)
    except IndexError:
        pass
    if starts[-1] > len(data):
        starts.pop()
    return starts


def _column(data: bytes | Bytes, step: int, at: int, count: int) -> bytes:
    """Return `count` bytes from `at` on, `step` apart; memoryviews other than numpy's are slow at this."""
    column = data[at : at + count * step : step]
    return column if isinstance(column, bytes) else column.tobytes()


def _rises(cut: Callable[[int, int], bytes], at: int, first: int, count: int) -> bool:
    """Return whether the offset deltas at `at` are `first`, `first` + 1 and so on, in as few bytes as they need."""
    last = first + count
    if first < _ONE_BYTE:
        return cut(at, count) == _SHORT[first:last]
    return cut(at, count) == _LOW[first:last] and cut(at + 1, count) == _HIGH[first:last]


def _layout(data: Buffer, start: int, body: int, end: int) -> _Layout | None:
    """Return the layout of a record, None if it is not supported here. Raises IndexError."""
    fixed = list(range(start, body))
    time = at = body + 1
    while data[at] > 0x7F:
        at += 1
    offset = at = at + 1
    while data[at] > 0x7F:
        at += 1
    at += 1
    least, left, headers = -1, 2, None
    while left:
        size, after = _number(data, at)
        fixed += range(at, after)
        if size < least:
            return None
        at = after + size if size > 0 else after
        left -= 1
        if left:
            least = -1 if headers is None or left & 1 else 0
        elif headers is None:
            headers, after = _number(data, at)
            fixed += range(at, after)
            at, left, least = after, 2 * headers, 0
            if not 0 <= headers <= _MOST_HEADERS:
                return None
    if at != end or offset - time > _MOST_TIME_BYTES:
        return None
    return _Layout(end, time, offset, fixed, headers or 0)


def _number(data: Buffer, at: int) -> tuple[int, int]:
    """Return the value and the end of a zigzag varint of up to four bytes; IndexError for a longer one."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value = byte & 0x7F
    for shift in (7, 14, 21):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
    raise IndexError(at)


def _bounds(times: list[bytes]) -> tuple[int, int]:
    """Return the smallest and the largest of the numbers with these bytes."""
    if len(times) == 1:
        ranks = times[0].translate(_RANKED)
        if ranks == ranks[:1] * len(ranks):
            return ranks[0] - _RANK_OF_ZERO, ranks[0] - _RANK_OF_ZERO
        return min(ranks) - _RANK_OF_ZERO, max(ranks) - _RANK_OF_ZERO
    if len(times) == 2:
        pairs = bytearray(2 * len(times[0]))
        pairs[::2], pairs[1::2] = times
        value = _NUMBERS.take(np.frombuffer(pairs, "<u2"))
        return int(value.min()), int(value.max())
    value = np.zeros(len(times[0]), np.int64)
    for place, column in enumerate(times):
        value |= (np.frombuffer(column, np.uint8) & 0x7F).astype(np.int64) << 7 * place
    value = (value >> 1) ^ -(value & 1)
    return int(value.min()), int(value.max())
