"""Print the transition table of a move as a page: `python -m ops.docs.moves > ops/docs/moves.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from storage_node.model.moves import Event, Phase
from workflows.model.move.moves import STEPS, TRANSITIONS, UNEXPECTED

_HEAD = """# The phases of a move

`MoveReplica` takes each of its replicas through these phases. The page is printed from the table in
`workflows/model/move/moves.py` by `python -m ops.docs.moves > ops/docs/moves.md`; the words are those of
`storage_node/model/moves.py`.
"""


def diagram() -> str:
    """Return the table as a Mermaid state diagram: an arrow for each pair of phases, with its events."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.CREATING}"]
    arrows: dict[tuple[Phase, Phase], list[Event]] = {}
    for (phase, event), then in TRANSITIONS.items():
        arrows.setdefault((phase, then.phase), []).append(event)
    lines += [f"    {before} --> {after}: {', '.join(events)}" for (before, after), events in arrows.items()]
    lines += [f"    {phase} --> [*]" for phase in Phase if phase.ended]
    return "\n".join(lines)


def _steps() -> Iterator[str]:
    yield "| phase | its step |"
    yield "|---|---|"
    for phase in Phase:
        if not phase.ended:
            yield f"| {phase} | {STEPS.get(phase, 'none: a timer')} |"


def _table() -> Iterator[str]:
    phases = [phase for phase in Phase if not phase.ended]
    yield f"| event | {' | '.join(phases)} |"
    yield f"|---|{'---|' * len(phases)}"
    for event in Event:
        cells = []
        for phase in phases:
            transition = TRANSITIONS.get((phase, event))
            cells.append("" if transition is None else f"{transition.phase} ({_words(transition.effect.__name__)})")
        yield f"| {event} | {' | '.join(cells)} |"


def _words(effect: str) -> str:
    return effect.replace("_", " ")


def page() -> str:
    """Return the whole page."""
    requests = ", ".join(event for event in Event if not event.of_step)
    rule = (
        "Each cell is the next phase, and in brackets what the event does to the replica's facts. An empty cell: "
        f"{requests} come too late and change nothing; an outcome that the phase's step cannot have is a failure of "
        f"the node, and the replica becomes {UNEXPECTED.phase}. Nothing changes a phase that has ended. A pause is "
        "not an event: it holds the run between two steps, and every replica keeps its phase."
    )
    parts = [_HEAD, f"```mermaid\n{diagram()}\n```\n", *("\n".join(lines) + "\n" for lines in (_steps(), _table()))]
    return "\n".join([*parts, rule + "\n"])


if __name__ == "__main__":
    sys.stdout.write(page())
