"""The phases of a run: what it was at, from when until when."""

from __future__ import annotations

from typing import Any

#: The phase of a run that has ended.
ENDED = "ended"
#: The phase of a paused run, and the field of its memo that is set while it is paused.
PAUSED = "paused"


class Phases:
    """A phase begins when the run enters it, and ends when the run enters another one or none. Seconds, noted to the
    millisecond.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[str, float, float | None]] = []

    def enter(self, phase: str | None, now: float) -> None:
        """The run is in this phase from now on, or (None) in none any more."""
        now = round(now, 3)
        if self._rows and self._rows[-1][2] is None:
            if self._rows[-1][0] == phase:
                return
            self._rows[-1] = (*self._rows[-1][:2], now)
        if phase is not None:
            self._rows.append((phase, now, None))

    @property
    def current(self) -> str:
        """The phase that the run is in; "" before the first one, `ENDED` after the last."""
        if not self._rows:
            return ""
        name, _, end = self._rows[-1]
        return name if end is None else ENDED

    def rows(self) -> list[list[Any]]:
        """[phase, begin, end] each, as a run's result has them; the end of the current one is None."""
        return [list(row) for row in self._rows]
