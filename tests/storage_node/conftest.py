from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.io_faults import Faults, install
from tests.support.nodes.node_harness import Harness, running


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """I/O errors at system calls, for one test."""
    installed = install(monkeypatch)
    yield installed
    installed.clear()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    """A node with three log directories that runs for one test."""
    with running(tmp_path) as made:
        yield made
