"""What the engine itself says was done to the containers of a run: counted from its events, not from our intentions."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ops.torture.box import LABEL

#: Events of containers that are trouble or its end; health checks, attachments and the like are not counted.
TOLD = {"kill": "killed", "oom": "out of memory", "pause": "paused", "unpause": "unpaused", "start": "started"}
CUT = "network cut and given back"
READY_SECONDS = 10.0


class Witness:
    """Listens from `start` to `stop`; `counts` may be read at any time."""

    def __init__(self, client: Any, run: str, network: str) -> None:
        """`client` is a docker-py client of its own: it is closed at the end."""
        self._client, self._run, self._network = client, run, network
        self._stream: Any = None
        self._guard = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._running: set[Any] = set()
        self._cut: set[Any] = set()
        self._thread = threading.Thread(target=self._listen, name="engine's events", daemon=True)

    def start(self) -> None:
        # Answers once the engine has taken the subscription: nothing is missed from here on.
        self._stream = self._client.events(decode=True)
        self._thread.start()

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._thread.join(READY_SECONDS)
        self._client.close()

    @property
    def counts(self) -> dict[str, int]:
        """What was done to how many containers."""
        with self._guard:
            return dict(self._counts)

    def _listen(self) -> None:
        # The stream ends with whatever its connection ends with when it is closed.
        with contextlib.suppress(Exception):
            for event in self._stream:
                self.note(event)

    def note(self, event: Mapping[str, Any]) -> None:
        """Count one event as the engine's API tells it."""
        action, actor = str(event.get("Action", "")), event.get("Actor", {})
        about = actor.get("Attributes", {})
        with self._guard:
            if event.get("Type") == "network" and about.get("name") == self._network:
                # A start connects and an end disconnects as well, the latter before or after the container is told
                # dead: a cut is a disconnect and a connect of one that ran on.
                container = about.get("container")
                if action == "disconnect" and container in self._running:
                    self._cut.add(container)
                elif action == "connect" and container in self._cut:
                    self._cut.discard(container)
                    self._counts[CUT] += 1
            elif event.get("Type") == "container" and about.get(LABEL) == self._run:
                if action == "die":
                    self._running.discard(actor.get("ID"))
                    self._cut.discard(actor.get("ID"))
                elif action == "start":
                    self._running.add(actor.get("ID"))
                if action in TOLD:
                    self._counts[TOLD[action]] += 1
