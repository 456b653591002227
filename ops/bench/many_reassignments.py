"""Many small partitions reassigned by one request: the answer, the end, histories, and the controller's memory."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from temporalio.client import Client

from ops.bench import memory, replicas, wire_moves
from ops.bench.bench import Bench, Stack
from ops.bench.replicas import NODES, Cluster, Reassigner
from ops.bench.table import Figure

COUNTS = (10, 100, 1000)
RECORD = 1024
RECORDS = 16
"""Of each partition: what is measured is the machinery, not the copying."""
ANSWER = 5.0
EVENTS = 4_000
MEMORY = 500 * 2**20
LOOK = 0.25
"""Between two looks at all partitions: each costs the server something, too."""
SETTLE = 60.0
OPEN = 'WorkflowType="PartitionReassignment" AND ExecutionStatus="Running"'


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds until the answer and until the last partition is where it was wanted; events; bytes."""

    answer: float
    done: float
    events: int = 0
    memory: int = 0


def many_reassignments(bench: Bench) -> list[Figure]:
    """10, 100 and 1,000 partitions of two replicas, each with one of them to go to another node."""
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
        f"{count} partitions reassigned in one request: answered, done, largest history, controller's memory",
        f"{ours.answer:.2f} s, {ours.done:.1f} s, {ours.events} events, {ours.memory / 2**20:.0f} MiB",
        f"{theirs.answer:.2f} s, {theirs.done:.1f} s (Apache Kafka)",
        ours.done / theirs.done,
        f"< {ANSWER:.0f} s, all done, < {EVENTS} events, < {MEMORY >> 20} MiB",
        ours.answer < ANSWER and ours.events < EVENTS and ours.memory < MEMORY,
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
            answer = made.ask(there)
            return Taken(answer, made.wait(there, look=LOOK) - began)
        with memory.sampled(cluster.stack.pids["controller"]) as samples:
            began = time.monotonic()
            answer = made.ask(there)
            done = made.wait(there, look=LOOK) - began
            events = asyncio.run(_events(cluster.stack))
        return Taken(answer, done, events, max(samples))


async def _events(stack: Stack) -> int:
    """The longest history of any run, once the reassignments' own have closed. Raises RuntimeError when they do not."""
    client = await Client.connect(stack.temporal)
    deadline = time.monotonic() + SETTLE
    while (await client.count_workflows(OPEN)).count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"reassignments' runs were still open {SETTLE:.0f} s after the last was done")
        await asyncio.sleep(0.2)
    longest = 0
    async for run in client.list_workflows():
        described = await client.get_workflow_handle(
            run.id, run_id=run.run_id
        ).describe()  # lists have none of open runs
        longest = max(longest, described.history_length)
    return longest
