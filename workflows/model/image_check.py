"""Whether the content of an image has the shape that the controller works with. Pure.

A node's disks may hold anything, and the controller keeps what it accepts from there: a string in place of a number
would fail in a comparison much later. Written for speed: an image has tens of thousands of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from workflows.model import fields

_LONG = 1 << 63


def check(content: Mapping[str, Any]) -> None:
    """Raise ValueError unless all rows are whole and of the right types; rows may have more fields than these."""
    _need(_text(content["cluster"]), "cluster", content["cluster"])
    for name in ("generation", "version", "from"):
        _need(_number(content[name]), name, content[name])
    for name, fits in _ROWS.items():
        rows = content[name]
        _need(type(rows) is list, name, rows)
        for row in rows:
            _need(fits(row), name, row)


def _need(fits: bool, what: str, found: Any) -> None:
    if not fits:
        raise ValueError(f"a cluster image with a damaged row in {what}: {fields.shown(repr(found))[:200]}")


def _number(value: Any, low: int = 0) -> bool:
    return type(value) is int and low <= value < _LONG


def _numbers(value: Any) -> bool:
    return type(value) is list and all(type(each) is int and 0 <= each < _LONG for each in value)


def _text(value: Any) -> bool:
    return type(value) is str and (value.isascii() or fields.is_text(value))


def _texts(value: Iterable[Any]) -> bool:
    return all(map(_text, value))


def _list(value: Any, least: int) -> bool:
    return type(value) is list and len(value) >= least


def _configs(value: Any) -> bool:
    return type(value) is dict and _texts(value) and _texts(value.values())


def _topic(row: Any) -> bool:
    return (
        _list(row, 4)
        and _texts(row[:2])
        and _configs(row[2])
        and type(row[3]) is list
        and all(_partition(each) and each[0] == place for place, each in enumerate(row[3]))
    )


def _partition(row: Any) -> bool:
    return (
        _list(row, 11)
        and _number(row[0])
        and all(map(_numbers, row[1:5]))
        and bool(row[1])
        and type(row[5]) is list
        and _texts(row[5])
        and _numbers(row[6])
        and len(row[1]) == len(set(row[1])) == len(row[5]) == len(row[6])
        and _numbers(row[7])
        and set(row[7]) <= set(row[1])
        and all(type(each) is int and -1 <= each < _LONG for each in row[8:11])
        and (len(row) == 11 or (type(row[11]) is list and all(map(_offline, row[11]))))
    )


def _offline(row: Any) -> bool:
    return type(row) is list and len(row) in (2, 3) and _number(row[0]) and _texts(row[1:])


def _node(row: Any) -> bool:
    return (
        _list(row, 7)
        and _number(row[0])
        and _text(row[1])
        and _number(row[2])
        and _text(row[3])
        and _number(row[4])
        and type(row[5]) is list
        and all(_list(each, 3) and _texts(each[:2]) and each[2] in (0, 1) for each in row[5])
        and row[6] in (0, 1)
        and (len(row) < 8 or _text(row[7]))
    )


def _gone(row: Any) -> bool:
    return type(row) is list and len(row) == 2 and _texts(row)


def _config(row: Any) -> bool:
    return type(row) is list and len(row) == 3 and _texts(row[:2]) and _configs(row[2])


_ROWS: Mapping[str, Callable[[Any], bool]] = {
    "topics": _topic,
    "gone": _gone,
    "nodes": _node,
    "configs": _config,
}
