"""The other side of Kafka's own APIs, for whoever asks one node one thing: blocking, one connection per call."""

from __future__ import annotations

from typing import Any

from storage_node.protocol.codec import MalformedRequest, read_response, write_request
from storage_node.protocol.exchange import exchange
from storage_node.protocol.table import Api


def ask(host: str, port: int, api: Api, version: int, *, timeout: float, client: str, **values: Any) -> Any:
    """The answer as a kio entity; `values` go by kio's field names, what is missing is the default.

    Raises OSError (also TimeoutError) where the node does not answer, or not as Kafka does.
    """
    body = write_request(api.key, version, values)
    answer = exchange(host, port, api, version, body, timeout=timeout, client=client)
    try:
        return read_response(api.key, version, answer)
    except MalformedRequest as error:
        raise ConnectionError(f"{host}:{port} answered what cannot be read: {error}") from error
