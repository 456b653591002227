"""The phases of a run, each with its begin and end."""

from __future__ import annotations

from workflows.model.run_results import Span

#: The phase of a run that has ended.
ENDED = "ended"
#: The phase of a paused run, and the field of its memo that is set while it is paused.
PAUSED = "paused"


class Phases:
    """A phase begins when the run enters it, and ends when the run enters another one or none. Times are epoch seconds,
    rounded to milliseconds.
    """

    def __init__(self) -> None:
        self._rows: list[Span] = []

    def enter(self, phase: str | None, now: float) -> None:
        """Enter a phase, or (None) end the last one."""
        now = round(now, 3)
        if self._rows and self._rows[-1][2] is None:
            if self._rows[-1][0] == phase:
                return
            name, begin, _ = self._rows[-1]
            self._rows[-1] = name, begin, now
        if phase is not None:
            self._rows.append((phase, now, None))

    @property
    def current(self) -> str:
        """Return the phase that the run is in; "" before the first one, `ENDED` after the last."""
        if not self._rows:
            return ""
        name, _, end = self._rows[-1]
        return name if end is None else ENDED

    def spans(self) -> list[Span]:
        """Return the phases as a run's result has them."""
        return list(self._rows)
