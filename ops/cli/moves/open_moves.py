"""Reads the open moves from the nodes and from Temporal's server, once or repeatedly, without a call to the controller
or to a run. Nodes that do not respond are named, not waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.text import Text
from temporalio.client import Client

from ops.cli import nodes, output
from ops.cli.kafka_admin import NodeAddress
from ops.cli.moves import open_runs, runs, view
from ops.cli.moves.future_replicas import FutureReplicas
from ops.cli.moves.open_runs import OpenRun, OpenRuns
from ops.cli.moves.view import COLUMNS, MoveLine, NodeMoves, cells, join, reasons, shared_folder
from ops.cli.nodes import Reach
from ops.cli.target import Target
from ops.stack.errors import OpsError

NODE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Gathered:
    """The open moves, the nodes whose moves are stopped, a sentence for each failed call, and those of these sentences
    that name what the response lacks.
    """

    lines: list[MoveLine]
    stopped: list[int]
    notes: list[str]
    missed: list[str] = field(default_factory=list)


class MoveReader:
    """Reads the open moves for one command. Use as a context manager; `again` for one that reads repeatedly."""

    def __init__(self, target: Target, *, again: bool = False) -> None:
        self._target = target
        self._most = open_runs.STEPS_PER_POLL if again else None
        self._session = runs.Session(target)
        self._runs: OpenRuns | None = None
        self._addresses = nodes.Addresses(target)
        self._futures = FutureReplicas(target.bootstrap) if target.apache_kafka else None

    def __enter__(self) -> MoveReader:
        self._session.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.__exit__()

    def gather(self) -> Gathered:
        """Query all nodes in parallel, and list the open runs. Raises `OpsError` if neither is reachable.

        Of Apache Kafka's brokers the future replicas are read instead.
        """
        if self._futures is not None:
            lines, unread = self._futures.read()
            return Gathered(lines, [], unread, unread)
        notes: list[str] = []
        try:
            known = self._addresses.get()
            notes += [str(self._addresses.problem)] if self._addresses.problem is not None else []
        except OpsError as error:
            if not self._target.temporal_address:
                raise
            known = []
            notes.append(str(error))
        reported = query_nodes(known)
        missed = [*notes, *reported.missed]
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
                missed.append(str(error))
        return Gathered(join(reported, found), reported.stopped, notes, missed)

    async def _read(self, client: Client, reported: NodeMoves) -> tuple[list[OpenRun], set[int]]:
        """Return the open runs and, where no node reports the fenced ones, the nodes that hold no lease."""
        if self._runs is None:
            self._runs = OpenRuns(client, self._target.cluster)
        found = await self._runs.read(lambda run: view.lacks(run, reported), self._most)
        if Reach.RESPONDS in reported.reach.values():
            return found, set()
        held = await open_runs.leased(client, self._target.cluster)
        return found, {node for run in found for node in view.nodes_of(run)} - held


def gather(target: Target) -> Gathered:
    """Read the open moves once."""
    with MoveReader(target) as reader:
        return reader.gather()


def query_nodes(known: Sequence[NodeAddress]) -> NodeMoves:
    """Query these nodes in parallel and return what they report of their moves."""
    with ThreadPoolExecutor(max_workers=max(1, len(known))) as pool:
        return NodeMoves.of(
            {where.node: response for where, response in zip(known, pool.map(query_node, known), strict=True)}
        )


def table(shown: Gathered) -> Group:
    """Return the table of moves, and below it a sentence for each stalled move."""
    shared = shared_folder(shown.lines)
    held = [Text(sentence) for sentence in reasons(shown.lines, shared)]
    return Group(output.table(COLUMNS, [cells(line, shared) for line in shown.lines]), *held)


def query_node(where: NodeAddress, seconds: float = NODE_SECONDS) -> dict[str, Any] | OpsError:
    """Return a node's response to "moves", or why there is none within so many seconds."""
    try:
        return nodes.call(where, "moves", timeout=seconds)
    except OpsError as error:
        return error
