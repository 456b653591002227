"""One real stack for the tests that need it: Temporal, a controller, two nodes with three directories each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from ops.cli import main as cli
from ops.stack import ports
from ops.stack.errors import ExitCode
from ops.stack.stack import Stack
from tests.support.nodes.node_harness import until
from tests.support.nodes.reassigning import ongoing
from tests.support.wire import Client

Rehome = Callable[..., Any]

#: One copying thread, so that a second move waits for the first.
THREADS = "\nnum.replica.alter.log.dirs.threads=1\n"


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    data = tmp_path_factory.mktemp("stack")
    made = Stack(data)
    made.make_folder()
    first = ports.some_block(4)
    try:
        spec = made.prepare({"nodes": 2, "dirs": 3, "port": first, "temporal_port": first + 2})
        for node in spec.node_ids:  # a move ends when its source is deleted
            properties = spec.node_home(node) / "server.properties"
            text = properties.read_text()
            properties.write_text(text.replace("file.delete.delay.ms=5000", "file.delete.delay.ms=500") + THREADS)
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def data(stack: Stack) -> Path:
    stack.up()  # whatever an earlier test has killed
    return stack.data


@pytest.fixture
def rehome(data: Path, capsys: pytest.CaptureFixture[str]) -> Rehome:
    """Run a command on the stack: its value, with `table` what people see, for `code` other than 0 its one sentence."""

    def run(*arguments: str, code: int = 0, table: bool = False) -> Any:
        capsys.readouterr()
        found = cli.run([*arguments, "--data", str(data), *([] if table else ["--json"])])
        shown = capsys.readouterr()
        # A node that the test has stopped makes an answer partial.
        assert found == code or (found, code) == (ExitCode.PARTIAL, ExitCode.OK), shown.err
        if code != 0:
            line = shown.err.strip().splitlines()[-1]
            return line if table else f"error: {json.loads(line)['message']}"
        return shown.out if table else json.loads(shown.out)

    return run


@pytest.fixture
def producer(stack: Stack) -> Producer:
    """One whose batches are small enough for a throttled copy to go on evenly."""
    return Producer({"bootstrap.servers": stack.spec().bootstrap, "acks": "all", "log_level": 0, "batch.size": 60_000})


def fill(producer: Producer, topic: str, count: int = 600) -> None:
    """So many records of 10 kB."""
    for number in range(count):
        producer.produce(topic, value=number.to_bytes(4, "big") * 2500, partition=0)
        producer.poll(0)
    assert producer.flush(30) == 0


def everywhere(stack: Stack, holds: Callable[[Client], bool], what: str) -> None:
    """Wait until something holds of every node's metadata: a command may query any of them, and one may lag behind."""

    def on(address: str) -> bool:
        with closing(Client(address)) as client:
            return holds(client)

    spec = stack.spec()
    until(lambda: all(on(spec.node_address(node)) for node in spec.node_ids), 60, f"every node knows: {what}")


def known(stack: Stack, topic: str, there: bool = True) -> None:
    """Wait until every node knows of the topic, or that it is gone."""

    def holds(client: Client) -> bool:
        (row,) = client.call("Metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False).topics
        return (not row.error_code) == there

    everywhere(stack, holds, f"{topic} is {'there' if there else 'gone'}")


def placed(stack: Stack, topic: str, replicas: list[int], adding: list[int]) -> None:
    """Wait until every node has it that partition 0 is on these nodes, and is being brought to those."""

    def holds(client: Client) -> bool:
        (row,) = client.call("Metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False).topics
        under_way = ongoing(client.call("ListPartitionReassignments", 0, topics=None))
        _, now_adding, _ = under_way.get((topic, 0), ([], [], []))
        return (sorted(row.partitions[0].replica_nodes), now_adding) == (sorted([*replicas, *adding]), adding)

    everywhere(stack, holds, f"{topic}-0 is on {replicas} and goes to {adding}")


@pytest.fixture
def topic(stack: Stack, rehome: Rehome, producer: Producer) -> str:
    """A topic of one partition with 6 MB."""
    name = f"t{uuid4().hex[:8]}"
    rehome("topic", "create", name)
    fill(producer, name)
    known(stack, name)
    return name
