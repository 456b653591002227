"""Parse and check Kafka's types of config values, with Kafka's error messages.

The messages are those of Apache Kafka's ConfigDef, word for word: people and scripts search for them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    """A value's type, as DescribeConfigs encodes it."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class BadValue(ValueError):
    """A value that is not valid for a config; the message is Kafka's."""

    def __init__(self, name: str, value: str, why: str) -> None:
        super().__init__(f"Invalid value {value} for configuration {name}: {why}")
        self.why = why


Value = bool | int | float | str | tuple[str, ...]

_WHOLE = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?")
_COMMA = re.compile(r"\s*,\s*")
_BLANK = "".join(map(chr, range(33)))
_BITS = {Kind.INT: 31, Kind.SHORT: 15, Kind.LONG: 63}


def read(name: str, text: str, kind: Kind) -> Value:
    """Return the value of a text; raises BadValue."""
    trimmed = text.strip(_BLANK)
    if kind is Kind.BOOLEAN:
        if trimmed.lower() not in ("true", "false"):
            raise BadValue(name, text, "Expected value to be either true or false")
        return trimmed.lower() == "true"
    if kind in _BITS:
        most = 1 << _BITS[kind]
        if not _WHOLE.fullmatch(trimmed) or len(trimmed) > 99 or not -most <= int(trimmed) < most:
            raise BadValue(name, text, f"Not a number of type {kind.name}")
        return int(trimmed)
    if kind is Kind.DOUBLE:
        if not _DOUBLE.fullmatch(trimmed):
            raise BadValue(name, text, "Not a number of type DOUBLE")
        return float(trimmed.rstrip("fFdD"))
    if kind is Kind.LIST:
        return tuple(_COMMA.split(trimmed)) if trimmed else ()
    return trimmed


def written(value: Value) -> str:
    """Return a value as Kafka formats it: what `read` accepts, in its plainest form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


@dataclass(frozen=True, slots=True)
class Range:
    """A number of at least `low` and, where given, at most `high`."""

    low: float
    high: float | None = None

    def check(self, name: str, value: Value) -> None:
        """Raise BadValue if the value is out of range."""
        assert isinstance(value, int | float)
        if value < self.low:
            raise BadValue(name, written(value), f"Value must be at least {self.low}")
        if self.high is not None and value > self.high:
            raise BadValue(name, written(value), f"Value must be no more than {self.high}")


@dataclass(frozen=True, slots=True)
class Level:
    """A number within bounds, or -1 for a codec's own level."""

    low: int
    high: int

    def check(self, name: str, value: Value) -> None:
        """Raise BadValue if the value is out of range."""
        assert isinstance(value, int)
        if value != -1 and not self.low <= value <= self.high:
            raise BadValue(name, str(value), f"Value must be between {self.low} and {self.high} or equal to -1")


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words, or a list of them."""

    words: tuple[str, ...]

    def check(self, name: str, value: Value) -> None:
        """Raise BadValue if the value, or an item of the list, is not one of the words."""
        for word in value if isinstance(value, tuple) else (str(value),):
            if word not in self.words:
                raise BadValue(name, word, f"String must be one of: {', '.join(self.words)}")


_PAIR = re.compile(r"([0-9]+:[0-9]+)?")


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """KIP-73's list of throttled replicas: `*`, or `partition:broker` pairs, or nothing."""

    def check(self, name: str, value: Value) -> None:
        """Raise BadValue for anything else."""
        assert isinstance(value, tuple)
        if all(_PAIR.fullmatch(item) for item in value) or "".join(value) == "*":
            return
        form = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        why = f"{name} must be the literal '*' or a list of replicas in the following format: {form}"
        raise BadValue(name, listed(value), why)


Rule = Range | Level | OneOf | ThrottledReplicas


def listed(items: Sequence[str]) -> str:
    """Return items as Java formats a list."""
    return f"[{', '.join(items)}]"
