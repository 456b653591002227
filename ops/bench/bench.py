"""The environment of the benchmarks: a folder, sizes, and the servers, each started at its first use."""

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

import javaproperties
from rich.console import Console

from ops.bench import ROOT
from ops.kafka import brokers
from ops.kafka.cluster import KafkaCluster
from ops.stack import ports


def rehome(
    folder: Path, verb: str, *options: str, environment: Mapping[str, str] | None = None, group: str = "stack"
) -> str:
    """Run `rehome GROUP VERB` for the stack in a folder; return its output. Raises RuntimeError."""
    command = [sys.executable, "-m", "ops.cli.main", group, verb, "--data", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=ROOT, env=environment)
    if done.returncode:
        raise RuntimeError(f"rehome {group} {verb} failed: {done.stderr.strip()}")
    return done.stdout


class Stack:
    """A stack of one node with two disks, or of several nodes, in a folder of its own, run by `rehome stack`."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str] | None = None, *, nodes: int = 1, dirs: int = 2
    ) -> None:
        self.folder = folder
        self._environment = {**os.environ, **(environment or {})}
        block = ports.some_block(nodes + 2)
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
        """Return the pid of a process."""
        status: list[dict[str, Any]] = json.loads(self._rehome("status", "--json"))
        return next(int(each["pid"]) for each in status if each["name"] == name)

    def kill(self, name: str) -> None:
        """Kill one process with SIGKILL."""
        self._rehome("kill", name)

    def configure(self, properties: Mapping[str, str]) -> None:
        """Kill the nodes one after the other, append to their server.properties, and start them again."""
        for name in (f"node-{number}" for number in self.log_dirs):
            self._rehome("kill", name)
            with (self.folder / name / "server.properties").open("a", encoding="utf-8") as file:
                file.write(javaproperties.dumps(properties, timestamp=False))
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
    """One run of benchmarks; a context manager that stops the servers it has started."""

    def __init__(
        self,
        console: Console,
        folder: Path,
        size: int,
        rounds: int,
        topics: int = 950,
        moves: int = 100_000,
        partitions: int = 2_000,
        partition_bytes: int = 64 << 10,
    ) -> None:
        self.console = console
        self.folder = folder
        self.size = size
        """Bytes produced and consumed per round; moves take twice as many."""
        self.rounds = rounds
        self.moves = moves
        """Moves of a plan at scale; fewer for a quick run."""
        self.partitions = partitions
        """Partitions of a plan on a real broker; fewer for a quick run."""
        self.partition_bytes = partition_bytes
        """Bytes of each of these partitions."""
        self.topics = topics
        """Topics of a cluster at its limit; fewer for a quick run."""
        self._started = contextlib.ExitStack()
        self._stack: Stack | None = None
        self._kafka: KafkaCluster | None = None

    @property
    def stack(self) -> Stack:
        """The run's stack. Raises RuntimeError if it does not start."""
        if self._stack is None:
            self._stack = Stack(self.folder / "stack")
            self._started.callback(self._stack.down)
        return self._stack

    @property
    def kafka(self) -> KafkaCluster:
        """The run's Apache Kafka broker. Raises KafkaUnavailable."""
        if self._kafka is None:
            one = KafkaCluster(self.folder / "kafka", log_dirs={1: 2}, quick=False, base=brokers.internal_topics(1))
            self._kafka = self._started.enter_context(one)
        return self._kafka

    def say(self, text: str) -> None:
        """Print a progress message."""
        self.console.print(text)

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.close()
