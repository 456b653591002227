"""Times that tests of the analytics share."""

from __future__ import annotations

from datetime import datetime, timedelta

from tests.support.histories import T0


def at(seconds: float) -> datetime:
    """So many seconds after the histories' beginning."""
    return T0 + timedelta(seconds=seconds)
