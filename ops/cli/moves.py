"""Gathers what the nodes and Temporal know about open moves; whoever does not answer is named, not waited for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from ops.cli import nodes, output, runs
from ops.cli.kafka_admin import NodeAddress
from ops.cli.moves_view import COLUMNS, MoveLine, cells, join, of_node, reasons, shared_folder
from ops.cli.target import Target
from ops.stack.errors import OpsError

NODE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Gathered:
    """The open moves, the nodes whose moves are stopped, and a sentence for each who did not answer."""

    lines: list[MoveLine]
    stopped: list[int]
    notes: list[str]


def gather(target: Target, *, ask_temporal: bool = True) -> Gathered:
    """Ask all nodes side by side, and Temporal for the open runs."""
    known = nodes.addresses(target)
    with ThreadPoolExecutor(max_workers=max(1, len(known))) as pool:
        answers = list(pool.map(_ask, known))
    lines: list[MoveLine] = []
    stopped: list[int] = []
    notes: list[str] = []
    for where, answer in zip(known, answers, strict=True):
        if isinstance(answer, OpsError):
            notes.append(str(answer))
            continue
        lines += of_node(where.node, answer.get("moves", []))
        notes += [
            f"log directory {one['path']} of node {where.node} is offline ({one['reason']}); repair it and start the "
            "node again"
            for one in answer.get("offline", [])
        ]
        if answer.get("stopped"):
            stopped.append(where.node)
            notes.append(f"the moves of node {where.node} are stopped; see: rehome node resume-moves {where.node}")
    open_runs: list[runs.OpenRun] = []
    fenced: list[int] = []
    if ask_temporal and target.temporal_address:
        try:
            open_runs, fenced = runs.with_temporal(target, lambda client: runs.open_and_fenced(client, target.cluster))
        except OpsError as error:
            notes.append(str(error))
    away = {where.node for where, answer in zip(known, answers, strict=True) if isinstance(answer, OpsError)}
    return Gathered(join(lines, open_runs, away, fenced), stopped, notes)


def table(shown: Gathered) -> Group:
    """The table for people, and below it a sentence for each move that something holds."""
    shared = shared_folder(shown.lines)
    held = [Text(sentence) for sentence in reasons(shown.lines, shared)]
    return Group(output.table(COLUMNS, [cells(line, shared) for line in shown.lines]), *held)


def _ask(where: NodeAddress) -> dict[str, Any] | OpsError:
    try:
        return nodes.call(where, "moves", timeout=NODE_SECONDS)
    except OpsError as error:
        return error
