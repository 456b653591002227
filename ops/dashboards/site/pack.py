"""Tables as compact scripts, which a page loads from a folder as well as from a server.

A table is stored by column: texts as indices into their distinct values, and sorted numbers as differences. The JSON of
it is deflated and written as base64 in a script: a page from a folder may load scripts, but no files of data. Pure.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, log10
from typing import Any

#: Decimals of a number that is not an integer.
DECIMALS = 3
#: Digits of a figure, where not all of them count: pages show three.
DIGITS = 5


@dataclass(frozen=True, slots=True)
class Packed:
    """A table of a site: its rows, and the columns by name, as `column` makes them."""

    rows: int
    columns: Mapping[str, Mapping[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Return the value that the page reads."""
        return {"rows": self.rows, "columns": dict(self.columns)}


def pack(names: Sequence[str], rows: Iterable[Sequence[Any]], figures: Collection[str] = ()) -> Packed:
    """Return the rows as columns of these names; those in `figures` are rounded to `DIGITS` digits."""
    values: list[list[Any]] = [[] for _ in names]
    for row in rows:
        for column_of, value in zip(values, row, strict=True):
            column_of.append(value)
    for name, column_of in zip(names, values, strict=True):
        if name in figures:
            column_of[:] = map(significant, column_of)
    return Packed(len(values[0]) if values else 0, {n: column(v) for n, v in zip(names, values, strict=True)})


def significant(value: Any) -> Any:
    """Return a number rounded to `DIGITS` digits, and at most `DECIMALS` decimals."""
    if not value:
        return value
    return _rounded(round(float(value), min(DECIMALS, DIGITS - 1 - floor(log10(abs(value))))))


def millionths(value: float | None) -> int | None:
    """Return a fraction in millionths, rounded down: a page never rounds up to 100 % what is below it."""
    if value is None:
        return None
    found = floor(value * 1e6 + 1e-3)
    return min(found, 999_999) if value < 1 else found


def column(values: Sequence[Any]) -> dict[str, Any]:
    """Return one column: {"of": texts, "at": indices}, or {"plus": differences}, or {"is": values}.

    Texts that are None have the index -1. Numbers become differences where none is None and they do not fall.
    """
    if any(isinstance(value, str) for value in values):
        places: dict[str, int] = {}
        at = [-1 if value is None else places.setdefault(str(value), len(places)) for value in values]
        return {"of": list(places), "at": at}
    numbers = [_rounded(value) for value in values]
    if len(numbers) > 1 and None not in numbers and all(b >= a for a, b in pairwise(numbers)):
        differences = [_rounded(b - a) for a, b in pairwise(numbers)]
        return {"plus": [numbers[0], *differences]}
    return {"is": numbers}


def _rounded(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return None if value is None else int(value)
    number = round(value, DECIMALS)
    return int(number) if number == int(number) else number


def script(name: str, value: Any) -> str:
    """Return a script that hands the value to the page under a name. Its text has no character to be escaped."""
    text = json.dumps(value, separators=(",", ":")).encode()
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = base64.b64encode(packer.compress(text) + packer.flush()).decode()
    return f'rehome.receive("{name}","{packed}");\n'


def unpack(text: str) -> Any:
    """Return the value of a script."""
    packed = text.split('","', 1)[1].removesuffix('");\n')
    return json.loads(zlib.decompress(base64.b64decode(packed), -zlib.MAX_WBITS))
