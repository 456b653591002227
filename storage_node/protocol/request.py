"""The request that the listener passes to the handlers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from storage_node.protocol.network.off_loop import ELEMENTS
from storage_node.protocol.network.receiving import Frame
from storage_node.wire.codec import Cursor, MalformedRequest, holds_more, read_request, write_response
from storage_node.wire.table import Api

_HEAD = struct.Struct(">hhi")
#: A request with more bytes than this is large.
LARGE = 64 * 1024
#: Elements above which a thread builds the response, so that the loop can serve other connections meanwhile.
MANY = 50


class Deferred(list[bytes]):
    """A response that is not encoded yet; any thread may call `make`, which encodes it."""

    def __init__(self, make: Callable[[], list[bytes]]) -> None:
        super().__init__()
        self.make = make


class Header(NamedTuple):
    """The first fields of every request; `position`: where the rest of the frame begins."""

    key: int
    version: int
    correlation: int
    position: int


class Request(NamedTuple):
    """One request of a known API and version. A tuple: to make a frozen dataclass for each request costs five times."""

    api: Api
    version: int
    correlation: int
    client_id: str
    frame: Frame
    position: int
    peer: str
    decoded: Any = None
    """The body, if it was decoded in advance."""
    connection: int = 0
    """The number of its connection."""
    many: bool = False
    """Whether it has more elements than one callback of the listener's loop handles."""

    @property
    def large(self) -> bool:
        """Whether the listener's loop must not decode it nor encode its response, since that takes too long."""
        return self.many or len(self.frame) > LARGE

    def holds_many(self) -> bool:
        """Return whether it has more than ELEMENTS elements; checks the body only if it has that many bytes."""
        size = len(self.frame) - self.position
        return size > ELEMENTS and holds_more(self.api.key, self.version, self.frame, self.position, ELEMENTS)

    def decode(self) -> Any:
        """Return the body as a kio entity; raises MalformedRequest."""
        if self.decoded is not None:
            return self.decoded
        return read_request(self.api.key, self.version, self.frame, self.position)

    def encode(self, **values: Any) -> list[bytes]:
        """Encode the response from plain values by kio's field names."""
        if self.large:
            return Deferred(lambda: self._encode_and_free(values))
        return [self.head(), write_response(self.api.key, self.version, values)]

    def encode_many(self, elements: int, make: Callable[[], Mapping[str, Any]]) -> list[bytes]:
        """Encode the response from the values that `make` returns; `elements`: about how many it has.

        With many elements, a thread calls `make`, which must only read thread-safe state, and encodes the values.
        """

        def encode() -> list[bytes]:
            return [self.head(), write_response(self.api.key, self.version, make())]

        return Deferred(encode) if self.large or elements > MANY else encode()

    def _encode_and_free(self, values: dict[str, Any]) -> list[bytes]:
        made = [self.head(), write_response(self.api.key, self.version, values)]
        # Freed by this thread: freeing very many rows would block the loop for tens of milliseconds.
        values.clear()
        return made

    def head(self) -> bytes:
        """Return the response header; that of ApiVersions is always version 0, which any client can read (KIP-511)."""
        head = self.correlation.to_bytes(4, "big", signed=True)
        if self.version >= self.api.flexible and self.api.name != "api_versions":
            return head + b"\0"
        return head


def read_header(frame: Frame) -> Header:
    """Decode key, version and correlation id; raises MalformedRequest."""
    if len(frame) < _HEAD.size:
        raise MalformedRequest("a frame without a request header")
    key, version, correlation = _HEAD.unpack_from(frame, 0)
    return Header(key, version, correlation, _HEAD.size)


def read_client_id(frame: Frame, position: int, flexible: bool) -> tuple[str, int]:
    """Return the client id and the position of the body; raises MalformedRequest."""
    cursor = Cursor(frame, position)
    client_id = cursor.string(flexible=False) or ""
    if flexible:
        cursor.tagged()
    return client_id, cursor.position
