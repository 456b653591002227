"""The page about results is what the classes print, and has what each workflow returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest
from temporalio.workflow import _Definition

import workflows
from ops.docs import results
from ops.docs.results import RETURNED

PAGE = Path(results.__file__).with_name("results.md")


def test_page_is_what_the_command_prints() -> None:
    assert PAGE.read_text() == results.page(), "print it again: python -m ops.docs.results > ops/docs/results.md"


#: What the controller never returns to people: it has no result, and its update `submit` is the nodes'.
INTERNAL = {("Cluster", "run"), ("Cluster", "submit")}


def test_every_result_query_and_update_of_a_run_is_on_the_page() -> None:
    shown = {(each.workflow, each.request.partition(" ")[2].strip("`") or "run"): each.kind for each in RETURNED}
    found = {}
    for kind in (*workflows.ALL, *workflows.PLANS):
        known = _Definition.must_from_class(kind)
        for name in ("run", "progress", "describe", *filter(None, known.updates)):
            if (method := vars(kind).get(name)) is not None and (kind.__name__, name) not in INTERNAL:
                hint = get_type_hints(method)["return"]
                # `handlers.update` wraps its handler, whose response is then of any type.
                found[kind.__name__, name] = shown.get((kind.__name__, name)) if hint is Any else hint
    assert found == shown


def test_classes_of_the_page_are_named_once() -> None:
    names = [kind.__name__ for kind in results.kinds()]
    assert sorted(names) == sorted(set(names))
    modules = [vars(module) for module in results.MODULES]
    for name in names:
        made = {module[name] for module in modules if name in module}
        assert len(made) == 1, f"{name} is the name of several classes"


@pytest.mark.parametrize("kind", results.kinds())
def test_classes_and_their_fields_are_on_the_page(kind: type) -> None:
    table = PAGE.read_text().partition(f"### {kind.__name__}\n")[2].partition("###")[0]
    assert [line.split(" ")[1] for line in table.splitlines() if line.startswith("| ")][1:] == list(
        kind.__dataclass_fields__
    )
