"""The controller of a cluster at its limit, on a machine with two further busy processes.

A real controller worker and Temporal server with light nodes (`light_node`): processes without logs that send a node's
requests. 950 topics of 7 partitions with three replicas each (`--topics` for fewer), on three nodes and on nine: the
controller is killed and restarted, a node is killed, all nodes are restarted one after the other, one node flaps.
Meanwhile an administrator changes a config twice a second, or as soon as the previous change has its response.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import Client

from ops.bench import ROOT
from ops.bench.bench import Bench
from ops.bench.table import Figure
from ops.stack import ports, temporal_server
from ops.stack.health import temporal_works
from ops.stack.layout import temporal_command
from workflows.model import names

CLUSTER = "limit"
PARTITIONS, FACTOR = 7, 3
#: Topics of one request.
BATCH = 50
SIZES = (3, 9)
LOOPS = 2
FLAPS = 8
REST = 5.0  # seconds without load before the first measurement
EVERY = 0.5  # seconds between an administrator's changes
PATIENCE = 180.0
ADMIN = 1  # the node that serves administrators; it is killed only in the rolling restart
LOOP = "while True: pass"

#: The targets: CPU seconds of one activation; seconds.
ACTIVATION, READY, MOVED, RESPONSE = 0.5, 10.0, 8.0, 30.0

_Line = Mapping[str, Any]


def controller(bench: Bench) -> list[Figure]:
    """Measure the controller of three nodes, then of nine."""
    figures = []
    for nodes in SIZES:
        bench.say(f"the controller of {nodes} nodes with {bench.topics * PARTITIONS * FACTOR:,} replicas ...")
        with _Cluster(bench.folder / f"controller-{nodes}", nodes) as cluster:
            figures += _measure(bench, cluster)
    return figures


def _measure(bench: Bench, cluster: _Cluster) -> list[Figure]:
    cluster.create(bench.topics)
    figures = []
    with _busy(LOOPS):
        for what, do, wanted in (
            ("the controller killed: it responds again", cluster.controller_again, READY),
            ("a node killed: new leaders elected", lambda: cluster.killed(cluster.last), MOVED),
            ("all nodes restarted, one after the other", cluster.rolling, None),
            (f"a node killed {FLAPS} times", cluster.flapping, None),
            ("the controller killed again: it responds again", cluster.controller_again, READY),
        ):
            bench.say(f"{what} ...")
            cluster.forget()
            took = cluster.with_administrator(do)
            where = f"{cluster.nodes} nodes, {what}"
            slowest, errors = cluster.responses()
            for error in sorted(cluster.errors()):
                bench.say(f"an administrator's request failed: {error}")
            figures += [
                Figure(
                    where,
                    f"{took:.1f} s",
                    ratio=took / wanted if wanted else None,
                    wanted=f"<= {wanted:.0f} s" if wanted else "",
                    met=took <= wanted if wanted else None,
                ),
                Figure(
                    f"{where}: slowest response to an administrator",
                    f"{slowest:.1f} s" + (f", {errors} failed" if errors else ""),
                    ratio=slowest / RESPONSE,
                    wanted=f"<= {RESPONSE:.0f} s",
                    met=slowest <= RESPONSE and not errors,
                ),
                cluster.activations(where),
            ]
    failed = asyncio.run(cluster.failed_tasks())
    for why in failed:
        bench.say(f"a workflow task failed: {why}")
    what = f"{cluster.nodes} nodes: failed workflow tasks, deadlocks in the log"
    figures.append(
        Figure(what, f"{len(failed)}, {cluster.deadlocks()}", wanted="none", met=not failed and not cluster.deadlocks())
    )
    return figures


@contextlib.contextmanager
def _busy(loops: int) -> Iterator[None]:
    """Run `loops` processes that use all available CPU."""
    running = [subprocess.Popen([sys.executable, "-c", LOOP], cwd=ROOT) for _ in range(loops)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


class _Process:
    """A child process that writes JSON lines, each passed to a callback."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str], received: Callable[[Any], None]):
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env={**os.environ, **environment},
        )
        self._received = received
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                self._received(json.loads(line))

    def send(self, what: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join(5)
        self._log.close()


class _Cluster:
    """A Temporal server, the controller and light nodes, each a process. A context manager."""

    def __init__(self, folder: Path, nodes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.nodes, self.last = folder, nodes, nodes
        self._port = ports.some_block(nodes + 2)
        self._address = f"127.0.0.1:{self._port + nodes}"
        self._environment = {"TEMPORAL_ADDRESS": self._address, "TEMPORAL_NAMESPACE": "default"}
        self._file = folder / "activations"
        self._log = folder / "controller.log"
        self._changed = threading.Condition()
        self._images: dict[int, _Line] = {}
        self._registered: set[int] = set()
        self._responses: queue.SimpleQueue[_Line] = queue.SimpleQueue()
        self._found: list[_Line] = []
        self._asked = 0
        self._members: dict[int, _Process] = {}
        self._controller: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._from = 0

    def __enter__(self) -> Self:
        binary = temporal_server.find()
        if binary is None:
            raise RuntimeError("the Temporal server is not installed; run `make setup`")
        try:
            self._begin(binary)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self, binary: str) -> None:
        server = self._port + self.nodes
        command = temporal_command(binary, "127.0.0.1", server, server + 1, self.folder / "temporal.db")
        with (self.folder / "temporal.log").open("ab") as log:
            self._server = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        self._until("Temporal responds", lambda: temporal_works(self._address, binary), look=0.5)
        self._start_controller()
        for node in range(1, self.nodes + 1):
            self._start(node)
        self._until("all nodes are registered", lambda: len(self._registered) == self.nodes)

    def __exit__(self, *_: object) -> None:
        for each in self._members.values():
            each.kill()
        for process in (self._controller, self._server):
            if process is not None:
                process.kill()
                process.wait()

    # --- processes

    def _start_controller(self) -> None:
        command = [sys.executable, "-m", "ops.bench.controller.timed_worker", str(self._file), "controller"]
        exports = ["--export-dir", str(self.folder / "exports")]
        with self._log.open("ab") as log:
            environment = {**os.environ, **self._environment}
            where = subprocess.DEVNULL
            self._controller = subprocess.Popen(
                [*command, "--cluster", CLUSTER, *exports], stdout=where, stderr=log, cwd=ROOT, env=environment
            )

    def _start(self, node: int) -> None:
        command = [
            sys.executable,
            "-m",
            "ops.bench.controller.light_node",
            CLUSTER,
            str(node),
            str(self._port + node - 1),
        ]
        log = self.folder / f"node-{node}.log"
        with self._changed:
            self._registered.discard(node)
            self._images.pop(node, None)
        self._members[node] = _Process([*command, str(self.folder)], log, self._environment, self._received)

    def _received(self, line: _Line) -> None:
        with self._changed:
            if "led" in line:
                self._images[line["node"]] = line
            elif "registered" in line:
                self._registered.add(line["registered"])
            elif "response" in line:
                self._responses.put(line)
            self._changed.notify_all()

    def _until(self, what: str, reached: Callable[[], bool], look: float = 0.05) -> None:
        deadline = time.monotonic() + PATIENCE
        while not reached():
            if time.monotonic() > deadline:
                raise RuntimeError(f"timed out after {PATIENCE:.0f} s: {what}")
            time.sleep(look)

    # --- actions

    def create(self, topics: int) -> None:
        """Create all topics, and wait until every node has the directories of all replicas."""
        for at in range(0, topics, BATCH):
            rows = [
                {
                    "name": f"limit-{number:03}",
                    "assignment": [
                        [(number + p + k) % self.nodes + 1 for k in range(FACTOR)] for p in range(PARTITIONS)
                    ],
                }
                for number in range(at, min(at + BATCH, topics))
            ]
            self._members[ADMIN].send({"do": "create_topics", "topics": rows})
            error = self._responses.get(timeout=PATIENCE)["error"]
            if error:
                raise RuntimeError(f"cannot create the topics: {error}")
        self._settled()
        time.sleep(REST)

    def _settled(self) -> None:
        """Wait until all replicas are in sync, with their directories, in every node's metadata."""

        def whole() -> bool:
            with self._changed:
                lines = [self._images.get(node) for node in self._members]
            return all(line is not None and line["partitions"] and not line["behind"] for line in lines)

        self._until("all replicas are in sync", whole, look=0.1)

    def with_administrator(self, do: Callable[[], float]) -> float:
        """Call `do` while an administrator changes configs; return its result after the last response."""
        stop = threading.Event()
        thread = threading.Thread(target=self._administrate, args=(stop,))
        thread.start()
        try:
            took = do()
            self._settled()
            return took
        finally:
            stop.set()
            thread.join()
            self._collect(PATIENCE / 3)

    def _administrate(self, stop: threading.Event) -> None:
        while not stop.wait(EVERY):
            if self._asked > len(self._found) + self._responses.qsize():
                continue  # the node processes one at a time: more would measure its queue
            self._asked += 1
            changes = {"retention.ms": str(100_000 + self._asked)}
            command = {"do": "alter_configs", "kind": "topic", "name": "limit-000", "changes": changes}
            # If the node is restarting, no node receives the request.
            try:
                self._members[ADMIN].send(command)
            except (OSError, ValueError):
                self._asked -= 1

    def _collect(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while len(self._found) < self._asked and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                self._found.append(self._responses.get(timeout=0.5))

    def forget(self) -> None:
        """Begin a new measurement."""
        self._asked, self._found = 0, []
        self._from = self._file.stat().st_size if self._file.exists() else 0

    def controller_again(self) -> float:
        """Kill the controller; return the seconds from its start until it responds."""
        assert self._controller is not None
        self._controller.kill()
        self._controller.wait()
        self._start_controller()
        began = time.monotonic()
        while not self._responses.empty():
            self._found.append(self._responses.get())
        self._found.append(self._responses.get(timeout=PATIENCE))
        return time.monotonic() - began

    def killed(self, node: int) -> float:
        """Kill a node and restart it once its partitions have other leaders; return the seconds until then."""
        began = time.monotonic()
        self._members[node].kill()
        others = [each for each in range(1, self.nodes + 1) if each != node]

        def moved() -> bool:
            with self._changed:
                lines = [self._images.get(each) for each in others]
            return all(line is not None and not line["led"].get(str(node)) for line in lines)

        self._until(f"the partitions of node {node} have other leaders", moved)
        took = time.monotonic() - began
        self._back(node)
        return took

    def _back(self, node: int) -> None:
        self._start(node)
        self._until(f"node {node} is registered", lambda: node in self._registered)

    def rolling(self) -> float:
        """Restart every node, each once the previous one is back in all ISRs."""
        began = time.monotonic()
        for node in range(1, self.nodes + 1):
            self._members[node].kill()
            if node == ADMIN:  # the killed process cannot respond to its last request
                time.sleep(EVERY)
                while not self._responses.empty():
                    self._found.append(self._responses.get())
                self._asked = len(self._found)
            self._back(node)
            if node == ADMIN:  # requests to the killed process have no response
                self._asked = len(self._found) + self._responses.qsize()
            self._settled()
        return time.monotonic() - began

    def flapping(self) -> float:
        """Restart one node again and again, without waiting for anything."""
        began = time.monotonic()
        for _ in range(FLAPS):
            self._members[self.last].kill()
            self._back(self.last)
        return time.monotonic() - began

    # --- results

    def responses(self) -> tuple[float, int]:
        """Return the slowest response in seconds, and the number of errors and missing responses."""
        failed = sum(bool(line["error"]) for line in self._found)
        slowest = max((float(line["response"]) for line in self._found), default=0.0)
        return slowest, max(0, self._asked - len(self._found)) + failed

    def errors(self) -> set[str]:
        """Return the errors of the administrator's requests."""
        return {str(line["error"]) for line in self._found if line["error"]}

    def activations(self, where: str) -> Figure:
        """Return the most expensive activation of the controller's workflow."""
        with self._file.open("rb") as file:
            file.seek(self._from)
            rows = [json.loads(line) for line in file]
        rows = [row for row in rows if row["workflow"] == names.CLUSTER]
        cpu, wall = max(((float(row["cpu"]), float(row["wall"])) for row in rows), default=(0.0, 0.0))
        replayed = sum(float(row["cpu"]) for row in rows if row["replaying"])
        return Figure(
            f"{where}: most expensive activation, replays",
            f"{cpu:.2f} s of CPU ({wall:.2f} s), {replayed:.1f} s of CPU",
            ratio=cpu / ACTIVATION,
            wanted=f"<= {ACTIVATION} s",
            met=cpu <= ACTIVATION,
        )

    def deadlocks(self) -> int:
        """Return how many deadlocks of workflow code the SDK has logged."""
        return self._log.read_text(errors="replace").count("TMPRL1101")

    async def failed_tasks(self) -> list[str]:
        """Return the causes of failed workflow tasks of the controller's runs, one entry each.

        UNHANDLED_COMMAND is excluded: with it the server rejects the close of a run that has received a signal or an
        update meanwhile, and schedules the next task with it.
        """
        next_task = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
        client = await Client.connect(self._address)
        failed: list[str] = []
        async for run in client.list_workflows(f"WorkflowId = '{names.cluster_id(CLUSTER)}'"):
            handle = client.get_workflow_handle(run.id, run_id=run.run_id)
            async for event in handle.fetch_history_events():
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                    found = event.workflow_task_failed_event_attributes
                    if found.cause == next_task:
                        continue
                    failed.append(f"{WorkflowTaskFailedCause.Name(found.cause)}: {found.failure.message}")
        return failed
