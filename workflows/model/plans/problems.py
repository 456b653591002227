"""All mistakes of an input at once: operators correct a plan in one go, not one field at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from storage_node.model import fields
from storage_node.model.fields import BadField

#: Mistakes that the message of `PlanProblems` shows; the exception has all of them.
SHOWN = 20
_LONGEST = 300

_P = ParamSpec("_P")
_T = TypeVar("_T")


class PlanProblems(BadField):
    """All mistakes of an input, in the order of its fields; `path` and `problem` are those of the first one."""

    def __init__(self, problems: Sequence[BadField]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems[0].path, self.problems[0].problem)
        if len(self.problems) > 1:
            shown = "; ".join(_cut(str(each)) for each in self.problems[:SHOWN])
            more = f"; and {len(self.problems) - SHOWN} more" if len(self.problems) > SHOWN else ""
            self.args = (f"{len(self.problems)} mistakes: {shown}{more}",)

    def __reduce__(self) -> tuple[Any, ...]:
        return PlanProblems, (self.problems,)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


class Problems:
    """The mistakes found so far. A reader continues with the next field after a mistake."""

    def __init__(self) -> None:
        self.found: list[BadField] = []

    def add(self, path: str, problem: str) -> None:
        """Record a mistake."""
        self.found.append(BadField(path, problem))

    def read(self, reader: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        """Return what a reader returns, or None after recording what it raised."""
        try:
            return reader(*args, **kwargs)
        except PlanProblems as several:
            self.found += several.problems
        except BadField as bad:
            self.found.append(bad)
        return None

    def object(self, value: Any, path: str, known: Collection[str], needed: Collection[str] = ()) -> Mapping[str, Any]:
        """Return an object after recording its unknown, repeated and missing fields; an empty one for other values."""
        row: Mapping[str, Any] | None = self.read(fields.an_object, value, path)
        if row is None:
            return {}
        for name in getattr(row, "repeated", ()):
            self.add(f"{path}.{name}", "appears twice in its object")
        for name in row:
            if name not in known:
                self.add(f"{path}.{name}", f"is not known; known are {', '.join(sorted(known))}")
        for name in needed:
            if name not in row:
                self.add(f"{path}.{name}", "is missing")
        return row

    def finish(self) -> None:
        """Raise `PlanProblems` if there was a mistake."""
        if self.found:
            raise PlanProblems(self.found)


class Decoded(dict[str, Any]):
    """A JSON object that remembers the fields which the text has twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        seen: dict[str, int] = {}
        if len(self) < len(pairs):
            for name, _ in pairs:
                seen[name] = seen.get(name, 0) + 1
        self.repeated = tuple(name for name, count in seen.items() if count > 1)
