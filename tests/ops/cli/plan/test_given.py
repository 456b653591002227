"""The options that plans' commands have in common."""

from __future__ import annotations

from typing import Any

import pytest

from ops.cli.plan import given
from ops.stack.errors import UsageError
from workflows.model.plans.options import PlanOptions, read


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ({"throttle_between_brokers": "20MB", "deadline": None}, PlanOptions(throttle_between_brokers=20_000_000)),
        ({"health_gate": False}, PlanOptions(health_gate=False)),
        ({"approval": "none"}, PlanOptions()),
        ({}, PlanOptions()),
    ],
    ids=["what is given", "the health gate", "no approval", "nothing"],
)
def test_options_of_a_command_line(values: dict[str, Any], options: PlanOptions) -> None:
    assert given.read(given.chosen(**values)) == options


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("throttle_between_brokers", 1_000_000),
        ("throttle_between_directories", 1_000_000),
        ("window", "22:00-06:00 UTC"),
        ("deadline", "2030-01-01T00:00:00+00:00"),
    ],
)
@pytest.mark.parametrize("word", ["none", "None "])
def test_none_resets_an_option(name: str, before: Any, word: str) -> None:
    held = PlanOptions(**{name: before})
    assert read(held.as_json() | given.chosen(**{name: word})) == PlanOptions()


def test_invalid_option_is_named() -> None:
    with pytest.raises(UsageError, match=r"the options are not valid: .*window"):
        given.read(given.chosen(window="at night"))
