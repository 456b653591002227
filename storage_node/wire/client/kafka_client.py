"""A client of Kafka's APIs for single requests to one node: blocking, one connection per call."""

from __future__ import annotations

from typing import Any

from storage_node.wire.client.exchange import exchange
from storage_node.wire.codec import MalformedRequest, read_response, write_request
from storage_node.wire.table import Api


def ask(host: str, port: int, api: Api, version: int, *, timeout: float, client: str, **values: Any) -> Any:
    """Send a request and return the response as a kio entity.

    `values`: the request's fields by kio's names; a missing field has its default. Raises OSError (also TimeoutError)
    if the node does not respond, or with a malformed response.
    """
    body = write_request(api.key, version, values)
    response = exchange(host, port, api, version, body, timeout=timeout, client=client)
    try:
        return read_response(api.key, version, response)
    except MalformedRequest as error:
        raise ConnectionError(f"{host}:{port} sent a malformed response: {error}") from error
