"""Other limits for the steps of workflows, so that tests need not wait for those of `workflows.step_specs`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from workflows.model import calls
from workflows.step_specs import SPECS, StepSpec

#: The short steps of a move.
SHORT = (calls.CREATE_MOVE, calls.SWAP, calls.CANCEL_MOVE, calls.DELETE_REPLICA)


def limited(*activities: str, **limits: Any) -> Iterator[tuple[str, StepSpec]]:
    """Yield the rows of these activities with other limits; `limits` are fields of `StepSpec`."""
    for activity in activities:
        yield activity, replace(SPECS[activity], **limits)


def limit(monkeypatch: pytest.MonkeyPatch, *activities: str, **limits: Any) -> None:
    """Change the rows of these activities until the end of the test."""
    for activity, spec in limited(*activities, **limits):
        monkeypatch.setitem(SPECS, activity, spec)
