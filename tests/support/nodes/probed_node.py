"""A node in a process of its own, with the probe of the listener's loop, so that nothing else takes its time."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage_node.lifecycle import garbage
from storage_node.protocol.network import loop_probe
from tests.support.nodes.node_harness import running


class ProbedNode:
    """The child process as the test sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.port = int(self._line())
        self.address = f"127.0.0.1:{self.port}"

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the node's process has ended"
        return line

    def longest(self) -> tuple[float, str]:
        """CPU seconds of the longest callback since the last call, and what it was."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        seconds, what = json.loads(self._line())
        return float(seconds), str(what)


@contextlib.contextmanager
def probed_node(folder: Path, **extra: str) -> Iterator[ProbedNode]:
    """A node with the topics t and u of two partitions each; `extra`: configs, underscores for dots."""
    command = [sys.executable, "-m", "tests.support.nodes.probed_node", str(folder), json.dumps(extra)]
    environment = os.environ | {loop_probe.ENVIRONMENT: str(folder / "probe.json")}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=Path.cwd()
    )
    try:
        yield ProbedNode(process)
    finally:
        process.kill()
        process.wait(30)


def main(folder: str, extra: str) -> None:
    """The child: prints the port, then the longest callback for each line that it reads."""
    given: dict[str, Any] = {key.replace("_", "."): value for key, value in json.loads(extra).items()}
    with running(Path(folder) / "node", dirs=2, extra=given) as harness:
        for name in ("t", "u"):
            harness.create_topic(name, 2)
        found = harness.node.listener.probe
        assert found is not None
        garbage.settle()  # as a node's process does when it has started
        collector = garbage.Collector()
        print(harness.node.port, flush=True)
        for _ in sys.stdin:
            collector.look()
            print(json.dumps(found.take()["cpu"]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
