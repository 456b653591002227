"""How the tests are spread over processes: groups stay whole, and what needs the machine alone has it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.parallel import ALONE, GROUPS, Spread, group_of
from tests.support.tables import ROOT


class Process:
    """What the scheduler sees of one: runs what it was sent, and holds the last back until it knows what follows."""

    def __init__(self) -> None:
        self.queue: list[int] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def ready(self) -> bool:
        return len(self.queue) > (0 if self.shutting_down else 1)


def some(path: str, count: int) -> list[str]:
    return [f"{path}::test_{number}" for number in range(count)]


def started(tests: list[str], count: int = 2) -> tuple[Spread, list[Process]]:
    config: Any = SimpleNamespace(getvalue=lambda name: ["popen"] * count)
    spread, processes = Spread(config), [Process() for _ in range(count)]
    for process in processes:
        spread.add_node(process)  # type: ignore[arg-type]
        spread.add_node_collection(process, tests)  # type: ignore[arg-type]
    spread.schedule()
    return spread, processes


ALL = [
    *some("tests/e2e/test_torture.py", 3),
    *some("tests/conformance/test_groups.py", 4),
    *some("tests/conformance/apis/test_data.py", 3),
    *some("tests/workflows/test_replay.py", 2),
    *some("tests/workflows/test_cluster.py", 1),
    *some("tests/storage_node/test_config.py", 5),
]


@pytest.mark.parametrize("first", [0, 1])
def test_each_test_runs_once_groups_in_one_process_and_what_needs_it_alone(first: int) -> None:
    spread, processes = started(ALL)
    ran: list[tuple[str, Process]] = []
    left = list(processes)
    while left:
        at = next((p for p in (left if first == 0 else left[::-1]) if p.ready), None)
        if at is not None:
            test = ALL[at.queue.pop(0)]
            if group_of(test) == ALONE:
                assert len(left) == 1, "the others have ended, with all that they had started"
            ran.append((test, at))
            spread.mark_test_complete(at, ALL.index(test))  # type: ignore[arg-type]
            continue
        ended = next(p for p in left if p.shutting_down)
        assert spread.remove_node(ended) is None  # type: ignore[arg-type]
        left.remove(ended)
    assert sorted(test for test, _ in ran) == sorted(ALL)
    assert len({(group_of(test), id(process)) for test, process in ran}) == len({group_of(test) for test in ALL})
    assert spread.tests_finished and not spread.has_pending


def test_what_a_process_died_in_is_not_tried_again_and_the_rest_is() -> None:
    spread, (one, other) = started(ALL)
    died_in = ALL[one.queue[0]]
    assert spread.remove_node(one) == died_in  # type: ignore[arg-type]
    successor = Process()
    spread.add_node(successor)  # type: ignore[arg-type]
    spread.add_node_collection(successor, ALL)  # type: ignore[arg-type]
    spread.schedule()
    ran = []
    left = [other, successor]
    while left:
        at = next((p for p in left if p.ready), None)
        if at is None:
            ended = next(p for p in left if p.shutting_down)
            spread.remove_node(ended)  # type: ignore[arg-type]
            left.remove(ended)
            continue
        ran.append(ALL[at.queue.pop(0)])
        spread.mark_test_complete(at, ALL.index(ran[-1]))  # type: ignore[arg-type]
    assert sorted(ran) == sorted(set(ALL) - {died_in})


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_has_its_files(group: str) -> None:
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    for pattern in GROUPS[group]:
        assert any(fnmatchcase(file, pattern) for file in files), pattern
