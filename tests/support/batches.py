"""Record batches as no proper client writes them, beside some that only look strange: what tests of produce share."""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import pyarrow

from storage_node.log.batches.batch import (
    CRC_FIELD,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    NO_PRODUCER,
    PREFIX_SIZE,
    crc_of,
)

GZIP, SNAPPY, LZ4, ZSTD = range(1, 5)
CODECS = {"gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
#: A frame of independent blocks of up to 64 KiB; its last byte is the header's checksum.
_LZ4_HEADER = bytes.fromhex("04224d18604082")
_LZ4_BLOCK = 64 << 10
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40


def zigzag(value: int) -> bytes:
    """A zigzag varint."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field_of(value: bytes | None) -> bytes:
    """A length and what follows it; None has the length -1."""
    return zigzag(-1) if value is None else zigzag(len(value)) + value


def body_of(
    offset: int = 0,
    *,
    attributes: int = 0,
    timestamp: int = 0,
    key: bytes | None = None,
    value: bytes | None = b"v",
    headers: Sequence[tuple[bytes, bytes | None]] = (),
    header_count: int | None = None,
) -> bytes:
    """A record without its length; `offset` and `timestamp` (ms) are deltas."""
    count = len(headers) if header_count is None else header_count
    parts = [bytes([attributes]), zigzag(timestamp), zigzag(offset), field_of(key), field_of(value), zigzag(count)]
    parts += [field_of(name) + field_of(content) for name, content in headers]
    return b"".join(parts)


def record_of(body: bytes, *, longer: int = 0) -> bytes:
    """A record with its length, or with one that is so much `longer` than its body."""
    return zigzag(len(body) + longer) + body


@cache
def records_of(count: int, **options: int) -> bytes:
    """So many good records, one after the other."""
    return b"".join(record_of(body_of(offset, **options)) for offset in range(count))


def packed(data: bytes, codec: int) -> bytes:
    """What a producer makes of these records with this codec."""
    if codec == GZIP:
        return gzip.compress(data)
    if codec == SNAPPY:
        block = bytes(pyarrow.compress(data, codec="snappy", asbytes=True))
        return b"\x82SNAPPY\x00" + bytes([0, 0, 0, 1, 0, 0, 0, 1]) + len(block).to_bytes(4, "big") + block
    if codec == LZ4:
        blocks = [data[at : at + _LZ4_BLOCK] for at in range(0, len(data), _LZ4_BLOCK)]
        blocks = [bytes(pyarrow.compress(block, codec="lz4_raw", asbytes=True)) for block in blocks]
        return _LZ4_HEADER + b"".join(len(block).to_bytes(4, "little") + block for block in blocks) + bytes(4)
    if codec == ZSTD:
        return bytes(pyarrow.compress(data, codec="zstd", asbytes=True))
    return data


@dataclass(frozen=True)
class Batch:
    """A batch: its payload as it is sent, and what its header says, right or wrong."""

    payload: bytes = record_of(body_of())
    count: int = 1
    last_delta: int | None = None
    """The last offset delta; one less than `count` if not given."""
    attributes: int = 0
    first: int = 0
    """The base timestamp, and `newest` the largest one, in milliseconds after `NOW`."""
    newest: int = 0
    absolute: tuple[int, int] | None = None
    """Base and largest timestamp in milliseconds since the epoch, instead."""
    base_offset: int = 0
    leader_epoch: int = -1
    magic: int = MAGIC
    producer: tuple[int, int, int] = (NO_PRODUCER, -1, -1)
    """Producer id, epoch and base sequence."""
    crc_wrong: bool = False
    length_off: int = 0
    """How much the length in the header is more than there is."""
    after: bytes = field(default=b"", repr=False)
    """What follows the batch in the request."""

    def encode(self, now: int | None = None) -> bytes:
        """The bytes; `now` in milliseconds since the epoch."""
        now = int(time.time() * 1000) if now is None else now
        first, newest = self.absolute or (now + self.first, now + self.newest)
        delta = self.count - 1 if self.last_delta is None else self.last_delta
        out = bytearray(HEADER_SIZE + len(self.payload))
        out[HEADER_SIZE:] = self.payload
        HEADER.pack_into(
            out, 0, self.base_offset, len(out) - PREFIX_SIZE + self.length_off, self.leader_epoch, self.magic, 0,
            self.attributes, delta, first, newest, *self.producer, self.count,
        )  # fmt: skip
        CRC_FIELD.pack_into(out, CRC_START - 4, crc_of(out, 0, len(out)) ^ self.crc_wrong)
        return bytes(out) + self.after


GOOD = records_of(3)
KEYLESS = b"\0\0\0" + zigzag(-1)
CORRUPT, TOO_LARGE, TIMESTAMP, INVALID, UNPACKABLE = 2, 10, 32, 87, -1


def _packed_cases() -> dict[str, tuple[Batch, int]]:
    found: dict[str, tuple[Batch, int]] = {}
    for name, codec in CODECS.items():

        def of(records: bytes, count: int, codec: int = codec) -> Batch:
            return Batch(packed(records, codec), count, attributes=codec)

        found |= {
            f"{name}, bytes that are none": (Batch(b"not packed at all", 1, attributes=codec), UNPACKABLE),
            f"{name}, cut off": (Batch(packed(records_of(300), codec)[:-9], 300, attributes=codec), UNPACKABLE),
            f"{name}, fewer records than it says": (of(records_of(2), 3), INVALID),
            f"{name}, more records than it says": (of(records_of(4), 3), INVALID),
            f"{name}, bytes behind the records": (of(GOOD + b"\0\0", 3), INVALID),
            f"{name}, records of length 0": (of(b"\0\0\0", 3), INVALID),
            f"{name}, offset deltas 0, 2, 1": (
                of(record_of(body_of(0)) + record_of(body_of(2)) + record_of(body_of(1)), 3),
                UNPACKABLE,
            ),
            f"{name}, more headers than there are": (of(record_of(body_of(header_count=3)), 1), INVALID),
        }
    return found


#: What both kinds refuse, with the error that both answer.
REFUSED: dict[str, tuple[Batch, int]] = {
    "compression type 5": (Batch(b"garbage", attributes=5), UNPACKABLE),
    "compression type 7": (Batch(attributes=7), UNPACKABLE),
    "records of length 0": (Batch(b"\0\0\0", 3), INVALID),
    "a negative length": (Batch(b"\x01"), INVALID),
    "bodies that are none": (Batch(bytes([8, 255, 255, 255, 255])), INVALID),
    "a record longer than the batch": (Batch(record_of(body_of(), longer=5)), INVALID),
    "a record longer than its fields": (Batch(record_of(body_of(), longer=1) + b"\0"), INVALID),
    "a record shorter than its fields": (Batch(record_of(body_of(), longer=-1)), INVALID),
    "fewer records than it says": (Batch(GOOD, 4), INVALID),
    "more records than it says": (Batch(GOOD, 2), INVALID),
    "no records": (Batch(b"", 0, 0), INVALID),
    "a negative number of records": (Batch(b"", -1, 0), INVALID),
    "offsets for more records": (Batch(GOOD, 3, 5), INVALID),
    "a control batch": (Batch(attributes=CONTROL), INVALID),
    "a base offset": (Batch(base_offset=5), INVALID),
    "magic 0": (Batch(magic=0), INVALID),
    "magic 1": (Batch(magic=1), INVALID),
    "magic 3": (Batch(magic=3), CORRUPT),
    "a wrong CRC": (Batch(crc_wrong=True), CORRUPT),
    "two batches": (Batch(after=Batch().encode()), INVALID),
    "zeros behind the batch": (Batch(after=bytes(100)), CORRUPT),
    "a length that is too small": (Batch(GOOD, 3, length_off=-3), CORRUPT),
    "a length that is too large": (Batch(GOOD, 3, length_off=3), INVALID),
    "a negative batch length": (Batch(length_off=-1000), CORRUPT),
    "a producer without a sequence": (Batch(producer=(5, 0, -1)), INVALID),
    "a key beyond its record": (Batch(record_of(b"\0\0\0" + zigzag(50) + b"v" + zigzag(0))), INVALID),
    "a negative number of headers": (Batch(record_of(body_of(header_count=-1))), INVALID),
    "more headers than there are": (Batch(record_of(body_of(header_count=3))), INVALID),
    "fewer headers than there are": (Batch(record_of(body_of(headers=[(b"a", b"b")], header_count=0))), INVALID),
    "2^31-1 headers": (Batch(record_of(body_of(header_count=2**31 - 1))), INVALID),
    "a header's key beyond its record": (Batch(record_of(KEYLESS + zigzag(1) + b"v" + zigzag(1) + b"\x64h")), INVALID),
    "a header without a key": (Batch(record_of(body_of(headers=[(None, b"b")]))), INVALID),
    "a record of the far future": (Batch(record_of(body_of(timestamp=10**12))), TIMESTAMP),
    "a timestamp delta that overflows": (Batch(record_of(body_of(timestamp=2**62))), TIMESTAMP),
    "gzip, a record of the far future": (
        Batch(packed(record_of(body_of(timestamp=10**12)), GZIP), attributes=GZIP),
        TIMESTAMP,
    ),
    "a zlib stream for gzip": (Batch(zlib.compress(GOOD), 3, attributes=GZIP), UNPACKABLE),
    **_packed_cases(),
}

#: What both kinds take, and what both then have as the largest timestamp: so much later than the base timestamp.
TAKEN: dict[str, tuple[Batch, int]] = {
    "three records": (Batch(GOOD, 3), 0),
    **{name: (Batch(packed(GOOD, codec), 3, attributes=codec), 0) for name, codec in CODECS.items()},
    **{
        f"20,000 records, {name}": (Batch(packed(records_of(20_000), codec), 20_000, attributes=codec), 0)
        for name, codec in CODECS.items()
    },
    "two members of gzip": (
        Batch(packed(records_of(2), GZIP) + packed(record_of(body_of(2)), GZIP), 3, attributes=1),
        0,
    ),
    "a largest timestamp before the base": (Batch(newest=-(10**9)), 0),
    "a largest timestamp that no record has": (Batch(newest=10**12), 0),
    "gzip, a largest timestamp that no record has": (Batch(packed(GOOD, GZIP), 3, attributes=GZIP, newest=1000), 0),
    "a base timestamp that no record has": (Batch(record_of(body_of(timestamp=-(10**12))), first=10**12), -(10**12)),
    "a timestamp of -5": (Batch(absolute=(-5, -5)), 4),
    "no timestamp": (Batch(absolute=(-1, -1)), 0),
    "LogAppendTime where the topic has CreateTime": (Batch(attributes=LOG_APPEND_TIME), 0),
    "attributes that mean nothing": (Batch(attributes=0x80), 0),
    "a record's attributes": (Batch(record_of(body_of(attributes=0xFF))), 0),
    "offset deltas 0, 2, 1, not compressed": (
        Batch(record_of(body_of(0)) + record_of(body_of(2)) + record_of(body_of(1)), 3),
        0,
    ),
    "headers": (Batch(record_of(body_of(headers=[(b"a", b"b"), (b"", None)]))), 0),
}

#: What only Apache Kafka takes, with the error that a node answers: librdkafka never gets behind these, but for the
#: last two.
REFUSED_HERE: dict[str, tuple[Batch, int]] = {
    "a key of length -2": (Batch(record_of(b"\0\0\0" + zigzag(-2) + zigzag(1) + b"v" + zigzag(0))), INVALID),
    "a value of length -2": (Batch(record_of(KEYLESS + zigzag(-2) + zigzag(0))), INVALID),
    "a key's length of more bits than an int has": (
        Batch(record_of(b"\0\0\0" + b"\x82\x80\x80\x80\x70" + b"k" + zigzag(1) + b"v" + zigzag(0))),
        INVALID,
    ),
    "gzip, a record longer than the batch": (
        Batch(packed(record_of(body_of(), longer=5), GZIP), attributes=GZIP),
        INVALID,
    ),
    "lz4, bytes behind the frame": (Batch(packed(GOOD, LZ4) + b"garbage", 3, attributes=LZ4), UNPACKABLE),
    "a producer without an epoch": (Batch(producer=(5, -1, 0)), INVALID),
    "a few bytes behind the batch": (Batch(after=b"garbage"), CORRUPT),
}
