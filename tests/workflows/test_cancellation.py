"""How a run has itself cancelled by the controller."""

from __future__ import annotations

from itertools import islice

from workflows.cancellation import retry_pauses


def test_retry_pauses_grow_up_to_the_maximum() -> None:
    """What it has not come to waits in its history: each request costs it work."""
    assert [int(pause.total_seconds()) for pause in islice(retry_pauses(), 6)] == [10, 20, 40, 60, 60, 60]
