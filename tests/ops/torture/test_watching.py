"""A watch beside a run goes on until it is stopped, and one that fails is no evidence that all was well."""

from __future__ import annotations

import threading

import pytest

from ops.torture.watching import Watch


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_look_that_fails_is_told_and_the_others_go_on() -> None:
    looked = threading.Semaphore(0)

    def fails() -> None:
        raise AttributeError("odd")

    watch = Watch({"bad watch": fails, "good watch": looked.release}, 0.001)
    watch.start()
    assert all(looked.acquire(timeout=10) for _ in range(3))
    while not watch.problems:
        assert looked.acquire(timeout=10)
    watch.stop()
    assert watch.problems == ["the bad watch ended: AttributeError('odd')"]
