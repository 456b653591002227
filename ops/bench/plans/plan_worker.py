"""A worker of plans that counts its requests: `python -m ops.bench.plans.plan_worker FOLDER CLUSTER`.

CLUSTER is the number of partitions of a simulated one, or the bootstrap addresses of a real one; FOLDER has the plans.
TEMPORAL_ADDRESS names the server. Writes a JSON line {"ready"} when it works, and {"requests", "memory"} at its end,
which is the end of its standard input; `memory` is the peak of its resident bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from temporalio.client import Client

import worker
from activities.kafka_admin.admin import KafkaAdmin
from activities.kafka_admin.client_config import ClientConfig
from activities.kafka_admin.pool import AdminPool
from ops.bench import ROOT
from ops.bench.plans.simulated import Shape, SimulatedAdmin, SimulatedCluster

CLUSTER = "bench"
MIB = 1 << 20


class CountedAdmin(KafkaAdmin):
    """An admin client that counts its calls by what they do."""

    def __init__(self, config: ClientConfig, timeout: float, count: Callable[[str], None]) -> None:
        super().__init__(config, timeout)
        self._count = count

    def _kafka_errors(self, doing: str) -> contextlib._GeneratorContextManager[None]:
        self._count(" ".join(doing.split()[:3]))
        return super()._kafka_errors(doing)


class PlanWorker:
    """The worker as a process; a context manager."""

    def __init__(self, folder: Path, temporal: str, cluster: str) -> None:
        self.plans = folder / "plans"
        self._log = (folder / "worker.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ops.bench.plans.plan_worker", str(self.plans), cluster],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env={**os.environ, "TEMPORAL_ADDRESS": temporal},
        )
        self._seen = psutil.Process(self._process.pid)

    def __enter__(self) -> PlanWorker:
        self._line()
        return self

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(json.JSONDecodeError):  # the SDK logs there, too
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError("the worker of plans ended before its time")

    def used(self) -> str:
        """Return the CPU seconds and the memory of the worker."""
        times = self._seen.cpu_times()
        return f"worker {times.user + times.system:.0f} s of CPU, {self._seen.memory_info().rss / MIB:,.0f} MiB"

    def end(self) -> tuple[dict[str, int], int]:
        """Stop the worker; return the requests that it has sent, by kind, and its peak memory in bytes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        found = self._line()
        return dict(found["requests"]), int(found["memory"])

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


async def main(folder: Path, cluster: str) -> None:
    """Serve plans until standard input ends."""
    requests: dict[str, int] = {}
    lock = threading.Lock()

    def count(what: str) -> None:
        with lock:
            requests[what] = requests.get(what, 0) + 1

    if cluster.isdecimal():
        simulated = SimulatedCluster(Shape(int(cluster)), count)
        pool = AdminPool(ClientConfig("simulated:9092"), admin=lambda config, timeout: SimulatedAdmin(simulated))
    else:
        pool = AdminPool(ClientConfig(cluster), admin=lambda config, timeout: CountedAdmin(config, timeout, count))
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"])
    async with worker.plans_worker(client, CLUSTER, pool, folder):
        print(json.dumps({"ready": True}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(json.dumps({"requests": requests, "memory": memory}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
    os._exit(0)
