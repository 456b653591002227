"""Times and tables that tests of the analytics share."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.runs.histories import T0

if TYPE_CHECKING:
    from tests.ops.analytics.ingested import Made


def at(seconds: float) -> datetime:
    """So many seconds after the histories' beginning."""
    return T0 + timedelta(seconds=seconds)


@pytest.fixture(scope="session")
def made(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The tables of one ingest; tests only read them."""
    from tests.ops.analytics.ingested import make

    return make(spark, tmp_path_factory.mktemp("exports"), tmp_path_factory.mktemp("lake") / "tables")
