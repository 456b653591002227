"""Memory that is free goes back to the system: when that is tried, and that it works."""

from __future__ import annotations

import subprocess
import sys

import pytest

from storage_node.lifecycle import memory
from storage_node.lifecycle.memory import LONGEST, SHORTEST, SPARE, Reclaimer


class Process:
    """A process: so many bytes are in use, so many are free and kept."""

    def __init__(self, used: int) -> None:
        self.used, self.kept, self.trims = used, 0, 0

    def resident(self) -> int:
        return self.used + self.kept

    def trim(self) -> None:
        self.kept = 0
        self.trims += 1


def made(used: int = 100 << 20) -> tuple[Process, Reclaimer]:
    process = Process(used)
    return process, Reclaimer(process.resident, process.trim)


def test_little_free_memory_is_kept() -> None:
    process, reclaimer = made()
    process.kept = SPARE - 1
    assert reclaimer.look(1.0) == 0 and process.trims == 0


def test_much_free_memory_is_given_back_at_once() -> None:
    process, reclaimer = made()
    process.kept = 300 << 20
    assert reclaimer.look(1.0) == 300 << 20 and process.resident() == 100 << 20


def test_memory_in_use_is_looked_at_ever_more_seldom_and_freed_in_the_end() -> None:
    process, reclaimer = made()
    process.used += 300 << 20
    for second in range(600):
        reclaimer.look(float(second))
    assert 600 / LONGEST <= process.trims <= 600 / LONGEST + 6
    process.used, process.kept = 100 << 20, 300 << 20
    assert sum(reclaimer.look(600.0 + second) for second in range(int(LONGEST) + 1)) == 300 << 20
    process.kept = SPARE
    reclaimer.look(700.0)
    process.kept = SPARE
    reclaimer.look(700.0 + SHORTEST)
    assert process.kept == 0, "after success the next attempt comes soon"


PROGRAM = """
import threading, time
from storage_node.lifecycle import memory

def fill():
    global kept
    blocks = [bytes(100_000) for _ in range(2_000)]
    kept = blocks[::50]

reclaimer = memory.reclaimer()
before = memory.resident()
thread = threading.Thread(target=fill)
thread.start()
thread.join()
reclaimer.look(time.monotonic())
print(memory.resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc_trim")
def test_what_another_thread_has_freed_between_blocks_in_use_is_given_back() -> None:
    if memory._malloc_trim() is None:
        pytest.skip("the C library has no malloc_trim")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) < 20 << 20, "4 MB are in use, 200 MB were"
