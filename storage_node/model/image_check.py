"""Whether what an image holds has the types and bounds that its readers work with. Pure.

A node's disks may hold anything, and the controller keeps what it accepts from there: a string in place of a number
would fail in a comparison much later.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from storage_node.model import fields

_LONG = 1 << 63
_INTS, _STRINGS = frozenset({int}), frozenset({str})


def damaged(what: str, found: Any) -> ValueError:
    """The error for content that is not what an image holds there."""
    return ValueError(f"a cluster image with a damaged row in {what}: {fields.shown(repr(found))[:200]}")


def is_number(value: Any, low: int = 0) -> bool:
    """Whether it is a whole number within bounds, and no boolean."""
    return type(value) is int and low <= value < _LONG


def are_numbers(values: Collection[Any], low: int = 0) -> bool:
    """Whether all are what `is_number` takes."""
    return not values or (_INTS.issuperset(map(type, values)) and min(values) >= low and max(values) < _LONG)


def is_text(value: Any) -> bool:
    """Whether it is a string that UTF-8 can encode."""
    return type(value) is str and (value.isascii() or fields.is_text(value))


def are_texts(values: Collection[Any]) -> bool:
    """Whether all are what `is_text` takes."""
    return _STRINGS.issuperset(map(type, values)) and ("".join(values).isascii() or all(map(is_text, values)))


def is_list(value: Any, least: int) -> bool:
    """Whether it is a list with so many elements or more."""
    return type(value) is list and len(value) >= least


def is_configs(value: Any) -> bool:
    """Whether it maps text to text."""
    return type(value) is dict and are_texts(value.keys()) and are_texts(value.values())
