"""kill -9 between the two renames of a swap, aimed at with renames that take long.

Kafka 4.3.1 does not come back from this: it finds two directories of one name.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from storage_node.directories.names import move_name, replica_name
from storage_node.model.ids import TopicPartition
from tests.crash import driver, tracing, verify
from tests.crash.states import Case, States
from tests.crash.subject import TOPIC
from tests.support.scale import FULL, scaled, tally

TP = TopicPartition(TOPIC, 0)
SLOW = 0.06  # seconds that a rename takes before it is done, and again after that

pytestmark = [pytest.mark.timeout(1800 if FULL else 600), pytest.mark.usefixtures("strace")]


def standing(case: Case, name: str) -> list[str]:
    """The directories in which something of that name stands."""
    return [path for path in case.paths if (Path(path) / name).exists()]


def between(case: Case) -> bool:
    """The old name is gone, the new one is not there: only the sealed copy and a `.delete` are."""
    return not standing(case, replica_name(TP)) and len(standing(case, move_name(TP))) == 1


def aim(case: Case, process: BaseProcess, after: float) -> None:
    """Kill the node `after` seconds from the moment in which the replica's own name is gone."""
    while process.is_alive() and standing(case, replica_name(TP)):
        time.sleep(0.0002)
    time.sleep(after)
    process.kill()
    process.join()


def round_(states: States, root: Path, after: float) -> bool:
    """One round; answers whether the kill came between the renames. What it leaves is judged in any case."""
    with states.case("loaded", root) as case:
        life = replace(case.life("move"), trace=("main", 0))
        process = driver.start(life)
        with tracing.slowed(life, process, "renameat2", SLOW):
            aim(case, process, after)
        hit = between(case)
        try:
            verify.judge(case.paths, case.folder)
        except AssertionError as wrong:
            raise AssertionError(f"killed {after * 1000:.1f} ms after the first rename: {wrong}") from None
        return hit


@pytest.mark.feature("113-21")
def test_killed_between_the_renames_it_comes_back(states: States, tmp_path: Path) -> None:
    chance, wanted = random.Random(17), scaled(6, 200)
    tried = 0
    with tally("kills between the two renames of a swap") as count, ThreadPoolExecutor(2) as pool:
        while count.count < wanted:
            assert tried < 6 * wanted, f"only {count.count} of {tried} kills came between the renames"
            times = [chance.uniform(0, 1.5 * SLOW) for _ in range(min(10, wanted - count.count))]
            jobs = [pool.submit(round_, states, tmp_path / f"{tried + i}", t) for i, t in enumerate(times)]
            tried += len(jobs)
            count.count += sum(job.result() for job in jobs)
    print(f"{count.count} of {tried} kills came between the renames")
