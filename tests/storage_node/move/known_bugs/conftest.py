from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nodes.node_harness import Harness, running


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    """A node with three log directories."""
    with running(tmp_path, extra={"file.delete.delay.ms": "100"}) as made:
        yield made
