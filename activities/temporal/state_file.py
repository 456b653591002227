"""A file with the state of a process that has no listener, for operators; rewritten every few seconds.

One JSON object: `pid`, `role`, `written` (UTC) and `temporal_client` (`ClientState.as_dict`). An old file means that
the process is stuck, or has ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from activities.temporal.client_state import ClientState, instant

EVERY = 5.0  # seconds between two writes of the same state
LOOK = 0.5  # seconds between two checks whether it changed


async def keep(path: Path, role: str, state: Callable[[], ClientState]) -> None:
    """Keep the file up to date until cancelled. Raises OSError; run it again then."""
    shown: ClientState | None = None
    due = 0.0
    while True:
        now, current = time.monotonic(), state()
        if now >= due or current != shown:
            await asyncio.to_thread(write, path, role, current)
            shown, due = current, now + EVERY
        await asyncio.sleep(LOOK)


def write(path: Path, role: str, state: ClientState) -> None:
    """Replace the file. Raises OSError."""
    value = {"pid": os.getpid(), "role": role, "written": instant(time.time()), "temporal_client": state.as_dict()}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    temporary.replace(path)


def read(path: Path) -> dict[str, Any] | None:
    """Return the last written value; None for a missing or unreadable file."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
