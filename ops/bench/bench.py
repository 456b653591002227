"""What every benchmark is given: a folder, sizes, and the servers, each started when the first one asks for it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from ops.kafka.broker import KafkaBroker
from ops.stack import ports


def rehome(folder: Path, verb: str, *options: str, environment: Mapping[str, str] | None = None) -> str:
    """`rehome stack VERB` of the stack in a folder; its output. Raises RuntimeError when it fails."""
    command = [sys.executable, "-m", "ops.cli.main", "stack", verb, "--data", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    if done.returncode:
        raise RuntimeError(f"rehome stack {verb} failed: {done.stderr.strip()}")
    return done.stdout


class Stack:
    """A stack of one node with two disks, or of several nodes, in a folder of its own, by the commands of people."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str] | None = None, *, nodes: int = 1, dirs: int = 2
    ) -> None:
        self.folder = folder
        self._environment = {**os.environ, **(environment or {})}
        block = ports.free_block(nodes + 2, start=random.randrange(24000, 28000))
        port, temporal = block, block + nodes
        shape = ["--nodes", str(nodes), "--dirs", str(dirs)]
        self._up([*shape, "--port", str(port), "--temporal-port", str(temporal), "--detach"])
        self.bootstrap = ",".join(f"127.0.0.1:{port + number}" for number in range(nodes))
        self.temporal = f"127.0.0.1:{temporal}"
        status: list[dict[str, Any]] = json.loads(self._rehome("status", "--json"))
        found = {each["name"]: each for each in status}
        self.log_dirs = {
            number: [Path(d) for d in found[f"node-{number}"]["directories"]] for number in range(1, nodes + 1)
        }
        self.disks = self.log_dirs[1]
        self.pids = {name: int(each["pid"]) for name, each in found.items()}
        self.node_pid = self.pids["node-1"]

    def _up(self, options: list[str]) -> None:
        self._rehome("up", *options)

    def pid(self, name: str) -> int:
        """The process that has this name now."""
        status: list[dict[str, Any]] = json.loads(self._rehome("status", "--json"))
        return next(int(each["pid"]) for each in status if each["name"] == name)

    def kill(self, name: str) -> None:
        """Kill one process with SIGKILL."""
        self._rehome("kill", name)

    def configure(self, properties: Mapping[str, str]) -> None:
        """Stop the nodes, one after the other, add to their server.properties, and start them again."""
        for name in (f"node-{number}" for number in self.log_dirs):
            self._rehome("kill", name)
            with (self.folder / name / "server.properties").open("a", encoding="utf-8") as file:
                file.writelines(f"{key}={value}\n" for key, value in properties.items())
            self.start(name)

    def start(self, name: str) -> None:
        """Start one process and wait until it works."""
        self._rehome("start", name)

    def _rehome(self, verb: str, *options: str) -> str:
        return rehome(self.folder, verb, *options, environment=self._environment)

    def down(self) -> None:
        """Stop every process of the stack."""
        self._rehome("down")


class Bench:
    """The run of some benchmarks; use as a context manager, which stops what was started."""

    def __init__(self, console: Console, folder: Path, size: int, rounds: int, topics: int = 950) -> None:
        self.console = console
        self.folder = folder
        self.size = size
        """Bytes produced and consumed per round; moves take twice as many."""
        self.rounds = rounds
        self.topics = topics
        """Topics of a cluster at its limit; fewer for a quick look."""
        self._started = contextlib.ExitStack()
        self._stack: Stack | None = None
        self._kafka: KafkaBroker | None = None

    @property
    def stack(self) -> Stack:
        """The stack that this run measures; raises RuntimeError when it does not start."""
        if self._stack is None:
            self._stack = Stack(self.folder / "stack")
            self._started.callback(self._stack.down)
        return self._stack

    @property
    def kafka(self) -> KafkaBroker:
        """Apache Kafka's single broker beside it; raises KafkaUnavailable."""
        if self._kafka is None:
            self._kafka = self._started.enter_context(KafkaBroker(self.folder / "kafka"))
        return self._kafka

    def say(self, text: str) -> None:
        """Tell what is measured now."""
        self.console.print(text)

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.close()
