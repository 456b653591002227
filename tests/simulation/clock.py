"""Time that stands still until somebody moves it, or sleeps."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["SimulatedClock"]

_BEGIN = 1_700_000_000.0  # the wall clock at the beginning, seconds since the epoch


class SimulatedClock:
    """Stands in for the functions of `time`, and for a limiter's clock; `sleep` passes at once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slept: Callable[[float], None] | None = None
        """Told of every sleep, before it passes."""

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds

    def now_ms(self) -> int:
        """The wall clock in milliseconds."""
        return self.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return self.seconds

    def monotonic_ns(self) -> int:
        return round(self.seconds * 1e9)

    def time(self) -> float:
        return _BEGIN + self.seconds

    def time_ns(self) -> int:
        return round(_BEGIN * 1e9) + self.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        if self.slept is not None:
            self.slept(seconds)
        self.seconds += max(0.0, seconds)
