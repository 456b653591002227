from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage_node.move.harness import Make, SmallNode


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
