"""Random lives of a node (see `node_machine`): no promise is broken, whatever happens to its disks and when it dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.simulation.node_life import NodeLife
from tests.simulation.node_machine import NodeMachine
from tests.support.scale import FULL, scaled, tally

LIVES = 100
"""In each part. Parts differ in their seed and are the same in every run, so that they may be run beside each other,
and one that fails may be repeated by its number.
"""
PARTS = scaled(6, 100)
MUST_HAPPEN = {
    "moves made, queued", "copies, caught_up", "copies, stopped", "copies, failed", "cancels",
    "swaps, swapped", "swaps, behind", "batches", "starts", "clean stops", "kills", "power losses",
}  # fmt: skip


class CountedMachine(NodeMachine):
    """Counts its lives."""

    lived = 0

    def teardown(self) -> None:
        CountedMachine.lived += 1
        super().teardown()


@pytest.fixture(scope="module", autouse=True)
def _lives_are_full_of_what_they_are_about() -> Iterator[None]:
    before, lived = Counter(NodeLife.counts), CountedMachine.lived
    yield
    if CountedMachine.lived - lived >= 4 * LIVES:
        done = Counter(NodeLife.counts) - before
        assert not [what for what in MUST_HAPPEN if not done[what]], done


@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_in_random_lives(part: int) -> None:
    machine = seed(part)(type("Machine", (CountedMachine,), {}))
    before, lived = Counter(NodeLife.counts), CountedMachine.lived
    with tally("random lives of a node on simulated disks") as lives:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=LIVES,
                stateful_step_count=30,
                deadline=None,
                database=None,
                # Who repeats a failing part wants its shortest life; a run of all tests has no time for that.
                phases=[Phase.generate, Phase.shrink] if FULL else [Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
        lives.count += CountedMachine.lived - lived
    done = Counter(NodeLife.counts) - before
    with tally("times these nodes died") as deaths:
        deaths.count += done["kills"] + done["power losses"]
    with tally("swaps in these lives") as swaps:
        swaps.count += done["swaps, swapped"]
