"""A client of the private API for processes on the node's machine: blocking, one connection per call."""

from __future__ import annotations

import json
from typing import Any, cast

from storage_node.wire.client.exchange import exchange
from storage_node.wire.table import PRIVATE


class PrivateCallFailed(Exception):
    """The node responded with an error; `code` is Kafka's error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def call(host: str, port: int, op: str, timeout: float = 5.0, **fields: Any) -> dict[str, Any]:
    """Call an operation of a node's private API.

    Raises OSError (also TimeoutError) if the node is unavailable, PrivateCallFailed if it responds with an error.
    """
    body = json.dumps({"op": op, **fields}, separators=(",", ":")).encode()
    data = exchange(host, port, PRIVATE, PRIVATE.max_version, body, timeout=timeout, client="rehome")
    response = cast(dict[str, Any], json.loads(data))
    if "error" in response:
        raise PrivateCallFailed(int(response["error"]), str(response.get("message", "")))
    return response
