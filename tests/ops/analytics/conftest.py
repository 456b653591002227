"""One Spark for all tests of the analytics; starting it costs seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ops.analytics.errors import JavaMissing
from ops.analytics.session import find_java, spark_session
from tests.support.histories import T0


def need(problem: str) -> None:
    """Skip with a reason where something is not installed; where CI is set everything has to be."""
    if os.environ.get("CI"):
        pytest.fail(problem)
    pytest.skip(problem)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    try:
        find_java()
    except JavaMissing as problem:
        need(str(problem))
    with spark_session(Path(tmp_path_factory.mktemp("spark"))) as session:
        yield session


def at(seconds: float) -> datetime:
    """So many seconds after the histories' beginning."""
    return T0 + timedelta(seconds=seconds)
