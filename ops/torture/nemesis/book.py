"""The nemesis' log: each action with its time and outcome, so that a finding can be traced, and counts of them."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ops.torture.checks.facts import FaultFact, LimitFact, ReassignFact, TroubleFact
from ops.torture.history import Event, Recorder, now

NEMESIS_LOG = "nemesis.jsonl"


class Book:
    """Record the run's actions and facts. Thread-safe. `tell` prints each line for the operator."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / NEMESIS_LOG).open("a", encoding="utf-8", buffering=1)
        self._recorder = Recorder(folder / "histories" / "nemesis.jsonl")
        self._tell = tell
        self._guard = threading.Lock()
        self._began = time.monotonic()
        self.kills: Counter[str] = Counter()
        self.actions: Counter[str] = Counter()
        self.problems: list[str] = []
        """Errors of the torture itself, as sentences."""
        self.limits: list[LimitFact] = []
        self.asked: list[ReassignFact] = []
        self.faults: list[FaultFact] = []
        self.troubles: list[TroubleFact] = []

    def note(self, action: str, what: str, outcome: str = "", number: int = 0, **more: Any) -> None:
        """Append one line to the log; `number` is the decision's number."""
        row = {
            "at": now(),
            "wall": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "decision": number,
            "action": action,
            "what": what,
            "outcome": outcome,
            **more,
        }
        with self._guard:
            if self._file.closed:
                return
            self._file.write(json.dumps(row) + "\n")
        stamp = time.monotonic() - self._began
        self._tell(f"{stamp:7.1f} s  {action} {what}{': ' + outcome if outcome else ''}")

    def record(self, event: Event) -> None:
        """Append an operation of the nemesis to the history that the checks read."""
        with self._guard:
            self._recorder.note(event)
            self._recorder.flush()

    def limit(self, fact: LimitFact) -> None:
        with self._guard:
            self.limits.append(fact)

    def reassigned(self, facts: Iterable[ReassignFact]) -> None:
        with self._guard:
            self.asked += facts

    def failed(self, fact: FaultFact) -> None:
        with self._guard:
            self.faults.append(fact)

    def troubled(self, fact: TroubleFact) -> None:
        with self._guard:
            self.troubles.append(fact)

    def counted(self, action: str) -> None:
        with self._guard:
            self.actions[action] += 1

    def done(self) -> tuple[int, int]:
        """Return the number of actions begun and of faults injected."""
        with self._guard:
            return self.actions.total(), self.kills.total() + len(self.faults)

    def killed(self, what: str, times: int = 1) -> None:
        with self._guard:
            self.kills[what] += times

    def close(self) -> None:
        with self._guard:
            self._file.close()
            self._recorder.close()
