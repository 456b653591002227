"""A plan beside kafka-reassign-partitions that is given all of it at once, on Apache Kafka and on a storage node.

Small partitions of one broker with two log directories (`--partitions`); the plan takes each to the other directory,
the tool takes them back. Meanwhile a client produces to a topic that does not move. The worker runs before the plan is
submitted, as an orchestrator does; the tool is a program, whose start counts. Both have cores of their own, as on
a host of their own: the servers and the client share the other ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from pathlib import Path

import psutil
from temporalio.client import Client

from ops.bench.bench import Bench
from ops.bench.clients import librdkafka, pacer
from ops.bench.moves import wire_moves
from ops.bench.plans.plan_worker import CLUSTER, PlanWorker
from ops.bench.plans.temporal import temporal
from ops.bench.table import Figure
from ops.kafka import tools
from workflows.model import names
from workflows.model.plans.running.following import MoveOutcome
from workflows.model.plans.running.plan_results import PlanResult

ALL_PARTITIONS = 2_000
#: Partitions of one topic: a request that creates more may take longer than clients wait.
OF_TOPIC = 500
SIZE, RECORD = 64 << 10, 8 << 10
PRODUCE_RATE = 50.0
PATIENCE = 3_600.0
LOOK = 1.0

Places = dict[tuple[str, int], Path]


@dataclass(frozen=True, slots=True)
class Carried:
    """What carrying out all moves took, and the produce latencies meanwhile, in seconds."""

    seconds: float
    p99: float
    longest: float


def plans_on_clusters(bench: Bench) -> list[Figure]:
    """Measure Apache Kafka's broker, then a node of ours."""
    figures = []
    cores = sorted(os.sched_getaffinity(0))
    servers, drivers = set(cores[: max(1, len(cores) // 2)]), set(cores[len(cores) // 2 :])
    kafka = bench.kafka
    _pin([kafka.pid(1)], servers)
    os.sched_setaffinity(0, drivers)  # What this process starts runs there, too.
    try:
        figures += _measured(bench, "Apache Kafka", kafka.bootstrap, list(kafka.log_dirs[1]), servers)
        stack = bench.stack
        _pin(stack.pids.values(), servers)
        figures += _measured(bench, "a storage node", stack.bootstrap, stack.disks, servers)
    finally:
        os.sched_setaffinity(0, cores)
    return figures


def _pin(pids: Iterable[int], cores: Set[int]) -> None:
    """Let processes, with the threads that they have, run on these cores alone."""
    for pid in pids:
        for thread in psutil.Process(pid).threads():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, cores)


def _measured(bench: Bench, name: str, bootstrap: str, disks: list[Path], servers: Set[int]) -> list[Figure]:
    bench.say(f"{bench.partitions:,} partitions of {name} ...")
    folder = bench.folder / f"plans-{name.replace(' ', '-')}"
    folder.mkdir()
    topics = {f"planned-{at:02}": min(OF_TOPIC, bench.partitions - at) for at in range(0, bench.partitions, OF_TOPIC)}
    for topic, count in topics.items():
        librdkafka.create_topic(bootstrap, topic, partitions=count)
        wire_moves.fill(bootstrap, topic, bench.partition_bytes, value=RECORD, batch=SIZE, partitions=count)
    librdkafka.create_topic(bootstrap, "beside")
    places = [(topic, partition) for topic, count in topics.items() for partition in range(count)]

    def carried(do: Callable[[Places], None], out: str) -> Carried:
        wanted = {place: wire_moves.other_disk(disks, *place) for place in places}
        with pacer.paced(bootstrap, "beside", PRODUCE_RATE, folder / out, servers) as beside:
            began = time.monotonic()
            do(wanted)
            seconds = time.monotonic() - began
        latencies = sorted(beside.latencies())
        return Carried(seconds, latencies[99 * len(latencies) // 100], latencies[-1])

    with temporal(folder) as address, PlanWorker(folder, address, bootstrap) as worker:
        plan = carried(lambda wanted: _by_plan(address, wanted), "plan")
        requests = sum(worker.end()[0].values())
    tool = carried(lambda wanted: _by_tool(folder, bootstrap, wanted), "tool")
    what = f"{len(places):,} moves of {bench.partition_bytes >> 10:,} KiB on {name}"
    beside = "(kafka-reassign-partitions, all at once)"
    return [
        Figure(
            f"{what}: by a plan",
            f"{plan.seconds:.1f} s",
            f"{tool.seconds:.1f} s {beside}",
            plan.seconds / tool.seconds,
        ),
        Figure("the same: requests to the cluster", f"{60 * requests / plan.seconds:,.0f} a minute"),
        Figure(
            "the same: p99 of produce latencies meanwhile",
            f"{plan.p99 * 1e3:.1f} ms",
            f"{tool.p99 * 1e3:.1f} ms {beside}",
            plan.p99 / tool.p99,
        ),
        Figure(
            "the same: longest produce latency meanwhile",
            f"{plan.longest * 1e3:.0f} ms",
            f"{tool.longest * 1e3:.0f} ms {beside}",
            plan.longest / tool.longest,
        ),
    ]


def _document(wanted: Places) -> dict[str, object]:
    rows = [
        {"topic": topic, "partition": partition, "replicas": [1], "log_dirs": [str(path)]}
        for (topic, partition), path in wanted.items()
    ]
    return {"version": 1, "partitions": rows}


def _by_plan(address: str, wanted: Places) -> None:
    """Carry out the plan. Raises RuntimeError unless every replica moves."""
    result = asyncio.run(_run(address, wanted))
    if result.outcomes != {MoveOutcome.MOVED: len(wanted)}:
        raise RuntimeError(f"the plan ended as {result.outcome}: {result.outcomes}")


async def _run(address: str, wanted: Places) -> PlanResult:
    client = await Client.connect(address)
    handle = await client.start_workflow(
        names.REASSIGNMENT_PLAN,
        _document(wanted),
        id=names.plan_id(CLUSTER, "beside-the-tool"),
        task_queue=names.plans_queue(CLUSTER),
        result_type=PlanResult,
    )
    found: PlanResult = await asyncio.wait_for(handle.result(), PATIENCE)
    return found


def _by_tool(folder: Path, bootstrap: str, wanted: Places) -> None:
    file = folder / "plan.json"
    file.write_text(json.dumps(_document(wanted)))
    ran = tools.run(
        "kafka-reassign-partitions",
        "--execute",
        "--reassignment-json-file",
        str(file),
        bootstrap=bootstrap,
        timeout=PATIENCE,
    )
    if ran.code:
        raise RuntimeError(f"kafka-reassign-partitions failed: {ran.out}{ran.err}")
    with wire_moves.Mover(bootstrap) as mover:
        mover.wait(wanted, look=LOOK)
