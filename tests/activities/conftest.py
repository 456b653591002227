"""The fixtures of a real Temporal server."""

from __future__ import annotations

from tests.support.temporal import own_temporal_server, task_queue, temporal_server

__all__ = ["own_temporal_server", "task_queue", "temporal_server"]
