"""Clients in processes of their own that write down all they send and read, and the checks of the torture over it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from ops.torture.checks.facts import Evidence, TopicFact
from ops.torture.checks.index import Index
from ops.torture.checks.table import CHECKS
from ops.torture.history import read
from ops.torture.workload import read_all
from tests.support.report.tables import ROOT

#: What is found in what clients were told and in the final read.
ABOUT_RECORDS = ("C1", "C2", "C3", "C4", "C5", "C7", "C13")
END_SECONDS = 60.0


class Watched:
    """Producers and a consumer of topics (name -> partitions) while the block runs; `load`: records before they start.

    What is sent by others counts as damage. `primed`: the producers have a record acknowledged by each partition before
    the block begins.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        topics: dict[str, int],
        *,
        producers: int = 1,
        per_second: float = 100.0,
        load: int = 0,
        primed: bool = False,
    ) -> None:
        self._folder, self._bootstrap = folder, bootstrap
        self._topics = {name: TopicFact(name, name, count) for name, count in topics.items()}
        self._producers, self._per_second, self._load, self._primed = producers, per_second, load, primed
        self._running: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Watched:
        if self._load:
            self._start("loader", "once", 0)
            self._end("loader", "")
        for number in range(self._producers):
            self._start(f"producer-{number}", "producer", number)
        for number in range(self._producers if self._primed else 0):
            pipe = self._running[f"producer-{number}"].stdout
            assert pipe is not None and pipe.readline() == "primed\n"
        self._start("tail", "tail", 9)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _start(self, name: str, role: str, seed: int) -> None:
        orders = {
            "role": role,
            "process": name,
            "bootstrap": self._bootstrap,
            "history": str(self._folder / f"{name}.jsonl"),
            "topics": {topic.label: [topic.name, topic.partitions] for topic in self._topics.values()},
            "per_second": self._per_second,
            "seed": seed,
            "count": self._load,
            "scale": 2,
            "primed": self._primed,
        }
        self._running[name] = subprocess.Popen(
            [sys.executable, "-m", "ops.torture.clients", json.dumps(orders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
            start_new_session=True,
        )

    def _end(self, name: str, line: str) -> None:
        with contextlib.suppress(OSError):
            self._running[name].communicate(f"{line}\n", timeout=END_SECONDS)
        assert self._running.pop(name).returncode == 0, f"{name} ended badly"

    def end(self) -> tuple[int, int, list[str]]:
        """Stop the producers, let the consumer read to the end: records acknowledged, records read, what was found."""
        for name in [each for each in self._running if each != "tail"]:
            self._end(name, "stop")
        final, problems = read_all(self._bootstrap, self._topics.values())
        ends = {
            name: [final[name, number].high for number in range(topic.partitions)]
            for name, topic in self._topics.items()
        }
        self._end("tail", f"stop {json.dumps(ends)}")
        events = list(read(sorted(self._folder.glob("*.jsonl"))))
        index = Index(Evidence(events, self._topics, final))
        found = [f"{each.id}: {line}" for each in CHECKS if each.id in ABOUT_RECORDS for line in each.find(index)]
        read_by_tail = sum(1 for event, _, _ in index.polled() if event.process == "tail")
        return len(index.acks), read_by_tail, problems + found
