"""The limiter keeps its mean, reacts within a second, and lets the lower of two rates hold."""

from __future__ import annotations

import heapq
import math
import statistics
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.move.throttle import MAX_CHUNK, MIN_CHUNK, RateLimiter, chunk_size

MB = 1_000_000


class FakeClock:
    """Time that only sleeping moves; each sleep takes a little longer than asked."""

    def __init__(self, oversleep: float = 0.0) -> None:
        self.now = 0.0
        self.oversleep = oversleep

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.oversleep


class SharedClock:
    """Time of several threads, which goes on when all of them sleep."""

    def __init__(self, threads: int) -> None:
        self.now = 0.0
        self._awake = threads
        self._wakes: list[float] = []
        self._changed = threading.Condition()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self._changed:
            wake = self.now + seconds
            heapq.heappush(self._wakes, wake)
            self._fall_asleep()
            while self.now < wake:
                assert self._changed.wait(20)

    def leave(self) -> None:
        with self._changed:
            self._fall_asleep()

    def _fall_asleep(self) -> None:
        self._awake -= 1
        if self._awake or not self._wakes:
            return
        self.now = self._wakes[0]
        while self._wakes and self._wakes[0] <= self.now:
            heapq.heappop(self._wakes)
            self._awake += 1
        self._changed.notify_all()


class Writes:
    """Chunks written under a limiter by some movers in turn, with the moment at which each was on its way."""

    def __init__(self, rate: int, movers: int, clock: FakeClock) -> None:
        self.rate, self.clock, self.movers = rate, clock, movers
        self.limiter = RateLimiter(rate, clock)
        self.chunk = chunk_size(rate)
        self.seen: list[tuple[float, int]] = []

    def run(self, seconds: float, stall: float = 0.0, every: float = math.inf) -> None:
        """Write for some seconds; every so often a disk stalls all movers in the middle of their writes."""
        end, next_stall = self.clock.now + seconds, self.clock.now + every
        while self.clock.now < end:
            stalls = self.clock.now >= next_stall
            # While a disk stalls each mover has one chunk on its way; else what was acquired is written at once.
            held = []
            for _ in range(self.movers if stalls else 1):
                self.limiter.acquire(self.chunk)
                held.append(self.clock.now)
            if stalls:
                next_stall += every
                self.clock.now += stall
            for since in held:
                self.clock.now += self.chunk / (2000 * MB)
                self.seen.append((self.clock.now, self.chunk))
                self.limiter.wrote(self.chunk, since)

    def mean(self, since: float = 0.0) -> float:
        return sum(count for at, count in self.seen if at > since) / (self.clock.now - since) / self.rate

    def busiest(self, window: float) -> float:
        """The most that was written within `window` seconds, as a multiple of the rate."""
        most = inside = first = 0
        for at, count in self.seen:
            inside += count
            while self.seen[first][0] <= at - window:
                inside -= self.seen[first][1]
                first += 1
            most = max(most, inside)
        return most / window / self.rate


@pytest.mark.conformance(194)
@pytest.mark.feature("113-10", "113-37")
@pytest.mark.parametrize("movers", [1, 4])
@pytest.mark.parametrize("rate", [1 * MB, 20 * MB, 200 * MB])
def test_mean_and_peaks_hold_also_on_a_disk_that_stalls_and_after_an_idle_time(rate: int, movers: int) -> None:
    writes = Writes(rate, movers, FakeClock(oversleep=0.0003))
    writes.run(30, stall=0.05, every=5.0)
    assert writes.mean() == pytest.approx(1, rel=0.01)
    writes.clock.now += 60
    idle_until = writes.clock.now
    writes.run(30, stall=0.1, every=11.0)
    assert writes.mean(idle_until) == pytest.approx(1, rel=0.01)
    assert writes.busiest(1.0) <= 1.05
    assert writes.busiest(0.1) <= 2


def test_long_stall_is_made_up_for_slowly() -> None:
    writes = Writes(20 * MB, 1, FakeClock())
    writes.run(90, stall=0.4, every=45.0)
    assert writes.mean() == pytest.approx(1, rel=0.002)
    assert writes.busiest(1.0) <= 1.05
    assert writes.busiest(10.0) <= 1.012


