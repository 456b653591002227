"""Requests made from kio's schemas: any values that a schema allows, among them those that servers stumble over."""

from __future__ import annotations

import dataclasses
import gzip
import random
import struct
import typing
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from kio.index import load_request_schema

from storage_node.log.batches.batch import build_batch
from storage_node.wire.codec import _inner

#: "t" and "u" are there to be used; the others are what nobody should use.
NAMES = [
    *("t", "t", "t", "u", "g", "1", "", "retention.ms", "segment.bytes", "consumer"),
    *("../x", "a/b", "..", ".", "\0", "t\0", "/etc/passwd", "t-0", "t-0.move", "__consumer_offsets", "-1"),
    *("ünïcode-☃", "𝕏" * 60, "e\u0301", "\u202egnp", "a" * 249, "a" * 250, "n" * 32_000, "t ", "%s%n{}"),
]
EDGES = [0, 1, -1, 2, -2, 127, -128, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]
WIDTH = {"int8": 8, "int16": 16, "error_code": 16, "int32": 32, "int64": 64}


def bomb(size: int) -> bytes:
    """A batch of one record that is a thousand times as large when it is unpacked."""
    batch = bytearray(build_batch([b"x"]))
    packed = gzip.compress(bytes(size), 9)
    return _resealed(batch[:61] + packed, attributes=1)


def _resealed(batch: bytes | bytearray, attributes: int) -> bytes:
    """A batch whose length, attributes and checksum fit what it holds."""
    import crc32c

    made = bytearray(batch)
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">h", made, 21, attributes)
    struct.pack_into(">I", made, 17, crc32c.crc32c(bytes(made[21:])))
    return bytes(made)


@cache
def records() -> list[bytes]:
    """Batches, good and bad."""
    good = build_batch([b"x" * 50] * 3)
    transactional = _resealed(good, attributes=0x10)
    return [good, good + good, b"", good[:-1], good[:61], good[:30], bomb(20_000_000), transactional, b"\xff" * 100]


def _primitive(kafka_type: str) -> st.SearchStrategy[Any]:
    if kafka_type in WIDTH:
        high = 2 ** (WIDTH[kafka_type] - 1)
        edges = [value for value in EDGES if -high <= value < high]
        return st.one_of(st.sampled_from([0, 1, 2, -1]), st.sampled_from(edges), st.integers(-high, high - 1))
    match kafka_type:
        case "string":
            return st.one_of(st.sampled_from(NAMES), st.text(max_size=12))
        case "bool":
            return st.booleans()
        case "uuid":
            return st.one_of(st.none(), st.just(UUID(int=1)), st.uuids())
        case "bytes":
            return st.binary(max_size=40)
        case "records":
            return st.one_of(st.sampled_from(records()), st.binary(max_size=120))
        case "uint16":
            return st.integers(0, 2**16 - 1)
        case "float64":
            return st.floats(allow_nan=False, allow_infinity=False)
        case "timedelta_i32" | "timedelta_i64":
            # Short: what waits as long as it is told to is not what is looked for.
            return st.sampled_from([timedelta(0), timedelta(milliseconds=1), timedelta(milliseconds=-1)])
    raise AssertionError(f"no values for {kafka_type}")


@cache
def values(schema: type) -> st.SearchStrategy[dict[str, Any]]:
    """Plain values of an entity by kio's names, as `tests.support.wire.encode_request` takes them."""
    found = dataclasses.fields(typing.cast(Any, schema))
    return st.fixed_dictionaries({}, optional={field.name: _values_of(field) for field in found}).map(
        lambda given: {**{f.name: _least(f) for f in found if f.default is dataclasses.MISSING}, **given}
    )


def _values_of(field: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
    inner, is_array = _inner(field.type)
    nullable = type(None) in typing.get_args(field.type)
    one = values(inner) if dataclasses.is_dataclass(inner) else _primitive(field.metadata["kafka_type"])
    made: st.SearchStrategy[Any] = st.lists(one, max_size=4) if is_array else one
    return st.one_of(made, made, st.none()) if nullable else made


def _least(field: dataclasses.Field[Any]) -> Any:
    inner, is_array = _inner(field.type)
    if is_array:
        return []
    if dataclasses.is_dataclass(inner):
        return {f.name: _least(f) for f in dataclasses.fields(inner)}
    kafka_type = field.metadata["kafka_type"]
    if type(None) in typing.get_args(field.type):
        return None
    if kafka_type.startswith("timedelta"):
        return timedelta(0)
    return {"string": "", "bool": False, "uuid": None, "bytes": b"", "records": b"", "float64": 0.0}.get(kafka_type, 0)


def requests(key: int, version: int) -> st.SearchStrategy[dict[str, Any]]:
    """Values of one version of a request."""
    return values(load_request_schema(key, version))


#: Lengths and counts that claim what is not there, in both encodings.
LIES = [
    *(b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\0\x01\0\0", b"\x7f\xff", b"\xff\xff"),
    *(
        b"\xff\xff\xff\xff\x07",
        b"\xff\xff\xff\xff\x0f",
        b"\x80\x80\x80\x80\x80\x01",
        b"\x80\x80\x80\x08",
        b"\0",
        b"\x80",
    ),
]


def damaged(rng: random.Random, body: bytes, times: int) -> bytes:
    """A body with a few bytes changed, lied about, cut out, doubled, put in or appended."""
    made = bytearray(body)
    for _ in range(times):
        at = rng.randrange(len(made) + 1)
        end = min(len(made), at + rng.choice([1, 2, 4, 8, 30]))
        match rng.randrange(7):
            case 0 if at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            case 1 | 2:
                lie = rng.choice(LIES)
                made[at : at + len(lie)] = lie
            case 3:
                del made[at:end]
            case 4:
                made[at:at] = made[at:end] * rng.choice([1, 2, 200])
            case 5:
                made[at:at] = rng.randbytes(rng.randrange(1, 30))
            case _:
                made += rng.choice(LIES) * rng.choice([1, 50])
    return bytes(made)
