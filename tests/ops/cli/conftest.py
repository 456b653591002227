"""One real stack for the tests that need it: Temporal, a controller, two nodes with three directories each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from ops.cli import main as cli
from ops.stack import ports
from ops.stack.stack import Stack

Rehome = Callable[..., Any]

#: One copying thread, so that a second move waits for the first.
THREADS = "\nnum.replica.alter.log.dirs.threads=1\n"


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    data = tmp_path_factory.mktemp("stack")
    made = Stack(data)
    made.make_folder()
    first = ports.free_block(4, start=23000)
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
        assert found == code, shown.err
        if code != 0:
            return shown.err.strip().splitlines()[-1]
        return shown.out if table else json.loads(shown.out)

    return run


@pytest.fixture
def producer(stack: Stack) -> Producer:
    return Producer({"bootstrap.servers": stack.spec().bootstrap, "acks": "all", "log_level": 0})


def fill(producer: Producer, topic: str, count: int = 600) -> None:
    """So many records of 10 kB."""
    for number in range(count):
        producer.produce(topic, value=number.to_bytes(4, "big") * 2500, partition=0)
        producer.poll(0)
    assert producer.flush(30) == 0


@pytest.fixture
def topic(rehome: Rehome, producer: Producer) -> str:
    """A topic of one partition with 6 MB."""
    name = f"t{uuid4().hex[:8]}"
    rehome("topic", "create", name)
    fill(producer, name)
    return name
