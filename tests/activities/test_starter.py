"""What becomes of a `.move` by what became of its run."""

from __future__ import annotations

import pytest
from temporalio.client import WorkflowExecutionStatus as Status

from activities.starter import Fate, RunFacts, decide


def run(run_id: str, status: Status, first: str = "") -> RunFacts:
    return RunFacts(run_id, first or run_id, status)


@pytest.mark.feature("113-21")
@pytest.mark.parametrize(
    ("status", "fate"),
    [
        (Status.RUNNING, Fate.LEAVE),
        (Status.CANCELED, Fate.CANCEL),
        (Status.TERMINATED, Fate.CANCEL),
        (Status.FAILED, Fate.ADOPT),
        (Status.COMPLETED, Fate.ADOPT),
        (Status.TIMED_OUT, Fate.ADOPT),
    ],
)
def test_by_status(status: Status, fate: Fate) -> None:
    assert decide(run("r", status), run("r", status)) is fate


def test_an_unknown_run_is_adopted() -> None:
    assert decide(None, None) is Fate.ADOPT
    assert decide(None, run("another", Status.RUNNING)) is Fate.ADOPT


def test_a_later_run_of_the_same_id_counts_only_if_it_continues_the_first() -> None:
    terminated = run("a", Status.TERMINATED)
    assert decide(terminated, run("b", Status.RUNNING)) is Fate.CANCEL
    assert decide(terminated, run("b", Status.RUNNING, first="a")) is Fate.LEAVE
