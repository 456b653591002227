"""A Docker engine for tests: skipped with a reason where there is none, a failure in CI."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ops.images import base
from ops.images.engine import NoEngine, engine


@contextmanager
def docker_with_base() -> Iterator[str]:
    """An engine that has the base image, while the block runs; answers the image's tag."""
    try:
        with engine():
            yield base.ensure(print)
    except (NoEngine, base.NoImage) as problem:
        if os.environ.get("CI"):
            pytest.fail(f"CI needs containers: {problem}")
        pytest.skip(str(problem))
