from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.io_faults import Faults, install


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """I/O errors at system calls, for one test."""
    installed = install(monkeypatch)
    yield installed
    installed.clear()
