"""Each run of the controller decides by one version of the rules, and hands the newest on to the next run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workflows.model.controller.test_controller import batch, serving
from tests.workflows.model.support import create, new_id, registration
from workflows.model.calls import ImageResult
from workflows.model.controller.controller import Controller
from workflows.model.metadata import image, rules


@pytest.fixture
def _newer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "RULES", 3)


def rules_of(it: Controller) -> int:
    assert it.state is not None and it.state.rules == it.rules == it.describe().rules
    return it.rules


@pytest.mark.usefixtures("_newer")
def test_run_keeps_its_rules_and_the_next_one_has_the_newest() -> None:
    it = serving()
    assert rules_of(it) == rules.FIRST
    it.submit(batch(1, create("t"), pair=it.pair), new_id)
    assert rules_of(it) == rules.FIRST
    assert rules_of(Controller.start("c", it.carry())) == 3


@pytest.mark.usefixtures("_newer")
@pytest.mark.parametrize(
    ("parameter", "version"), [(None, 1), ({}, 1), ({"continue_at": [1, 2]}, 1), ({"rules": 2}, 2)]
)
def test_run_decides_by_the_rules_of_its_parameter(parameter: Any, version: int) -> None:
    it = Controller.start("c", parameter)
    it.submit(batch(1, registration(1)), new_id)
    assert rules_of(it) == version


@pytest.mark.usefixtures("_newer")
def test_recovered_metadata_has_the_rules_of_the_run() -> None:
    it = Controller.start("c", {"rules": 2})
    it.submit(batch(1, registration(1)), new_id)
    assert it.state is not None
    (held,) = image.whole(it.state)
    assert it.pushed(1, ImageResult(9, 9, "i1"), it.pair), "the node knows more: it collects"
    assert it.state is None
    it.submit(batch(1, registration(1) | {"image": held}, pair=(9, 9)), new_id)
    assert rules_of(it) == 2


@pytest.mark.parametrize("unknown", [0, rules.RULES + 1, "1", True, None])
def test_unknown_rules_are_rejected(unknown: Any) -> None:
    with pytest.raises(ValueError, match=r"version .* of the rules, this program knows"):
        Controller.start("c", {"rules": unknown})
