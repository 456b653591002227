"""Temporal's program for tests: had as `make setup` has it, so that a test never runs without it silently."""

from __future__ import annotations

from ops.stack import temporal_server


def ensure_temporal() -> str:
    """The path of the `temporal` program; it is fetched or built the first time."""
    return str(temporal_server.ensure(lambda _line: None))
