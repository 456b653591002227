"""What every benchmark is given: a folder, sizes, and the servers, each started when the first one asks for it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from ops.kafka.broker import KafkaBroker, free_port


def rehome(folder: Path, verb: str, *options: str, environment: Mapping[str, str] | None = None) -> str:
    """`rehome stack VERB` of the stack in a folder; its output. Raises RuntimeError when it fails."""
    command = [sys.executable, "-m", "ops.cli.main", "stack", verb, "--data", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    if done.returncode:
        raise RuntimeError(f"rehome stack {verb} failed: {done.stderr.strip()}")
    return done.stdout


class Stack:
    """A stack of one node with two disks in a folder of its own, by the same commands that people use."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._environment = {**os.environ, **(environment or {})}
        port, temporal = free_port(), free_port()
        self._up(["--nodes", "1", "--dirs", "2", "--port", str(port), "--temporal-port", str(temporal), "--detach"])
        self.bootstrap = f"127.0.0.1:{port}"
        self.temporal = f"127.0.0.1:{temporal}"
        status: list[dict[str, Any]] = json.loads(self._rehome("status", "--json"))
        node = next(each for each in status if each["name"] == "node-1")
        self.disks = [Path(d) for d in node["directories"]]
        self.node_pid = int(node["pid"])

    def _up(self, options: list[str]) -> None:
        self._rehome("up", *options)

    def kill(self, name: str) -> None:
        """Kill one process with SIGKILL."""
        self._rehome("kill", name)

    def configure(self, properties: Mapping[str, str]) -> None:
        """Stop the node, add to its server.properties, and start it again."""
        self._rehome("kill", "node-1")
        with (self.folder / "node-1" / "server.properties").open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in properties.items())
        self.start("node-1")

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

    def __init__(self, console: Console, folder: Path, size: int, rounds: int) -> None:
        self.console = console
        self.folder = folder
        self.size = size
        """Bytes produced and consumed per round; moves take twice as many."""
        self.rounds = rounds
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
