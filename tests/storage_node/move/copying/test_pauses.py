"""Large copies give way to a swap that holds its lock, shortly and seldom; a swap waits for nobody for long."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from storage_node.model.ids import TopicPartition
from storage_node.move.copying import copier, pauses
from storage_node.move.copying.pauses import Pauses
from tests.storage_node.move.harness import SmallNode, eventually


def test_copy_pauses_while_a_swap_requests_it_and_continues_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "LONGEST", 60.0)
    shared, went_on = Pauses(), threading.Event()

    def copy() -> None:
        shared.give_way()
        went_on.set()

    thread = threading.Thread(target=copy)
    with shared.asked():
        thread.start()
        assert not went_on.wait(0.05)
    assert went_on.wait(30)
    thread.join()


def test_copy_does_not_wait_for_a_swap_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "SHARE", 1000)  # however late it is called again, it has just paused
    shared = Pauses()
    with shared.asked():
        began = time.monotonic()
        shared.give_way()
        assert time.monotonic() - began >= pauses.LONGEST
        monkeypatch.setattr(pauses, "LONGEST", 60.0)
        began = time.monotonic()
        shared.give_way()
        assert time.monotonic() - began < 30


def test_swap_waits_for_what_is_on_its_way_but_not_for_a_disk_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, ended = Pauses(), threading.Event()

    def write() -> None:
        with shared.working():
            ended.wait(60)

    thread = threading.Thread(target=write)
    thread.start()
    eventually(lambda: shared._busy == 1)
    began = time.monotonic()
    with shared.asked():
        assert pauses.SETTLE <= time.monotonic() - began < 30
    monkeypatch.setattr(pauses, "SETTLE", 60.0)
    threading.Timer(0.01, ended.set).start()
    with shared.asked():
        assert ended.is_set()
    thread.join()


@pytest.mark.parametrize("size", ["large", "small"])
def test_only_a_large_copy_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    monkeypatch.setattr(copier, "LARGE", 10_000 if size == "large" else 10_000_000)
    monkeypatch.setattr(pauses, "LONGEST", 20.0)
    node = SmallNode(tmp_path)
    try:
        tp = TopicPartition("t", 0)
        node.add()
        node.fill(100)
        with node.engine._movers.pauses.asked():
            claim = node.engine.create(tp, node.path("b")).claim
            node.engine.start_copy(tp, claim)
            settled = node.engine.wait(tp, claim, 0.5 if size == "large" else 20).state.under_way
            assert settled is (size == "large")
        assert not node.engine.wait(tp, claim, 20).state.under_way
        assert node.engine.swap(tp, claim).outcome == "swapped"
    finally:
        node.close()
