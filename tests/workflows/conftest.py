"""Fixtures of the workflows' tests: a server, a name, and the recording of histories.

With REHOME_RECORD=1 in the environment, the histories that tests name are written to tests/golden/histories (see
record.py there); without it they are only replayed against the code of today.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHistory

from tests.support.programs.temporal import own_temporal_server, task_queue, temporal_server
from tests.workflows import replaying
from tests.workflows.move.scene import play
from tests.workflows.replaying import HISTORIES

__all__ = ["HISTORIES", "own_temporal_server", "play", "recorded", "task_queue", "temporal_server"]

Recorder = Callable[..., Awaitable[None]]


def _without_traces(value: Any) -> Any:
    """A history without stack traces, which name files of the machine it was recorded on."""
    if isinstance(value, dict):
        return {key: "" if key == "stackTrace" else _without_traces(each) for key, each in value.items()}
    return [_without_traces(each) for each in value] if isinstance(value, list) else value


@pytest.fixture
def recorded() -> Recorder:
    """`await recorded(name, client, workflow_id, run_id="")`: replay a run's history, and record it if asked to."""

    async def record(name: str, client: Client, workflow_id: str, run_id: str = "") -> None:
        history = await client.get_workflow_handle(workflow_id, run_id=run_id or None).fetch_history()
        end = await replaying.replay(history)
        if os.environ.get("REHOME_RECORD"):
            replaying.keep(name, end, recorded=True)
            content = {"workflow_id": workflow_id, **_without_traces(history.to_json_dict())}
            text = json.dumps(content, separators=(",", ":"), sort_keys=True)
            (HISTORIES / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))

    return record


def read_history(path: Path) -> WorkflowHistory:
    """A recorded history."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    return WorkflowHistory.from_json(content.pop("workflow_id"), content)
