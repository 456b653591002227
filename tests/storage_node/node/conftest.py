from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_harness import Harness, running


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    """A node with three log directories that runs for one test."""
    with running(tmp_path) as made:
        yield made
