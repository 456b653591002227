"""kill -9 at every durable system call of every thread, each kill proved by strace's log."""

from __future__ import annotations

import itertools
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.crash import tracing, verify
from tests.crash.states import SCENARIOS, States
from tests.crash.tracing import KillPoint
from tests.support.scale import FULL, scaled, tally

#: In the small set: points of each of these.
SMALL = {("loaded", "move"): 9, ("loaded", "retarget"): 5, ("loaded", "delete"): 4, ("between", "finish"): 4}
SMALL[("nothing", "fresh")] = 3

TRIES = 4  # threads meet differently in every run: the n-th call of one may be another, or never come

pytestmark = [pytest.mark.timeout(1800 if FULL else 600), pytest.mark.usefixtures("strace")]


_DIGIT = re.compile(r"\d")


def alike(points: Sequence[KillPoint]) -> list[list[KillPoint]]:
    """Those of each kind: the same call of the same kind of thread on the same kind of file, in whatever directory; in
    the order in which they are to be tried.
    """
    kinds: dict[tuple[str, str], list[KillPoint]] = defaultdict(list)
    for point in points:
        kinds[_DIGIT.sub("", point.thread), _DIGIT.sub("", point.what)].append(point)
    chance = random.Random(20)
    return [chance.sample(same, len(same)) for _, same in sorted(kinds.items())]


def die(states: States, state: str, kind: Sequence[KillPoint], root: Path) -> bool:
    """Kill at a point of a kind, judge what is left; at another one if the kill was not there. False if none was."""
    for attempt in range(TRIES):
        point = kind[attempt % len(kind)]
        with states.case(state, root / f"{attempt}") as case:
            killed = tracing.kill(case.life(point.act), case.disks, point)
            try:
                verify.judge(case.paths, case.folder)
            except AssertionError as wrong:
                raise AssertionError(f"{state}: {point}, killed at {killed.proof!r}: {wrong}") from None
            if killed.proof:
                return True
    return False


@pytest.mark.feature("113-21", "113-22")
@pytest.mark.parametrize(("state", "act"), SCENARIOS if FULL else list(SMALL), ids=lambda value: str(value))
def test_killed_at_a_system_call(state: str, act: str, states: States, tmp_path: Path) -> None:
    with states.case(state, tmp_path / "recorded") as case:
        recorded = tracing.record(case.life(act), case.disks)
        verify.judge(case.paths, case.folder)
    kinds = alike(recorded)
    wanted = len(kinds)
    if not FULL:
        # (A kind that is not met again on a busy machine makes room for another.)
        wanted = SMALL[state, act]
        kinds = random.Random(20).sample(kinds, min(3 * wanted, len(kinds)))
    left, missed = iter(kinds), []
    with tally("kills at a system call under strace, each proved") as count, ThreadPoolExecutor(2) as pool:
        while more := list(itertools.islice(left, wanted - count.count)):
            jobs = [pool.submit(die, states, state, kind, tmp_path / f"{kinds.index(kind)}") for kind in more]
            missed += [kind[0] for kind, job in zip(more, jobs, strict=True) if not job.result()]
            count.count += sum(job.result() for job in jobs)
    print(f"{state} {act}: {len(recorded)} durable calls, {len(kinds)} kinds, {len(missed)} never met again: {missed}")
    assert count.count >= scaled(wanted // 2, wanted * 3 // 4), f"too few kills happened: {missed}"
