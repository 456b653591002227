"""Decode and encode requests and responses with kio's schemas, after a check of all bounds.

kio's native reader allocates memory by the array lengths in the request, so that a peer could end the process with a
false length. `_walk` therefore checks a request against its schema first: every length must lie within the frame, and
the number of elements within a limit.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import struct
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from storage_node.wire.primitives import short_message
from storage_node.wire.table import API_VERSIONS

#: The node rejects a request with more array elements and tagged fields than this: a cluster has at most 20,000
#: replicas, and decoding a million elements would delay all other connections on the loop.
MAX_ELEMENTS = 100_000
#: The same limit for produce and fetch requests, which are decoded on the loop: all partitions that a cluster may
#: have, each with its tagged fields.
MAX_PARTITIONS = 60_000
#: Bytes of a string. A compact string could be as long as its frame; Apache Kafka's parser rejects a longer one than
#: the older encoding can hold (Short.MAX_VALUE), and the broker closes the connection.
LONGEST_STRING = 32_767

Walk = Callable[["Cursor"], None]


class MalformedRequest(ValueError):
    """The bytes are not a valid request, or response, of their API and version; the node closes the connection."""


class TooManyElements(MalformedRequest):
    """The request has more array elements and tagged fields than its reader accepts."""


class Cursor:
    """A position in a frame; every step is checked against the frame's end."""

    __slots__ = ("buffer", "elements", "end", "most", "position")

    def __init__(self, buffer: bytes | memoryview, position: int = 0, most: int = MAX_ELEMENTS) -> None:
        self.buffer = buffer
        self.position = position
        self.end = len(buffer)
        self.elements = 0
        self.most = most

    def skip(self, size: int) -> None:
        position = self.position + size
        if size < 0 or position > self.end:
            raise MalformedRequest(f"a field of {size} bytes at byte {self.position} of {self.end}")
        self.position = position

    def int16(self) -> int:
        self.skip(2)
        return int(struct.unpack_from(">h", self.buffer, self.position - 2)[0])

    def int32(self) -> int:
        self.skip(4)
        return int(struct.unpack_from(">i", self.buffer, self.position - 4)[0])

    def raw(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        self.skip(size)
        return bytes(self.buffer[self.position - size : self.position])

    def int64(self) -> int:
        self.skip(8)
        return int(struct.unpack_from(">q", self.buffer, self.position - 8)[0])

    def varint(self) -> int:
        """Return an unsigned varint of at most five bytes."""
        value = shift = 0
        while shift < 35:
            self.skip(1)
            byte = self.buffer[self.position - 1]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 1 << 31:
                    break
                return value
            shift += 7
        raise MalformedRequest(f"a varint beyond 31 bits at byte {self.position}")

    def count(self, flexible: bool) -> int:
        """Return the length of an array, -1 for null; each element needs at least one byte."""
        count = self.varint() - 1 if flexible else self.int32()
        if count < -1 or count > self.end - self.position:
            raise MalformedRequest(f"{count} elements in the {self.end - self.position} bytes that are left")
        self._add(max(count, 0))
        return count

    def _add(self, count: int) -> None:
        self.elements += count
        if self.elements > self.most:
            raise TooManyElements(f"more than {self.most} elements in one request")

    def string(self, flexible: bool) -> str | None:
        """Return a nullable string."""
        size = self.varint() - 1 if flexible else self.int16()
        if size < 0:
            return None
        start = self.position
        if size > LONGEST_STRING:
            raise MalformedRequest(f"a string of {size} bytes at byte {start}; at most {LONGEST_STRING} are valid")
        self.skip(size)
        try:
            return str(self.buffer[start : start + size], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedRequest(f"a string at byte {start} is not UTF-8") from error

    def topic(self, flexible: bool, by_id: bool) -> tuple[str, bytes]:
        """Return a topic's name and id; the one that the request does not have is empty."""
        if by_id:
            return "", self.raw(16)
        name = self.string(flexible)
        if name is None:
            raise MalformedRequest("a topic without a name")
        return name, b""

    def tagged(self) -> None:
        """Skip a section of tagged fields."""
        count = self.varint()
        self._add(count)
        for _ in range(count):
            self.varint()
            self.skip(self.varint())


_FIXED = {
    "int8": 1,
    "bool": 1,
    "int16": 2,
    "error_code": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}


@cache
def _walk(schema: type) -> Walk:
    """Return the function that checks the bounds of one kio entity."""
    flexible = bool(schema.__flexible__)  # type: ignore[attr-defined]
    steps = [_field(field, flexible) for field in _fields(schema) if "tag" not in field.metadata]

    def walk(cursor: Cursor) -> None:
        for step in steps:
            step(cursor)
        if flexible:
            cursor.tagged()

    return walk


def _field(field: dataclasses.Field[Any], flexible: bool) -> Walk:
    inner, is_array = _inner(field.type)
    one = (
        _walk(typing.cast(type, inner))
        if dataclasses.is_dataclass(inner)
        else _primitive(field.metadata["kafka_type"], flexible)
    )
    nullable = type(None) in typing.get_args(field.type)
    if not is_array:
        if not nullable or not dataclasses.is_dataclass(inner):
            return one

        def maybe(cursor: Cursor) -> None:
            cursor.skip(1)
            if cursor.buffer[cursor.position - 1] < 0x80:
                one(cursor)

        return maybe

    def array(cursor: Cursor) -> None:
        count = cursor.count(flexible)
        if count < 0 and not nullable:
            raise MalformedRequest(f"non-nullable field {field.name} was null, at byte {cursor.position}")
        for _ in range(count):
            one(cursor)

    return array


def _primitive(kafka_type: str, flexible: bool) -> Walk:
    if kafka_type == "string":

        def text(cursor: Cursor) -> None:
            cursor.string(flexible)

        return text
    if kafka_type in ("bytes", "records"):

        def blob(cursor: Cursor) -> None:
            size = cursor.varint() - 1 if flexible else cursor.int32()
            cursor.skip(max(size, 0))

        return blob
    size = _FIXED[kafka_type]
    return lambda cursor: cursor.skip(size)


def _fields(schema: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(schema)


def _inner(annotation: Any) -> tuple[Any, bool]:
    """Return the element type of a field's annotation, and whether the field is an array."""
    candidates = (annotation, *typing.get_args(annotation))
    for candidate in candidates:
        if typing.get_origin(candidate) is tuple:
            return typing.get_args(candidate)[0], True
    for candidate in candidates:
        if dataclasses.is_dataclass(candidate):
            return candidate, False
    return annotation, False


_prepared: set[tuple[int, int]] = set()


def prepared(key: int, version: int) -> bool:
    """Return whether the schemas of a version of an API are loaded."""
    return (key, version) in _prepared


def prepare(key: int, version: int) -> None:
    """Load the schemas of a version of an API, which takes up to 20 ms."""
    request, response = load_request_schema(key, version), load_response_schema(key, version)
    _walk(request)
    entity_reader(request)
    _build(response)
    entity_writer(response)
    _prepared.add((key, version))


def holds_more(key: int, version: int, body: bytes | memoryview, position: int, elements: int) -> bool:
    """Return whether a request has more array elements and tagged fields than `elements`; False if it is malformed."""
    try:
        _walk(load_request_schema(key, version))(Cursor(body, position, elements))
    except TooManyElements:
        return True
    except MalformedRequest:
        return False
    return False


def read_request(key: int, version: int, body: bytes | memoryview, position: int) -> Any:
    """Decode the request body at `position` as a kio entity; raises MalformedRequest."""
    return _read(load_request_schema(key, version), Cursor(body, position))


def read_response(key: int, version: int, body: bytes) -> Any:
    """Decode a response, which begins after its correlation id, as a kio entity; raises MalformedRequest."""
    schema = load_response_schema(key, version)
    cursor = Cursor(body, most=len(body))
    if schema.__flexible__ and key != API_VERSIONS.key:
        cursor.tagged()
    return _read(schema, cursor)


def _read(schema: Any, cursor: Cursor) -> Any:
    body, position = cursor.buffer, cursor.position
    _walk(schema)(cursor)
    view = body if isinstance(body, bytes) else body.toreadonly()
    try:
        entity, _ = entity_reader(schema)(view, position)
    except Exception as error:
        raise MalformedRequest(f"{schema.__name__} version {schema.__version__}: {error}") from error
    return entity


def write_request(key: int, version: int, values: Mapping[str, Any]) -> bytes:
    """Encode a request body from plain values, as `write_response` does."""
    return _write(load_request_schema(key, version), values)


def write_response(key: int, version: int, values: Mapping[str, Any]) -> bytes:
    """Encode a response body from plain values: nested mappings by kio's field names.

    Fields that the version does not have are ignored. A missing field has the schema's default, else zero, empty or
    null.
    """
    return _write(load_response_schema(key, version), values)


def _write(schema: Any, values: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, _build(schema)(values))
    return buffer.getvalue()


@cache
def _build(schema: type) -> Callable[[Mapping[str, Any]], Any]:
    makers = [(field.name, _maker(field), _default(field)) for field in _fields(schema)]

    def build(values: Mapping[str, Any]) -> Any:
        return schema(**{name: make(values[name]) if name in values else default for name, make, default in makers})

    return build


def _maker(field: dataclasses.Field[Any]) -> Callable[[Any], Any]:
    inner, is_array = _inner(field.type)
    if dataclasses.is_dataclass(inner):
        one = _build(typing.cast(type, inner))
        if is_array:
            return lambda items: None if items is None else tuple(one(item) for item in items)
        return lambda item: None if item is None else one(item)
    if is_array:
        return lambda items: None if items is None else tuple(items)
    if field.metadata.get("kafka_type") == "error_code":
        return lambda code: KioErrorCode(int(code))
    if field.name.endswith("error_message"):
        return lambda text: text and short_message(text)
    return lambda value: value


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    _, is_array = _inner(field.type)
    if is_array:
        return ()
    kafka_type = field.metadata.get("kafka_type", "")
    if type(None) in typing.get_args(field.type):
        return None
    if kafka_type == "error_code":
        return KioErrorCode.none
    if kafka_type.startswith("timedelta"):
        return timedelta(0)
    return {"string": "", "bytes": b"", "bool": False, "uuid": None, "datetime_i64": None}.get(kafka_type, 0)


def uuid_of(text: str) -> UUID | None:
    """Return a 22-character id as a UUID; None for the zero id, "" and an invalid one."""
    if not text:
        return None
    try:
        value = UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except ValueError:
        return None
    return value if value.int else None


def id_of(uuid: UUID | None) -> str:
    """Return the 22 characters of an id, "" for None and the zero id."""
    return base64.urlsafe_b64encode(uuid.bytes).decode("ascii").rstrip("=") if uuid is not None and uuid.int else ""


def milliseconds(value: Any) -> int:
    """Return kio's timedelta in milliseconds."""
    return int(value / timedelta(milliseconds=1))


def group(rows: Sequence[tuple[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Group (topic, row) pairs by topic, in order of appearance."""
    topics: dict[str, list[Any]] = {}
    for topic, row in rows:
        topics.setdefault(topic, []).append(row)
    return list(topics.items())
