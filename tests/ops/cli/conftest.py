"""One real stack for the tests that need it: Temporal, a controller, two nodes with three directories each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.stack import ports
from ops.stack.stack import Stack

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
