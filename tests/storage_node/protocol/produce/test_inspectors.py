"""Expensive batches share few threads: connections take turns by cost, and dropped inspections are released."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from storage_node.protocol.produce.inspectors import Inspection, Inspectors
from tests.support.nodes.node_harness import until


class Owner:
    """Represents a connection."""


class Bench:
    """Inspectors whose batches record their names, after a batch that blocks the only thread until `go`."""

    def __init__(self) -> None:
        self.spent = 0.0  # seconds of processor time
        self.inspectors = Inspectors(1, lambda: self.spent)
        self.noted: list[str] = []
        self.owners: dict[str, Owner] = {}
        self._held, self._begun = threading.Event(), threading.Event()

        def hold() -> None:
            self._begun.set()
            assert self._held.wait(20)

        self.inspectors.submit(Inspection(self.owner("first"), [hold], lambda: None))
        assert self._begun.wait(20)

    def owner(self, name: str) -> Owner:
        return self.owners.setdefault(name, Owner())

    def submit(self, owner: str, *names: str, cost: float = 0.0) -> Inspection:
        batches = [self._note(name, cost) for name in names]
        inspection = Inspection(self.owner(owner), batches, self._note(f"{owner} done"))
        self.inspectors.submit(inspection)
        return inspection

    def _note(self, name: str, cost: float = 0.0) -> Callable[[], None]:
        def note() -> None:
            self.spent += cost
            self.noted.append(name)

        return note

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


def test_connection_with_cheap_batches_waits_for_no_expensive_ones(bench: Bench) -> None:
    for number in range(8):
        bench.submit(f"heavy{number}", *("heavy",) * 3, cost=0.5)
    bench.submit("light", *("light",) * 5, cost=0.002)
    noted = bench.go(8 * 4 + 6)
    before = noted[: noted.index("light done")]
    assert before == ["heavy"] * 8 + ["light"] * 5  # all were new: no connection's cost was known


def test_idle_connection_accumulates_no_credit(bench: Bench) -> None:
    bench.submit("busy", *("busy",) * 10, cost=0.5)
    bench.go(11)
    bench.submit("idle", *("idle",) * 3, cost=0.5)
    bench.submit("busy", *("busy",) * 3, cost=0.5)
    noted = [name for name in bench.go(11 + 8)[11:] if "done" not in name]
    assert noted != ["idle"] * 3 + ["busy"] * 3
    assert noted[0] == "idle" and noted.index("busy") <= 2


def test_closed_connection_is_released(bench: Bench) -> None:
    bench.submit("a", "a1", cost=0.5)
    bench.go(2)
    gone = weakref.ref(bench.owners.pop("a"))
    until(lambda: gc.collect() >= 0 and gone() is None)


def test_connection_with_work_for_many_directories_has_one_turn(bench: Bench) -> None:
    for number in range(3):
        bench.submit("a", f"a{number}")
    bench.submit("b", "b0", "b1")
    assert [name for name in bench.go(7) if "done" not in name] == ["a0", "b0", "a1", "b1", "a2"]


def test_dropped_inspection_is_neither_run_nor_done_nor_held(bench: Bench) -> None:
    class Records:
        pass

    records = Records()
    held = weakref.ref(records)
    dropped = Inspection(
        bench.owner("a"), [lambda records=records: bench.noted.append(repr(records))] * 3, lambda: None
    )  # type: ignore[misc]
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
    inspectors, noted, one = Inspectors(1), list[str](), Owner()
    begun, held = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert held.wait(20)

    dropped = Inspection(one, [hold, lambda: noted.append("a2")], lambda: noted.append("a done"))
    inspectors.submit(dropped)
    assert begun.wait(20)
    inspectors.drop(dropped)
    inspectors.submit(Inspection(Owner(), [], lambda: noted.append("b done")))
    held.set()
    until(lambda: noted)
    assert noted == ["b done"]


def test_batch_that_raises_does_not_end_the_threads(bench: Bench) -> None:
    def fail() -> None:
        raise RuntimeError("a defect")

    bench.inspectors.submit(Inspection(bench.owner("a"), [fail], lambda: bench.noted.append("a done")))
    bench.submit("b", "b1")
    assert bench.go(3) == ["a done", "b1", "b done"]
