"""Diagnoses a node by how it responds to this host and whether the controller has fenced it. Pure."""

from __future__ import annotations

from ops.cli.nodes import Reach
from storage_node.model.moves import StallReason


def diagnose(node: int, reach: Reach | None, fenced: bool) -> tuple[StallReason, str] | None:
    """Return why a node is unavailable (dead, cut off or fenced) and a sentence; None for an available node.

    `reach` is None if this host does not know the node's address.
    """
    name = f"node {node}"
    if reach is Reach.REFUSED:
        known = "and the controller has fenced it" if fenced else "and the controller has not fenced it yet"
        return StallReason.DEAD, f"{name} is dead: its address refuses connections, {known}"
    if reach is Reach.SILENT:
        known = "and the controller has fenced it" if fenced else "but the controller considers it alive"
        return StallReason.CUT_OFF, f"{name} is cut off from here, or its machine is down: it does not respond, {known}"
    if fenced:
        though = ", though it responds" if reach is Reach.RESPONDS else ""
        return StallReason.FENCED, f"the controller has fenced {name}{though}"
    return None
