"""Reading JSON strictly: every helper either answers a value of the right kind or raises with the path of the bad
field.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any


class BadField(ValueError):
    """A field is missing, of the wrong kind, out of bounds or not known; `path` says which, as in `$[0].partition`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path
        self.problem = problem


def kind_of(value: object) -> str:
    """How a person calls a JSON value's kind."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, Mapping) else "a list"


def an_object(value: Any, path: str, known: Collection[str] | None = None) -> Mapping[str, Any]:
    """An object; with `known`, one without other fields."""
    if not isinstance(value, Mapping):
        raise BadField(path, f"must be an object, not {kind_of(value)}")
    for name in value:
        if known is not None and name not in known:
            raise BadField(f"{path}.{name}", f"is not known; known are {', '.join(sorted(known))}")
    return value


def a_list(value: Any, path: str) -> Sequence[Any]:
    """A list."""
    if not isinstance(value, list | tuple):
        raise BadField(path, f"must be a list, not {kind_of(value)}")
    return value


def need(holder: Mapping[str, Any], name: str, path: str) -> Any:
    """A field that must be there."""
    if name not in holder:
        raise BadField(f"{path}.{name}", "is missing")
    return holder[name]


def a_number(value: Any, path: str, low: int = 0, high: int = (1 << 63) - 1) -> int:
    """A whole number within bounds; neither a boolean nor a fraction."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadField(path, f"must be a whole number, not {kind_of(value)}")
    if not low <= value <= high:
        raise BadField(
            path, f"is {value}, but must be {'at least ' + str(low) if value < low else 'at most ' + str(high)}"
        )
    return value


def are_numbers(values: Sequence[Any], low: int = 0) -> bool:
    """Whether all of them are what `a_number` takes."""
    return all([type(value) is int and low <= value < 1 << 63 for value in values])


def a_string(value: Any, path: str, *, empty: bool = False) -> str:
    """A string, not empty unless allowed."""
    if not isinstance(value, str):
        raise BadField(path, f"must be a string, not {kind_of(value)}")
    if not value and not empty:
        raise BadField(path, "is empty")
    return value


def a_flag(value: Any, path: str) -> bool:
    """True or false (or, in compact rows, 1 or 0)."""
    if value is True or value is False or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise BadField(path, f"must be true or false, not {kind_of(value)}")
