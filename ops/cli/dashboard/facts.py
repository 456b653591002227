"""The facts that the live dashboard is composed of, as its readers return them. Times are epoch seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ops.cli.moves.open_runs import OpenRun
from ops.cli.moves.view import MoveLine
from ops.cli.reassign.polling import Snapshot
from ops.stack.errors import OpsError
from workflows.model.plans.running.plan_results import EvacuationProgress, PlanProgress

Progress = TypeVar("Progress", PlanProgress, EvacuationProgress)

#: The names of the sources that are read.
NODES, TEMPORAL, BROKERS = "nodes", "Temporal", "brokers"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The last responses of one node, and when they came (None: never); `problem` is why there is no newer one."""

    moves: Mapping[str, Any] | None = None
    reassignments: Mapping[str, Any] | None = None
    as_of: float | None = None
    problem: OpsError | None = None


@dataclass(frozen=True, slots=True)
class NodesFacts:
    """The facts of all nodes; `notes` are sentences about addresses that could not be looked up."""

    nodes: Mapping[int, NodeFacts] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokersFacts:
    """What Apache Kafka's brokers report: future replicas, and reassignments in progress."""

    moves: tuple[MoveLine, ...] = ()
    reassignments: Snapshot = field(default_factory=Snapshot)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunFacts(Generic[Progress]):
    """An open run of a plan or a drain: `progress` is its last response to the query, read at `as_of` (None: never)."""

    workflow_id: str
    progress: Progress | None = None
    as_of: float | None = None
    silent: bool = False
    """Whether the last query had no response: no worker serves the run."""


@dataclass(frozen=True, slots=True)
class TemporalFacts:
    """The open runs by the server."""

    moves: tuple[OpenRun, ...] = ()
    reassignments: tuple[OpenRun, ...] = ()
    plans: tuple[RunFacts[PlanProgress], ...] = ()
    drains: tuple[RunFacts[EvacuationProgress], ...] = ()
