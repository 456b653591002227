"""Power cuts on ext4 and XFS: at failpoints, at random times under load, of both disks and of one alone.

What was acknowledged and flushed is there after it, whatever was going on.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from storage_node import failpoints
from tests.crash import driver, verify
from tests.crash.disks import Disk, Switch, disks, power_off_and_on
from tests.crash.driver import CUT, READY, Cut, Life
from tests.support.nodes.node_harness import until
from tests.support.scale import FULL, scaled, tally

CUTS = scaled(4, 100)  # on each file system
CHAIN = scaled(4, 10)  # cuts on the same disks, one after the other; then new ones
SEED = 20261121

#: Steps that a life under load comes by again and again.
MOMENTS = [
    name
    for prefix in (
        "create.",
        "copy.",
        "swap.",
        "delete.",
        "cancel.",
        "discard.",
        "atomic.",
        "checkpoint.",
        "partition_",
        "log.",
    )
    for name in failpoints.registered(prefix)
    if name not in ("atomic.removed", "log.replace_after_segment")
]

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(1800 if FULL else 600),
]


@dataclass(frozen=True, slots=True)
class Plan:
    """One power cut: at the `after`-th pass of `point`, or (without one) `seconds` after the load began.

    `lost` are the disks that go; a node that loses one alone lives on for a while. `frozen`: the node stands still
    when its disks go, so that they go at the same step.
    """

    seed: int
    point: str
    after: int
    seconds: float
    lost: tuple[int, ...]
    frozen: bool


def plan(kind: str, number: int) -> Plan:
    """The `number`-th cut, the same in every run; what is not at a failpoint still depends on time."""
    seed = zlib.crc32(f"{SEED} {kind} {number}".encode())
    chance = random.Random(seed)
    lost = ((0, 1), (1, 0), (0,), (1,))[chance.choices(range(4), [4, 4, 1, 1])[0]]
    # All moments in their turn, each second cut; the other half at random times.
    point = MOMENTS[(number // 2 * 7) % len(MOMENTS)] if number % 2 else ""
    return Plan(seed, point, chance.randint(1, 3), chance.uniform(0.0, 0.8), lost, chance.random() < 0.5)


def cut(made: list[Disk], life: Life, planned: Plan) -> str:
    """Let a life run into a power cut; answers what came of the plan."""
    process = driver.start(life)
    mounts = tuple(made[index].mount_point for index in planned.lost)
    switch = Switch(mounts)
    try:
        # A moment may come while the node still starts, or never.
        until(lambda: (life.folder / READY).exists() or (life.folder / CUT).exists(), 60, "the node is at work")
        if planned.point:
            happened = _at_point(life, process)
            if happened:
                time.sleep(0.0 if len(mounts) == len(made) else planned.seconds / 2)
                return happened
        time.sleep(planned.seconds)
        if planned.frozen:
            _freeze(process)
        switch.cut()
        if len(mounts) < len(made):
            if planned.frozen:
                _signal(process, signal.SIGCONT)
            time.sleep(planned.seconds / 2)
        return "at a time"
    finally:
        process.kill()
        process.join()
        switch.close()


def _at_point(life: Life, process: BaseProcess, seconds: float = 6.0) -> str:
    """Wait for the cut that the life makes itself; "" when it does not come by that point."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        alive = process.is_alive()  # asked first: a life that says so and dies may do both between two lines here
        if (life.folder / CUT).exists():
            if life.cut is not None and life.cut.dies:
                process.join(60)
                assert process.exitcode == -signal.SIGKILL
            return f"at {life.cut.point if life.cut else ''}"
        assert alive, f"the life ended: {process.exitcode}"
        time.sleep(0.001)
    return ""


def _signal(process: BaseProcess, number: signal.Signals) -> None:
    """Nothing, if the cut has come at a failpoint meanwhile and the node has died with its disks."""
    assert process.pid is not None
    if process.is_alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _freeze(process: BaseProcess) -> None:
    _signal(process, signal.SIGSTOP)
    stat = Path(f"/proc/{process.pid}/stat")
    until(lambda: not stat.exists() or _state(stat) in "TZX", 60, "the node stands still")


def _state(stat: Path) -> str:
    with contextlib.suppress(OSError):
        return stat.read_text().rpartition(")")[2].split()[0]
    return "X"


def chain(kind: str, first: int, count: int, folder: Path) -> int:
    """So many power cuts on the same two disks; answers how many happened."""
    out = folder / "out"
    with disks(kind, folder) as made:
        paths = [str(made[index].mount_point / name) for index, name in ((0, "d0"), (1, "d1"), (0, "d2"))]
        begun = driver.start(Life(paths, out, "fresh"))
        begun.join(120)
        assert begun.exitcode == 0
        for number in range(first, first + count):
            planned = plan(kind, number)
            life = Life(paths, out, "storm", seed=planned.seed)
            if planned.point:
                mounts = tuple(made[index].mount_point for index in planned.lost)
                life = replace(life, cut=Cut(planned.point, planned.after, mounts, len(mounts) == len(made)))
            happened = cut(made, life, planned)
            power_off_and_on(made, check=FULL and number % 5 == 0)
            # As the cut left it, for a look when the judgement fails.
            shutil.copytree(out, folder / f"out-{number}")
            for path in paths:
                shutil.copytree(path, folder / f"left-{number}" / Path(path).name)
            began = time.monotonic()
            try:
                verify.judge(paths, out, power=True)
                print(f"{kind} cut {number}: {happened}, {planned}, judged in {time.monotonic() - began:.1f} s")
            except AssertionError as wrong:
                raise AssertionError(f"{kind}, cut {number} ({happened}), {planned}: {wrong}") from None
            shutil.rmtree(folder / f"out-{number}")
            shutil.rmtree(folder / f"left-{number}")
    return count


@pytest.mark.feature("113-21", "113-22")
@pytest.mark.parametrize("first", range(0, CUTS, CHAIN))
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_power_cut(kind: str, first: int, loop_disk_of: Callable[[str], None], tmp_path: Path) -> None:
    loop_disk_of(kind)
    with tally(f"power cuts on {kind}") as count:
        count.count = chain(kind, first, CHAIN, tmp_path)