@pytest.mark.parametrize(("movers", "write"), [(1, 0.0045), (4, 0.014)])
def test_disk_whose_writes_all_take_long_is_not_late(movers: int, write: float) -> None:
    """It would be throttled below the rate for ever."""
    clock = SharedClock(movers)
    limiter, chunk = RateLimiter(200 * MB, clock), chunk_size(200 * MB)
    sent = [0] * movers

    def run(number: int) -> None:
        while clock.now < 10:
            limiter.acquire(chunk)
            since = clock.now
            clock.sleep(write)  # the disk at work
            limiter.wrote(chunk, since)
            sent[number] += chunk
        clock.leave()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(movers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(sent) / clock.now == pytest.approx(200 * MB, rel=0.01)


@pytest.mark.feature("113-10")
def test_mean_in_real_time_over_several_threads() -> None:
    limiter, chunk = RateLimiter(20 * MB), 256 << 10
    passed: list[float] = []
    began = time.monotonic()

    def run() -> None:
        while time.monotonic() - began < 1.5:
            limiter.acquire(chunk)
            passed.append(time.monotonic())

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    assert len(passed) * chunk / seconds / (20 * MB) < 1.05
    # Not much slower either: most chunks come when they should. A pause of the machine holds up a few of them for
    # long, which nobody makes up for.
    passed.sort()
    usual = statistics.median(after - before for before, after in pairwise(passed))
    assert usual < chunk / (0.7 * 20 * MB)


@pytest.mark.conformance(194)
@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=20), st.integers(MB, 1000 * MB))
def test_never_more_than_the_rate_and_one_burst(chunks: list[int], rate: int) -> None:
    clock = FakeClock()
    limiter = RateLimiter(rate, clock)
    sent = 0
    for chunk in chunks:
        limiter.acquire(chunk)
        sent += chunk
        assert rate * clock.now - 1 <= sent <= rate * (clock.now + 0.0201) + 1 or clock.now == 0


def test_idle_time_is_not_saved_up() -> None:
    clock = FakeClock()
    limiter = RateLimiter(1 * MB, clock)
    clock.now = 3600
    for _ in range(10):
        limiter.acquire(MB)
    assert clock.now - 3600 == pytest.approx(10, abs=0.05)


@pytest.mark.feature("113-37")
def test_change_of_rate_reaches_a_sleeping_thread_within_a_second() -> None:
    class Changing(FakeClock):
        """Somebody else takes the limit away in the middle of a sleep."""

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.now > 500:
                limiter.set_rate(None)

    clock = Changing()
    limiter = RateLimiter(1, clock)  # a byte a second holds a move practically still
    limiter.acquire(1 << 20)
    assert 500 < clock.now < 501


def test_stopping_ends_the_wait_uncharged() -> None:
    clock = FakeClock()
    limiter = RateLimiter(1000, clock)
    assert limiter.acquire(10**9, lambda: True) == 0.0
    assert limiter.acquire(1000) == pytest.approx(1.0, abs=0.05)


def test_new_rate_holds_for_the_rest() -> None:
    clock = FakeClock()
    limiter = RateLimiter(1000, clock)

    def later() -> bool:
        if clock.now >= 5:
            limiter.set_rate(5000)
        return False

    limiter.acquire(10_000, later)
    assert clock.now == pytest.approx(6, abs=0.2)


def test_time_from_a_new_rate_to_the_first_chunk_is_not_saved_up() -> None:
    clock = FakeClock()
    limiter = RateLimiter(None, clock)
    limiter.acquire(1)
    limiter.set_rate(MB)
    clock.now += 0.4  # the move is only being made
    for _ in range(100):
        limiter.acquire(100_000)
    assert clock.now == pytest.approx(0.4 + 10, abs=0.02)


def test_unlimited_never_sleeps() -> None:
    clock = FakeClock()
    limiter = RateLimiter(None, clock)
    assert sum(limiter.acquire(1 << 30) for _ in range(100)) == 0.0


@pytest.mark.parametrize("rate", [0, -5])
def test_no_rate_is_not_zero(rate: int) -> None:
    with pytest.raises(ValueError, match="rate"):
        RateLimiter(rate)


def test_chunks() -> None:
    assert chunk_size(None, None) == MAX_CHUNK
    assert chunk_size(1 * MB, None) == MIN_CHUNK
    assert chunk_size(200 * MB, 16 * MB) == 19 * 4096
    assert chunk_size(20 * MB) <= 200_000
    assert chunk_size(10_000 * MB) == MAX_CHUNK


@pytest.mark.feature("113-59")
def test_chunks_are_bounded() -> None:
    """By replica.fetch.max.bytes, in whole blocks; a rate's own chunk stays where it is smaller."""
    assert chunk_size(None, most=1_000_000) == 1_000_000 // 4096 * 4096
    assert chunk_size(200 * MB, most=50_000) == 12 * 4096
    assert chunk_size(1 * MB, most=1_000_000) == MIN_CHUNK
    assert chunk_size(None, most=0) == 4096
