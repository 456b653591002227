"""Many small partitions reassigned by one request: response time, duration, histories, the controller's memory."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from temporalio.client import Client

from ops.bench.bench import Bench, Stack
from ops.bench.memory import sampled
from ops.bench.moves import wire_moves
from ops.bench.replication import replicas
from ops.bench.replication.replicas import NODES, Cluster, Reassigner
from ops.bench.table import Figure

COUNTS = (10, 100, 1000)
RECORD = 1024
RECORDS = 16
"""Per partition: few, since the benchmark measures the protocol, not the copying."""
RESPONSE = 5.0
EVENTS = 4_000
MEMORY = 500 * 2**20
LOOK = 0.25
"""Seconds between two polls of all partitions: each poll costs the server time as well."""
SETTLE = 60.0
OPEN = 'WorkflowType="PartitionReassignment" AND ExecutionStatus="Running"'


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds until the response and until the last reassignment is complete; events of the longest history; bytes."""

    response: float
    done: float
    events: int = 0
    memory: int = 0


def many_reassignments(bench: Bench) -> list[Figure]:
    """Reassign one of the two replicas of 10, 100 and 1,000 partitions to another node."""
    found: dict[str, dict[int, Taken]] = {}
    for name, cluster in (("rehome", replicas.ours), ("kafka", replicas.theirs)):
        with cluster(bench, "many-reassignments") as made:
            found[name] = {}
            for count in COUNTS:
                bench.say(f"{count} partitions reassigned in one request, {made.name} ...")
                found[name][count] = _many(made, count)
    return [_figure(count, found["rehome"][count], found["kafka"][count]) for count in COUNTS]


def _figure(count: int, ours: Taken, theirs: Taken) -> Figure:
    return Figure(
        f"{count} partitions reassigned in one request: response, completion, longest history, controller's memory",
        f"{ours.response:.2f} s, {ours.done:.1f} s, {ours.events} events, {ours.memory / 2**20:.0f} MiB",
        f"{theirs.response:.2f} s, {theirs.done:.1f} s (Apache Kafka)",
        ours.done / theirs.done,
        f"< {RESPONSE:.0f} s, all done, < {EVENTS} events, < {MEMORY >> 20} MiB",
        ours.response < RESPONSE and ours.events < EVENTS and ours.memory < MEMORY,
    )


def _many(cluster: Cluster, count: int) -> Taken:
    topic = f"many-{count}"
    here = {number: (NODES[number % 3], NODES[(number + 1) % 3]) for number in range(count)}
    there = {(topic, number): (second, NODES[(number + 2) % 3]) for number, (_, second) in here.items()}
    with Reassigner(cluster) as made:
        made.create(topic, [here[number] for number in range(count)])
        wire_moves.fill(
            cluster.bootstrap, topic, RECORD * RECORDS, value=RECORD, batch=RECORD * RECORDS, partitions=count
        )
        if cluster.stack is None:
            began = time.monotonic()
            response = made.ask(there)
            return Taken(response, made.wait(there, look=LOOK) - began)
        with sampled(cluster.stack.pids["controller"]) as samples:
            began = time.monotonic()
            response = made.ask(there)
            done = made.wait(there, look=LOOK) - began
            events = asyncio.run(_events(cluster.stack))
        return Taken(response, done, events, max(samples))


async def _events(stack: Stack) -> int:
    """Wait until all PartitionReassignment runs have closed; return the longest history of any run."""
    client = await Client.connect(stack.temporal)
    deadline = time.monotonic() + SETTLE
    while (await client.count_workflows(OPEN)).count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"PartitionReassignment runs were open {SETTLE:.0f} s after the last reassignment")
        await asyncio.sleep(0.2)
    longest = 0
    async for run in client.list_workflows():
        described = await client.get_workflow_handle(
            run.id, run_id=run.run_id
        ).describe()  # lists have no history length of open runs
        longest = max(longest, described.history_length)
    return longest
