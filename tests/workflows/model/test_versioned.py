"""Results keep their fields over the data converter, and a reader knows a format that is newer than itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from temporalio.converter import DataConverter

from ops.docs.results import RETURNED
from storage_node.model.fields import BadField
from workflows.model import results
from workflows.model.run_progress import MoveProgress
from workflows.model.run_results import Paused, ThrottleHeld
from workflows.model.versioned import Versioned

CODEC = DataConverter.default.payload_converter
KINDS = sorted({each.kind for each in RETURNED}, key=lambda kind: kind.__name__)
PLAIN: Mapping[Any, Any] = {str: "text", int: 3, float: 2.5, bool: True, Any: {"1": "x"}}


def example(hint: Any) -> Any:
    """Return a value of a type with every field set and every list filled."""
    if hint in PLAIN:
        return PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return example(next(each for each in arguments if each is not NoneType))
    if origin is tuple:
        return tuple(map(example, arguments))
    if origin is list:
        return [example(arguments[0])]
    if origin in (dict, Mapping):
        return {example(arguments[0]): example(arguments[1])}
    if is_dataclass(hint):
        known = get_type_hints(hint)
        names = [each.name for each in fields(hint) if each.name != "format_version"]
        return hint(**{name: example(known[name]) for name in names})  # type: ignore[operator]
    return next(iter(hint))  # of an enum


def read(kind: type[Versioned], value: Any) -> Any:
    return CODEC.from_payload(CODEC.to_payload(value), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_result_is_the_same_after_the_data_converter(kind: type[Versioned]) -> None:
    value = example(kind)
    written = json.loads(CODEC.to_payload(value).data)
    assert written == json.loads(json.dumps(asdict(value)))
    assert read(kind, value) == value


def test_unknown_fields_of_a_newer_program_are_ignored() -> None:
    assert read(ThrottleHeld, {"format_version": 1, "held": True, "weather": "fair"}) == ThrottleHeld(True)


def test_newer_format_is_rejected() -> None:
    with pytest.raises(ValueError, match="Paused has format 2, but this program reads up to 1"):
        read(Paused, {"format_version": 2, "paused": True})
    for reader in (results.moved, results.applied, results.probed, results.exported):
        with pytest.raises(BadField, match=r"\$.format_version is 2, but this program reads up to 1"):
            reader({"format_version": 2})


def test_missing_field_is_rejected() -> None:
    with pytest.raises(TypeError, match="missing"):
        read(MoveProgress, {"format_version": 1, "node": 1})
