"""How a run has itself cancelled by the controller."""

from __future__ import annotations

from itertools import islice

from workflows.cancellation import again_after


def test_a_silent_controller_is_asked_ever_more_rarely() -> None:
    """What it has not come to waits in its history: each request costs it work."""
    assert [int(pause.total_seconds()) for pause in islice(again_after(), 6)] == [10, 20, 40, 60, 60, 60]
