"""Gathers the open moves from the nodes and from Temporal's server, once or repeatedly; it names nodes that do not
respond, and does not wait for them. It calls neither the controller nor a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text
from temporalio.client import Client

from ops.cli import moves_view, nodes, open_runs, output, runs
from ops.cli.kafka_admin import NodeAddress
from ops.cli.moves_view import COLUMNS, MoveLine, NodeMoves, cells, join, reasons, shared_folder
from ops.cli.nodes import Reach
from ops.cli.open_runs import OpenRun, OpenRuns
from ops.cli.target import Target
from ops.stack.errors import OpsError

NODE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Gathered:
    """The open moves, the nodes whose moves are stopped, and a sentence for each who did not answer."""

    lines: list[MoveLine]
    stopped: list[int]
    notes: list[str]


class Looking:
    """Reads the open moves for one command. Use as a context manager; `again` for one that reads repeatedly."""

    def __init__(self, target: Target, *, again: bool = False) -> None:
        self._target = target
        self._most = open_runs.STEPS_AT_A_LOOK if again else None
        self._session = runs.Session(target)
        self._runs: OpenRuns | None = None
        self._addresses = nodes.Addresses(target)

    def __enter__(self) -> Looking:
        self._session.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.__exit__()

    def gather(self) -> Gathered:
        """Query all nodes in parallel, and list the open runs. Raises `OpsError` if neither is reachable."""
        notes: list[str] = []
        try:
            known = self._addresses.get()
            notes += [str(self._addresses.problem)] if self._addresses.problem is not None else []
        except OpsError as error:
            if not self._target.temporal_address:
                raise
            known = []
            notes.append(str(error))
        reported = ask(known)
        notes += reported.notes
        found: list[OpenRun] = []
        if self._target.temporal_address:
            try:
                found, without_lease = self._session.run(lambda client: self._read(client, reported))
                reported = reported.with_fenced(without_lease)
            except OpsError as error:
                if not known:
                    raise OpsError(f"{'; '.join([*notes, str(error)])}") from error
                notes.append(str(error))
        return Gathered(join(reported, found), reported.stopped, notes)

    async def _read(self, client: Client, reported: NodeMoves) -> tuple[list[OpenRun], set[int]]:
        """Return the open runs and, where no node reports the fenced ones, the nodes that hold no lease."""
        if self._runs is None:
            self._runs = OpenRuns(client, self._target.cluster)
        found = await self._runs.look(lambda run: moves_view.lacks(run, reported), self._most)
        if Reach.RESPONDS in reported.reach.values():
            return found, set()
        held = await open_runs.leased(client, self._target.cluster)
        return found, {node for run in found for node in moves_view.nodes_of(run)} - held


def gather(target: Target) -> Gathered:
    """Read the open moves once."""
    with Looking(target) as looking:
        return looking.gather()


def ask(known: Sequence[NodeAddress]) -> NodeMoves:
    """Return what these nodes report of their moves, queried in parallel."""
    with ThreadPoolExecutor(max_workers=max(1, len(known))) as pool:
        return NodeMoves.of({where.node: answer for where, answer in zip(known, pool.map(_ask, known), strict=True)})


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
