"""What may come in the place of what a handler expects: payloads that no program of ours sends."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from temporalio.api.common.v1 import Payload

from tests.support.runs.hand_activations import plain

_DEEP: Any = []
for _ in range(200):
    _DEEP = [_DEEP]

#: Values that take the place of any part of what is expected.
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    0.5,
    1 << 31,
    1 << 63,
    10**400,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    "one",
    "-1",
    "9" * 400,
    "None",
    "²",
    "/x\ud800",
    "a\0b",
    "☃" * 400,
    [],
    [None],
    [[1, 2], {"x": 1}],
    {},
    {"\ud800": "\udfff"},
    {"error": "x"},
    _DEEP,
)


def _raw(encoding: bytes | None, data: bytes, **metadata: bytes) -> Payload:
    held = {} if encoding is None else {"encoding": encoding}
    return Payload(metadata={**held, **metadata}, data=data)


#: Payloads that no converter takes, or only takes for something else than JSON.
UNDECODABLE: tuple[Payload, ...] = (
    _raw(None, b"{}"),
    _raw(b"json/plain", b"{"),
    _raw(b"json/plain", b""),
    _raw(b"json/plain", b"\xff\xfe"),
    _raw(b"json/plain", b"1" * 5_000),
    _raw(b"json/plain", b"[" * 100_000),
    _raw(b"json/plain", b'{"node": 1, "node": "x", "\\ud800": 1}'),
    _raw(b"json/protobuf", b"{}", messageType=b"no.such.Message"),
    _raw(b"binary/protobuf", b"\x00\x01", messageType=b"no.such.Message"),
    _raw(b"binary/plain", b"\x80"),
    _raw(b"binary/null", b""),
    _raw(b"binary/encrypted", b"\x80" * 32),
    _raw(b"\xff", b"{}"),
)


def arguments(example: Any = None) -> Iterator[tuple[Payload, ...]]:
    """Argument lists for one handler: of any number and kind, then all that is nearly its example."""
    yield ()
    yield from ((payload,) for payload in UNDECODABLE)
    yield from ((plain(value),) for value in VALUES)
    yield plain(example), plain(example)
    yield plain(example), UNDECODABLE[0], plain(None)
    yield plain(json.dumps(example)), *()
    for value in mutated(example):
        yield (plain(value),)


def mutated(example: Any) -> Iterator[Any]:
    """The example with each of its parts replaced by every value, left out, or doubled, and with a part too many."""
    for path in _paths(example):
        for value in VALUES:
            yield _with(example, path, value)
        if path:
            yield _without(example, path)
        held = _at(example, path)
        if isinstance(held, list) and held:
            yield _with(example, path, [*held, held[-1]])
        if isinstance(held, dict):
            yield _with(example, path, {**held, "one more": 1})


def _paths(value: Any) -> Iterator[tuple[Any, ...]]:
    yield ()
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from ((key, *rest) for rest in _paths(value[key]))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _with(value: Any, path: tuple[Any, ...], part: Any) -> Any:
    if not path:
        return part
    changed = copy.deepcopy(value)
    _at(changed, path[:-1])[path[-1]] = part
    return changed


def _without(value: Any, path: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(value)
    del _at(changed, path[:-1])[path[-1]]
    return changed
