"""The page about a move's phases is what the transition table prints."""

from __future__ import annotations

import re
from pathlib import Path

from ops.docs import moves
from storage_node.model.moves import Event, Phase
from workflows.model.move.moves import TRANSITIONS

PAGE = Path(moves.__file__).with_name("moves.md")


def test_page_is_what_the_command_prints() -> None:
    assert PAGE.read_text() == moves.page(), "print it again: python -m ops.docs.moves > ops/docs/moves.md"


def test_diagram_has_every_transition_and_no_other() -> None:
    drawn = set()
    for before, after, events in re.findall(r"^    (\w+) --> (\w+): (.*)$", moves.diagram(), re.MULTILINE):
        drawn |= {(Phase(before), Event(event), Phase(after)) for event in events.split(", ")}
    assert drawn == {(phase, event, then.phase) for (phase, event), then in TRANSITIONS.items()}
