"""Batches that take long wait for few threads: connections take turns, and what was given up is forgotten."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from storage_node.protocol.inspectors import Inspection, Inspectors
from tests.support.node_harness import until


class Bench:
    """Inspectors whose batches note their names, behind one that holds the only thread until `go`."""

    def __init__(self) -> None:
        self.inspectors = Inspectors(1)
        self.noted: list[str] = []
        self._held, self._begun = threading.Event(), threading.Event()

        def hold() -> None:
            self._begun.set()
            assert self._held.wait(20)

        self.inspectors.submit(Inspection("first", [hold], lambda: None))
        assert self._begun.wait(20)

    def submit(self, owner: str, *names: str) -> Inspection:
        inspection = Inspection(owner, [self._note(name) for name in names], self._note(f"{owner} done"))
        self.inspectors.submit(inspection)
        return inspection

    def _note(self, name: str) -> Callable[[], None]:
        return lambda: self.noted.append(name)

    def go(self, count: int) -> list[str]:
        self._held.set()
        until(lambda: len(self.noted) >= count)
        return self.noted


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.go(0)


def test_connections_take_turns_batch_by_batch(bench: Bench) -> None:
    bench.submit("a", "a1", "a2", "a3")
    bench.submit("b", "b1", "b2")
    assert bench.go(7) == ["a1", "b1", "a2", "b2", "b done", "a3", "a done"]


def test_connection_with_work_for_many_directories_has_one_turn(bench: Bench) -> None:
    for number in range(3):
        bench.submit("a", f"a{number}")
    bench.submit("b", "b0", "b1")
    assert [name for name in bench.go(7) if "done" not in name] == ["a0", "b0", "a1", "b1", "a2"]


def test_dropped_inspection_is_neither_looked_through_nor_done_nor_held(bench: Bench) -> None:
    class Records:
        pass

    records = Records()
    held = weakref.ref(records)
    dropped = Inspection("a", [lambda records=records: bench.noted.append(repr(records))] * 3, lambda: None)  # type: ignore[misc]
    del records
    bench.inspectors.submit(dropped)
    bench.submit("a", "a1")
    bench.submit("b", "b1")
    gc.disable()
    try:
        bench.inspectors.drop(dropped)
        assert held() is None
    finally:
        gc.enable()
    assert bench.inspectors.waiting == 2
    assert bench.go(4) == ["a1", "a done", "b1", "b done"]


def test_inspection_dropped_during_a_batch_ends_with_that_batch() -> None:
    inspectors, noted = Inspectors(1), list[str]()
    begun, held = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert held.wait(20)

    dropped = Inspection("a", [hold, lambda: noted.append("a2")], lambda: noted.append("a done"))
    inspectors.submit(dropped)
    assert begun.wait(20)
    inspectors.drop(dropped)
    inspectors.submit(Inspection("b", [], lambda: noted.append("b done")))
    held.set()
    until(lambda: noted)
    assert noted == ["b done"]


def test_batch_that_raises_does_not_end_the_threads(bench: Bench) -> None:
    def fail() -> None:
        raise RuntimeError("a defect")

    bench.inspectors.submit(Inspection("a", [fail], lambda: bench.noted.append("a done")))
    bench.submit("b", "b1")
    assert bench.go(3) == ["a done", "b1", "b done"]
