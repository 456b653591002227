"""What is wrong with a node, by how it responds to this host and whether the controller has fenced it. Pure."""

from __future__ import annotations

from ops.cli.nodes import Reach
from workflows.model.absence import Absence


def judge(node: int, reach: Reach | None, fenced: bool) -> tuple[Absence, str] | None:
    """Whether a node is dead, cut off or fenced, and a sentence; None for one with which nothing is wrong.

    `reach` is None where this host knows no address of it.
    """
    name = f"node {node}"
    if reach is Reach.REFUSED:
        known = "and the controller has fenced it" if fenced else "and the controller has not fenced it yet"
        return Absence.DEAD, f"{name} is dead: its address refuses connections, {known}"
    if reach is Reach.SILENT:
        known = "and the controller has fenced it" if fenced else "but the controller considers it alive"
        return Absence.CUT_OFF, f"{name} is cut off from here, or its machine is down: it does not respond, {known}"
    if fenced:
        though = ", though it responds" if reach is Reach.RESPONDS else ""
        return Absence.FENCED, f"the controller has fenced {name}{though}"
    return None
