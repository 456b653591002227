"""The other side of the private API, for whoever runs on the node's machine: blocking, one connection per call."""

from __future__ import annotations

import json
from typing import Any, cast

from storage_node.protocol.exchange import exchange
from storage_node.protocol.table import PRIVATE


class PrivateCallFailed(Exception):
    """The node answered with an error; `code` is Kafka's error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def call(host: str, port: int, op: str, timeout: float = 5.0, **fields: Any) -> dict[str, Any]:
    """Ask a node; raises OSError (also TimeoutError) when it cannot be reached, PrivateCallFailed when it refuses."""
    body = json.dumps({"op": op, **fields}, separators=(",", ":")).encode()
    data = exchange(host, port, PRIVATE, PRIVATE.max_version, body, timeout=timeout, client="rehome")
    answer = cast(dict[str, Any], json.loads(data))
    if "error" in answer:
        raise PrivateCallFailed(int(answer["error"]), str(answer.get("message", "")))
    return answer
