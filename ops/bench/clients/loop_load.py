"""The listener's event loop under load: no callback may block it for long."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from kafka.admin import KafkaAdminClient

from ops.bench.bench import Bench, Stack
from ops.bench.clients import librdkafka
from ops.bench.moves import wire_moves
from ops.bench.table import Figure, milliseconds
from storage_node.protocol.network import loop_probe

PARTITIONS = 500
SECONDS = 30.0
WANTED = 0.02
SIZE = 64 * 2**20


def loop(bench: Bench) -> list[Figure]:
    """Measure the longest callback of a node with 500 partitions under concurrent clients, moves and changes."""
    bench.say(f"the event loop for {SECONDS:.0f} s: produce, consume, moves, changes of the metadata ...")
    report = bench.folder / "loop.json"
    stack = Stack(bench.folder / "probed", {loop_probe.ENVIRONMENT: str(report)})
    try:
        librdkafka.create_topic(stack.bootstrap, "many", partitions=PARTITIONS)
        librdkafka.create_topic(stack.bootstrap, "moved", {"segment.bytes": str(16 * 2**20)})
        librdkafka.create_topic(stack.bootstrap, "read")
        librdkafka.produce(stack.bootstrap, "moved", SIZE)
        _together([lambda: _produce(stack), lambda: _move(stack), lambda: _change(stack), lambda: _list_topics(stack)])
        time.sleep(2 * loop_probe.INTERVAL)
        found = json.loads(report.read_text())
    finally:
        stack.down()
    cpu, wall = found["cpu"], found["wall"]
    return [
        Figure(
            f"longest callback of the event loop, CPU time, of {found['callbacks']}",
            f"{milliseconds(cpu['seconds'])} ({cpu['what']})",
            "",
            cpu["seconds"] / WANTED,
            f"<= {milliseconds(WANTED)}",
            cpu["seconds"] <= WANTED,
        ),
        Figure("longest callback by the wall clock", f"{milliseconds(wall['seconds'])} ({wall['what']})"),
    ]


def _together(jobs: list[Callable[[], None]]) -> None:
    """Repeat each job on a thread of its own for `SECONDS`. Raises RuntimeError if one fails."""
    until, failures = time.monotonic() + SECONDS, list[BaseException]()

    def run(job: Callable[[], None]) -> None:
        try:
            while time.monotonic() < until and not failures:
                job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(f"cannot generate the load: {failures[0]}")


def _produce(stack: Stack) -> None:
    librdkafka.produce(stack.bootstrap, "read", SIZE)
    librdkafka.consume(stack.bootstrap, "read", SIZE)
    for partition in range(0, PARTITIONS, 10):
        librdkafka.produce(stack.bootstrap, "many", 2**14, partition=partition)


def _move(stack: Stack) -> None:
    """Move one partition with records, and a hundred small ones, in one request."""
    target = wire_moves.other_disk(stack.disks, "moved")
    wanted = {("many", partition, 1): str(target) for partition in range(100)}
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=stack.bootstrap)) as admin:
        admin.alter_replica_log_dirs({("moved", 0, 1): str(target), **wanted})
        admin.describe_log_dirs()
    time.sleep(2)


def _change(stack: Stack) -> None:
    """Create, describe and delete a topic; the controller sends each change to the node."""
    admin = AdminClient({"bootstrap.servers": stack.bootstrap})
    name = f"passing-{time.time_ns()}"
    admin.create_topics([NewTopic(name, 50, 1)])[name].result(30)
    admin.describe_configs([ConfigResource("topic", name)])
    with contextlib.suppress(KafkaException):
        admin.delete_topics([name])[name].result(30)


def _list_topics(stack: Stack) -> None:
    AdminClient({"bootstrap.servers": stack.bootstrap}).list_topics(timeout=10)
