"""The node dies at every failpoint that any module declares, and comes back with all that it promised."""

from __future__ import annotations

import importlib
import pkgutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import storage_node
from storage_node import failpoints
from tests.crash import driver, verify
from tests.crash.driver import PASSED
from tests.crash.states import SCENARIOS, States
from tests.support.scale import FULL, tally

for module in pkgutil.walk_packages(storage_node.__path__, "storage_node."):
    importlib.import_module(module.name)

#: Not those of a stopped broker's disks, which no node passes (tests/ops/disks/test_crashes.py stops there), nor those
#: of tests.
POINTS = [name for name in failpoints.registered() if not name.startswith(("offline.", "test."))]

#: These are killed at in tests/storage_node/move/test_crash.py in every run; here, too, in a full one.
ELSEWHERE = ("create.", "copy.", "swap.", "delete.", "cancel.", "undo.", "boot.", "stop.", "discard.")

#: Of a small file's steps those between which its content changes hands.
STEPS = ("flushed", "removal", "removed", "fsync_dir", "properties_written")

#: A `.delete` that is gone within a second is not settled any more: see tests/storage_node/move/test_crash.py.
MAY_BE_MISSED = {"swap.after_source_settled"}

#: Where a log or a marker is between two states on the disk.
WITHIN = ("log.", "marker.")

SMALL = [
    name for name in POINTS if name.startswith(WITHIN) or (name.endswith(STEPS) and not name.startswith(ELSEWHERE))
]


@pytest.fixture(scope="module")
def passes(states: States, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    """Failpoint -> the scenarios that pass it."""
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in POINTS}
    for state, act in SCENARIOS:
        if state in ("nothing", "loaded", "between") or FULL:
            with states.case(state, tmp_path_factory.mktemp("passes") / "case") as case:
                process = driver.start(replace(case.life(act), note=True))
                process.join(120)
                assert process.exitcode == 0
                for name in (case.folder / PASSED).read_text().split():
                    found[name].append((state, act))
    return found


def test_every_failpoint_is_passed_by_a_life(passes: dict[str, list[tuple[str, str]]]) -> None:
    """A name that is new needs an act (tests/crash/driver.py) that comes by it."""
    missed = {name for name, scenarios in passes.items() if not scenarios}
    assert missed <= MAY_BE_MISSED


@pytest.mark.feature("113-21")
@pytest.mark.parametrize("name", POINTS if FULL else SMALL)
def test_killed_at_a_failpoint(
    name: str, passes: dict[str, list[tuple[str, str]]], states: States, tmp_path: Path
) -> None:
    with tally("kills at a failpoint, the whole node") as count:
        for index, (state, act) in enumerate(passes[name]):
            with states.case(state, tmp_path / str(index)) as case:
                process = driver.start(case.life(act, f"{name}=kill"))
                process.join(120)
                # Which of two threads comes first differs, and what is done every so many seconds comes in a long life
                # only: a scenario that passed it once may pass it after its end.
                assert process.exitcode in (-signal.SIGKILL, 0), process.exitcode
                count.count += process.exitcode == -signal.SIGKILL
                verify.judge(case.paths, case.folder)
            if count.count and not FULL:
                break
        assert count.count or name in MAY_BE_MISSED, f"{name} was passed by {passes[name]}, and by none of them again"
