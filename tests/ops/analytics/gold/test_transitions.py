"""The transitions that the workflow's own table allows."""

from __future__ import annotations

from ops.analytics.gold.transitions import NO_STEP, allowed


def test_step_follows_its_outcome_or_a_request_between() -> None:
    table = allowed()
    assert ("copying", "caught_up", "swapping") in table
    assert ("copying", "caught_up", "cancelling") in table  # a cancel came between
    assert ("copying", "caught_up", "creating") in table  # another target was set between
    assert ("swapping", "swapped", "deleting") in table  # the timer fired
    assert ("creating", "failed_with_copy", "cancelling") in table
    assert ("deleting", "deleted", NO_STEP) in table


def test_step_that_the_outcome_does_not_lead_to_is_forbidden() -> None:
    table = allowed()
    assert ("creating", "created", "deleting") not in table
    assert ("swapping", "swapped", "copying") not in table
    assert ("deleting", "deleted", "swapping") not in table
    assert ("copying", "deleted", NO_STEP) not in table
