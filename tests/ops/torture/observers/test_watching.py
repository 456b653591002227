"""A watch runs until it is stopped, and reports a thread that an error has ended."""

from __future__ import annotations

import threading

import pytest

from ops.torture.observers.watching import Observers


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_failed_thread_is_reported_and_the_others_continue() -> None:
    looked = threading.Semaphore(0)

    def fails() -> None:
        raise AttributeError("odd")

    watch = Observers({"bad watch": fails, "good watch": looked.release}, 0.001)
    watch.start()
    assert all(looked.acquire(timeout=10) for _ in range(3))
    while not watch.problems:
        assert looked.acquire(timeout=10)
    watch.stop()
    assert watch.problems == ["the bad watch ended: AttributeError('odd')"]
