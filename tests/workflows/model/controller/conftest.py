from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def own_time() -> Iterator[None]:
    """What tests before have left in this process is not looked through by the garbage collector at this one's cost."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
