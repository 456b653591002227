"""The worker of plans as a process of its own, and a client that submits plans and looks at them."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from temporalio.client import Client

from activities.temporal.describing import describe_run
from tests.conformance.clusters import Cluster
from tests.support.nodes.node_harness import until
from tests.support.programs.temporal import TemporalServer
from workflows.model import names

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0
_number = itertools.count(1)


class Plan:
    """One submitted plan."""

    def __init__(self, orchestrator: Orchestrator, workflow_id: str) -> None:
        self._of, self.id = orchestrator, workflow_id

    def progress(self) -> dict[str, Any]:
        found: dict[str, Any] = self._of.ask(lambda client: client.get_workflow_handle(self.id).query("progress"))
        return found

    def update(self, kind: str, *argument: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._of.ask(
            lambda client: client.get_workflow_handle(self.id).execute_update(kind, *argument)
        )
        return found

    def result(self, patience: float = PATIENCE) -> dict[str, Any]:
        async def work(client: Client) -> Any:
            return await asyncio.wait_for(client.get_workflow_handle(self.id).result(), patience)

        found: dict[str, Any] = self._of.ask(work)
        return found

    def wait_phase(self, phase: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def there() -> bool:
            found.clear()
            found.update(self.progress())
            return found["phase"] == phase

        until(there, PATIENCE, f"the plan is {phase}")
        return found

    def wait_running(self, *keys: str) -> None:
        """Until these moves, and no others, are under way."""

        def there() -> bool:
            return {key for lane in self.progress()["lanes_running"] for key in lane["moves"]} == set(keys)

        until(there, PATIENCE, f"{keys} are under way")

    @property
    def open(self) -> bool:
        run = self._of.ask(lambda client: describe_run(client, self.id))
        return run is not None and run.ended is None


class Orchestrator:
    """worker.py orchestrator for one cluster. Start it again after a kill: plans go on."""

    def __init__(self, server: TemporalServer, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.server, self.folder = cluster, server, folder
        self.name = f"plans-{folder.name}"
        self._process: subprocess.Popen[bytes] | None = None
        self._runner = asyncio.Runner()
        self._client: Client | None = None

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "client.properties"
        config.write_text(f"bootstrap.servers={self.cluster.bootstrap}\n")
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "worker.py"),
                "orchestrator",
                "--command-config",
                str(config),
                "--cluster",
                self.name,
                "--plan-dir",
                str(self.folder / "plans"),
            ],
            cwd=ROOT,
            env={**os.environ, "TEMPORAL_ADDRESS": self.server.address, "TEMPORAL_NAMESPACE": "default"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "orchestrator.log").open("ab"),
        )

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()
        self._runner.close()

    def ask(self, work: Any) -> Any:
        async def call() -> Any:
            if self._client is None:
                self._client = await self.server.client()
            return await work(self._client)

        return self._runner.run(call())

    def submit(
        self, *rows: tuple[str, int, Sequence[int], Sequence[str] | None], options: Mapping[str, Any] | None = None
    ) -> Plan:
        """Submit (topic, partition, replicas, log directories) rows as Temporal's own command line would."""
        partitions = [
            {"topic": topic, "partition": partition, "replicas": list(replicas)}
            | ({"log_dirs": list(dirs)} if dirs is not None else {})
            for topic, partition, replicas, dirs in rows
        ]
        document: dict[str, Any] = {"version": 1, "partitions": partitions}
        if options:
            document["options"] = dict(options)
        workflow_id = names.plan_id(self.name, f"p{next(_number)}")
        self.ask(
            lambda client: client.start_workflow(
                names.REASSIGNMENT_PLAN,
                json.loads(json.dumps(document)),
                id=workflow_id,
                task_queue=names.plans_queue(self.name),
            )
        )
        return Plan(self, workflow_id)

    def evacuate(self, broker: int, path: str) -> dict[str, Any]:
        """Empty a log directory, and return the run's result."""

        async def work(client: Client) -> Any:
            handle = await client.start_workflow(
                names.EVACUATE_DIRECTORY,
                {"version": 1, "broker": broker, "directory": path},
                id=names.evacuation_id(self.name, broker, path),
                task_queue=names.plans_queue(self.name),
            )
            return await asyncio.wait_for(handle.result(), PATIENCE)

        found: dict[str, Any] = self.ask(work)
        return found

    def log(self) -> str:
        return (self.folder / "orchestrator.log").read_text(errors="replace")
