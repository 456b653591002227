"""The faults of a run's containers by the Docker engine's events, independent of the nemesis' own log."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ops.torture.box import LABEL

#: The container events that begin or end a fault; health checks, attachments and the like are not counted.
COUNTED = {"kill": "killed", "oom": "out of memory", "pause": "paused", "unpause": "unpaused", "start": "started"}
CUT = "network disconnected and reconnected"
READY_SECONDS = 10.0


class Witness:
    """Count the engine's events from `start` to `stop`; `counts` may be read at any time."""

    def __init__(self, client: Any, run: str, network: str) -> None:
        """`client` is a docker-py client of its own, which `stop` closes."""
        self._client, self._run, self._network = client, run, network
        self._stream: Any = None
        self._guard = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._running: set[Any] = set()
        self._cut: set[Any] = set()
        self._thread = threading.Thread(target=self._listen, name="engine's events", daemon=True)

    def start(self) -> None:
        # Returns once the engine has the subscription: no later event is missed.
        self._stream = self._client.events(decode=True)
        self._thread.start()

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._thread.join(READY_SECONDS)
        self._client.close()

    @property
    def counts(self) -> dict[str, int]:
        """The number of events by name."""
        with self._guard:
            return dict(self._counts)

    def _listen(self) -> None:
        # `stop` closes the connection, which raises one of several errors here.
        with contextlib.suppress(Exception):
            for event in self._stream:
                self.note(event)

    def note(self, event: Mapping[str, Any]) -> None:
        """Count one event of the engine's API."""
        action, actor = str(event.get("Action", "")), event.get("Actor", {})
        about = actor.get("Attributes", {})
        with self._guard:
            if event.get("Type") == "network" and about.get("name") == self._network:
                # A container also connects at its start and disconnects at its end, before or after its "die" event:
                # only a disconnect and a connect of a running container are a fault.
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
                if action in COUNTED:
                    self._counts[COUNTED[action]] += 1
