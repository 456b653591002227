from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.storage_node.move.harness import SmallNode
from tests.support.node_harness import Harness, running

Make = Callable[..., SmallNode]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Starts small nodes on the same directories; the one before must have been closed."""
    nodes: list[SmallNode] = []

    def build(**options: object) -> SmallNode:
        nodes.append(SmallNode(tmp_path, **options))  # type: ignore[arg-type]
        return nodes[-1]

    yield build
    for node in nodes:
        node.close()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    """A node with three log directories."""
    with running(tmp_path, extra={"file.delete.delay.ms": "100"}) as made:
        yield made
