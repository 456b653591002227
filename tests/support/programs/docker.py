"""A Docker engine for tests: skipped with a reason where there is none, a failure in CI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ops.images import base
from ops.images.engine import NoEngine, engine
from tests.support.needs import need


@contextmanager
def docker_with_base() -> Iterator[str]:
    """An engine that has the base image, while the block runs; answers the image's tag."""
    try:
        with engine():
            yield base.ensure(print)
    except (NoEngine, base.NoImage) as problem:
        need("docker", str(problem))
