"""One real stack for the tests that need it: Temporal, a controller, two nodes with three directories each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.stack import ports
from ops.stack.stack import Stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    data = tmp_path_factory.mktemp("stack")
    made = Stack(data)
    made.make_folder()
    first = ports.free_block(4, start=23000)
    try:
        made.prepare({"nodes": 2, "dirs": 3, "port": first, "temporal_port": first + 2})
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def data(stack: Stack) -> Path:
    stack.up()  # whatever an earlier test has killed
    return stack.data
