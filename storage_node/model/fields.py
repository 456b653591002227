"""Reading JSON strictly: every helper either returns a value of the right kind or raises with the path of the bad
field.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Characters of the sender's input in a message, which goes to logs and to failures, whose size Temporal limits.
LONGEST_TEXT = 1_000


class BadField(ValueError):
    """A field is missing, of the wrong kind, out of bounds or not known; `path` names it, as in `$[0].partition`.

    Both can be logged and sent, whatever input they repeat: see `shown`.
    """

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = shown(path), shown(problem)
        super().__init__(f"{self.path} {self.problem}")


@dataclass(frozen=True, slots=True)
class Undecoded:
    """In the place of a value that the converter cannot decode; parsers reject it. `why` is the converter's error."""

    why: str


def shown(text: str) -> str:
    """Return any text as UTF-8 can encode it, cut to a message's length."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}..."


def told(value: object) -> str:
    """How a message names a value of the wrong kind: a number as itself, so that 2.0 is seen; another by its kind."""
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else kind_of(value)


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
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, Undecoded):
        return f"a value that cannot be decoded ({value.why})"
    return "a list" if isinstance(value, list | tuple) else "bytes"


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
        raise BadField(path, f"must be a whole number, not {told(value)}")
    if not low <= value <= high:
        raise BadField(
            path, f"is {value}, but must be {'at least ' + str(low) if value < low else 'at most ' + str(high)}"
        )
    return value


def are_numbers(values: Sequence[Any], low: int = 0) -> bool:
    """Whether all of them are what `a_number` takes."""
    return all([type(value) is int and low <= value < 1 << 63 for value in values])


def numbers(value: Any, path: str, low: int = 0, high: int = (1 << 31) - 1) -> tuple[int, ...]:
    """A list of whole numbers within bounds: nodes, or partitions."""
    return tuple(a_number(each, f"{path}[{place}]", low, high) for place, each in enumerate(a_list(value, path)))


def a_string(value: Any, path: str, *, empty: bool = False) -> str:
    """A string, not empty unless allowed."""
    if not isinstance(value, str):
        raise BadField(path, f"must be a string, not {kind_of(value)}")
    if not value and not empty:
        raise BadField(path, "is empty")
    if not is_text(value):
        raise BadField(path, "is not text: it holds half of a surrogate pair")
    return value


def a_note(value: Any, path: str) -> str:
    """Any string, as UTF-8 can encode it: an error's message, or a path, may hold bytes that are not text."""
    if not isinstance(value, str):
        raise BadField(path, f"must be a string, not {kind_of(value)}")
    return value if is_text(value) else value.encode("utf-8", "backslashreplace").decode()


def is_text(value: str) -> bool:
    """Whether UTF-8 can encode it. JSON can hold halves of surrogate pairs, which nothing else accepts."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def a_measure(value: Any, path: str) -> float:
    """A finite number that is not negative, whole or not: bytes, seconds, rates."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadField(path, f"must be a number, not {kind_of(value)}")
    if not 0 <= value < 1 << 63 or not math.isfinite(value):
        raise BadField(path, f"is {value}, but must be at least 0 and below 2^63")
    return value


def a_flag(value: Any, path: str) -> bool:
    """True or false (or, in compact rows, 1 or 0)."""
    if value is True or value is False or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise BadField(path, f"must be true or false, not {told(value)}")
