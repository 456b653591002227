"""A request on its way through the handlers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from storage_node.protocol.codec import Cursor, MalformedRequest, holds_more, read_request, write_response
from storage_node.protocol.off_loop import ELEMENTS
from storage_node.protocol.receiving import Frame
from storage_node.protocol.table import Api

_HEAD = struct.Struct(">hhi")
#: Bytes of a request from which on it is large.
LARGE = 64 * 1024
#: Elements above which an answer is made by a thread: the loop has other connections to serve meanwhile.
MANY = 50


class Deferred(list[bytes]):
    """An answer that is still to be written, by `make`, which any thread may call."""

    def __init__(self, make: Callable[[], list[bytes]]) -> None:
        super().__init__()
        self.make = make


@dataclass(frozen=True, slots=True)
class Header:
    """The first fields of every request; `position` is where the rest of the frame begins."""

    key: int
    version: int
    correlation: int
    position: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a known API and version."""

    api: Api
    version: int
    correlation: int
    client_id: str
    frame: Frame
    position: int
    peer: str
    decoded: Any = None
    """The body, where it was read ahead."""
    connection: int = 0
    """The number of its connection, by which requests of one connection know each other."""
    many: bool = False
    """Whether it has more elements than the listener's loop goes through at once, however few its bytes."""

    @property
    def large(self) -> bool:
        """Whether reading it, and writing what is answered to it, takes so long that the listener's loop does not."""
        return self.many or len(self.frame) > LARGE

    def holds_many(self) -> bool:
        """Look whether it has many elements; few bytes cannot hold them."""
        size = len(self.frame) - self.position
        return size > ELEMENTS and holds_more(self.api.key, self.version, self.frame, self.position, ELEMENTS)

    def decode(self) -> Any:
        """The body as a kio entity; raises MalformedRequest."""
        if self.decoded is not None:
            return self.decoded
        return read_request(self.api.key, self.version, self.frame, self.position)

    def encode(self, **values: Any) -> list[bytes]:
        """The answer's buffers from plain values by kio's field names."""
        if self.large:
            return Deferred(lambda: self._make(values))
        return [self.head(), write_response(self.api.key, self.version, values)]

    def encode_many(self, elements: int, make: Callable[[], Mapping[str, Any]]) -> list[bytes]:
        """The answer from the values that `make` returns, which has about so many elements.

        With many of them a thread calls `make` and encodes: it must only read what threads may read.
        """

        def encode() -> list[bytes]:
            return [self.head(), write_response(self.api.key, self.version, make())]

        return Deferred(encode) if self.large or elements > MANY else encode()

    def _make(self, values: dict[str, Any]) -> list[bytes]:
        made = [self.head(), write_response(self.api.key, self.version, values)]
        # By this thread: giving back the memory of very many rows takes the loop tens of milliseconds.
        values.clear()
        return made

    def head(self) -> bytes:
        """The response header: ApiVersions keeps version 0 for ever, so that any client can read it."""
        head = self.correlation.to_bytes(4, "big", signed=True)
        if self.version >= self.api.flexible and self.api.name != "api_versions":
            return head + b"\0"
        return head


def read_header(frame: Frame) -> Header:
    """Key, version and correlation id; raises MalformedRequest."""
    if len(frame) < _HEAD.size:
        raise MalformedRequest("a frame without a request header")
    key, version, correlation = _HEAD.unpack_from(frame, 0)
    return Header(key, version, correlation, _HEAD.size)


def read_client_id(frame: Frame, position: int, flexible: bool) -> tuple[str, int]:
    """The client id and where the body begins; raises MalformedRequest."""
    cursor = Cursor(frame, position)
    client_id = cursor.string(flexible=False) or ""
    if flexible:
        cursor.tagged()
    return client_id, cursor.position
