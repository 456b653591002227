"""The requests of runs to the controller, and its responses. Without Temporal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage_node.model import fields
from storage_node.model.command_rows import LONGEST_WHO
from storage_node.model.commands import AlterReassignments, Reassign
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from workflows.model import throttles
from workflows.model.controller.controller import Controller
from workflows.model.metadata.outcome import Reassigned, Result
from workflows.model.metadata.state import ClusterState
from workflows.model.reassignment.request import change_row, read_change
from workflows.model.reassignment.runs import Key
from workflows.model.reassignment.watchers import Run, partition_view

#: The maximum number of changes and runs in the remembered responses, the latest first.
REMEMBERED_ROWS = 10_000

#: Characters of these responses' messages and of the names of their runs, in all.
REMEMBERED_CHARACTERS = 200_000

_INT = (1 << 31) - 1

#: The maximum number of changes, and of partitions to report, of one request: the response must fit into one event.
MAX_ENTRIES = 1_000

#: The maximum JSON bytes of its changes and partitions: the response repeats topics' names, which may be any text.
LONGEST_REQUEST = 700_000

#: The result of a cancel of another target than the current one.
OTHER_TARGET: Result = {"error": ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "message": ""}


@dataclass(frozen=True, slots=True)
class ControllerRequest:
    """A run's request: changes as (topic, partition, target or None, the target that a cancel is for), and partitions
    to report (`looks`); `hold`: throttles to lease, as `throttles.parse` reads them; `release`: the end of its lease,
    {} for all of it, or as `throttle_leases.release` reads it.
    """

    number: int
    workflow_id: str
    run_id: str
    changes: tuple[tuple[str, int, tuple[int, ...] | None, tuple[int, ...]], ...]
    looks: tuple[Key, ...]
    hold: Mapping[str, Any] | None = None
    release: Mapping[str, Any] | None = None

    @property
    def run(self) -> Run:
        """Return the requesting run."""
        return self.workflow_id, self.run_id

    @property
    def holder(self) -> str:
        """Return the run's name as the holder of a lease: workflow id and run id, which has no space."""
        return f"{self.workflow_id} {self.run_id}"

    @staticmethod
    def of(payload: Any) -> ControllerRequest:
        """Read a run's signal. Raises BadField."""
        row = fields.an_object(payload, "$")
        hold, release = row.get("hold"), row.get("release")
        request = ControllerRequest(
            fields.a_number(fields.need(row, "request", "$"), "$.request"),
            fields.a_string(fields.need(row, "workflow_id", "$"), "$.workflow_id"),
            fields.a_string(fields.need(row, "run_id", "$"), "$.run_id"),
            tuple(_change(each, f"$.changes[{place}]") for place, each in enumerate(_few(row, "changes"))),
            tuple(_look(each, f"$.looks[{place}]") for place, each in enumerate(_few(row, "looks"))),
            None if hold is None else throttles.parse(hold, "$.hold"),
            None if release is None else _release(release),
        )
        if len(json.dumps([request.changes, request.looks])) > LONGEST_REQUEST:
            raise fields.BadField("$", f"has changes and looks of more than {LONGEST_REQUEST} bytes")
        return request

    def command(self, state: ClusterState) -> tuple[AlterReassignments, list[bool]]:
        """Return the command for the changes, and whether it has each: a cancel of another target is left out."""
        current: list[bool] = []
        for topic, partition, target, expected in self.changes:
            now = partition_view(state, (topic, partition))
            current.append(target is not None or (now is not None and now.reassigning and now.target == expected))
        wanted = tuple(
            Reassign(TopicPartition(topic, partition), target)
            for (topic, partition, target, _), in_it in zip(self.changes, current, strict=True)
            if in_it
        )
        return AlterReassignments(wanted, client=f"run {self.workflow_id}"[:LONGEST_WHO]), current


def _release(payload: Any) -> dict[str, Any]:
    row = fields.an_object(payload, "$.release", ("nodes",))
    return {"nodes": list(fields.numbers(row["nodes"], "$.release.nodes"))} if "nodes" in row else {}


def _few(row: Mapping[str, Any], name: str) -> Sequence[Any]:
    rows = fields.a_list(fields.need(row, name, "$"), f"$.{name}")
    if len(rows) > MAX_ENTRIES:
        raise fields.BadField(f"$.{name}", f"has {len(rows)} entries, but may have {MAX_ENTRIES}")
    return rows


def _look(payload: Any, path: str) -> Key:
    row = fields.a_list(payload, path)
    if len(row) < 2:
        raise fields.BadField(path, "must have a topic and a partition")
    return fields.a_string(row[0], f"{path}[0]"), fields.a_number(row[1], f"{path}[1]", high=_INT)


def _change(payload: Any, path: str) -> tuple[str, int, tuple[int, ...] | None, tuple[int, ...]]:
    row = fields.a_list(payload, path)
    if len(row) != 4:
        raise fields.BadField(path, "must have a topic, a partition, a target or null, and the target that it is for")
    target = None if row[2] is None else fields.numbers(row[2], f"{path}[2]")
    return *_look(row, path), target, fields.numbers(row[3] or [], f"{path}[3]")


def made(
    request: ControllerRequest, results: Sequence[Mapping[str, Any]], before: ClusterState, after: ClusterState
) -> list[Reassigned]:
    """Return the reassignments that a run's successful changes have begun or completed."""
    changes: list[Reassigned] = []
    for (topic, partition, target, _), result in zip(request.changes, results, strict=True):
        old, new = partition_view(before, (topic, partition)), partition_view(after, (topic, partition))
        if target is None or result.get("error") or old is None or new is None:
            continue
        leaving = tuple(node for node in old.replicas if node not in target)
        changes.append(
            Reassigned(
                topic,
                new.topic_id,
                partition,
                new.original or old.original or old.replicas,
                target,
                new.adding,
                leaving,
                f"run {request.workflow_id}",
            )
        )
    return changes


def carry_out(request: ControllerRequest, controller: Controller) -> dict[str, Any]:
    """Apply a run's request and return the response; after an "error" the run repeats the request."""
    before = controller.state
    if before is None:
        return {"request": request.number, "error": "the controller collects the nodes' metadata"}
    command, current = request.command(before)
    if isinstance(request.hold, Mapping):  # The throttles apply before any replica is copied.
        controller.carry_out_row({**request.hold, "do": "hold_throttles", "holder": request.holder})
    change = controller.carry_out(command) if any(current) else None
    if isinstance(request.release, Mapping):
        controller.carry_out_row({**request.release, "do": "release_throttles", "holder": request.holder})
    taken = iter(change.results if change is not None else ())
    results = [next(taken, OTHER_TARGET) if in_it else OTHER_TARGET for in_it in current]
    after = controller.state or before
    changes = made(request, results, before, after)
    return _response(request, results, [change_row(each) for each in changes], after)


def nodes_of(response: Mapping[str, Any]) -> set[int]:
    """Return the nodes that have, or will have, replicas of a response's partitions."""
    rows = (row for row in response.get("rows", ()) if len(row) > 2)
    return {node for row in rows for at in (3, 4, 5) for node in row[at]}


def _response(
    request: ControllerRequest, results: list[Result], changes: list[list[Any]], state: ClusterState
) -> dict[str, Any]:
    found = ((key, partition_view(state, key)) for key in request.looks)
    return {
        "request": request.number,
        "results": results,
        "made": changes,
        "rows": [list(key) if now is None else now.row() for key, now in found],
        **({"left_out": left_out} if (left_out := _left_out(request, state)) else {}),
        "generation": state.cluster_generation,
        "version": state.version,
    }


def _left_out(request: ControllerRequest, state: ClusterState) -> list[int]:
    """Return the nodes of a lease that are not registered, and so have no throttle."""
    nodes = request.hold["nodes"] if isinstance(request.hold, Mapping) else ()
    return sorted(int(node) for node in nodes if int(node) not in state.nodes)


@dataclass(frozen=True, slots=True)
class _Response:
    number: int
    results: list[Result]
    made: list[list[Any]]

    @property
    def size(self) -> tuple[int, int]:
        """Return rows and characters; all changes of a request name the same run, which counts once."""
        messages = sum(len(str(each.get("message", ""))) for each in self.results)
        return 1 + len(self.results), messages + (len(str(self.made[0][-1])) if self.made else 0)


class Responses:
    """The last request of each run and its results: a run that lost the response repeats the request, and gets the
    response without another application of the change, which might replace a later one.
    """

    def __init__(self) -> None:
        self._last: dict[str, _Response] = {}
        self._rows = self._characters = 0

    def applied(self, request: ControllerRequest) -> bool:
        """Return whether this request was applied."""
        known = self._last.get(request.run_id)
        return known is not None and request.number <= known.number

    def repeat(self, request: ControllerRequest, state: ClusterState | None) -> dict[str, Any] | None:
        """Return the response to an applied request, with the current state of its partitions. None if the run has sent
        another request since, or while collecting, after which the run repeats it.
        """
        known = self._last.get(request.run_id)
        if known is None or state is None or request.number != known.number:
            return None
        return _response(request, known.results, known.made, state)

    def remember(self, request: ControllerRequest, response: Mapping[str, Any]) -> None:
        """Remember an applied request; drop the oldest responses above the limits."""
        if "error" in response:
            return
        self._forget(request.run_id)
        self._put(request.run_id, _Response(request.number, response["results"], response["made"]))
        while (self._rows > REMEMBERED_ROWS or self._characters > REMEMBERED_CHARACTERS) and len(self._last) > 1:
            self._forget(next(iter(self._last)))

    def _put(self, run: str, response: _Response) -> None:
        rows, characters = response.size
        self._last[run] = response
        self._rows, self._characters = self._rows + rows, self._characters + characters

    def _forget(self, run: str) -> None:
        if (known := self._last.pop(run, None)) is not None:
            rows, characters = known.size
            self._rows, self._characters = self._rows - rows, self._characters - characters

    def rows(self) -> list[list[Any]]:
        """Return the rows for a continue-as-new."""
        return [[run, each.number, each.results, each.made] for run, each in self._last.items()]

    @staticmethod
    def of(rows: Sequence[Sequence[Any]]) -> Responses:
        """Return the responses of such rows."""
        it = Responses()
        for run, request, results, changes in rows:
            it._put(str(run), _Response(int(request), results, changes))
        return it


def under_way(response: Mapping[str, Any], state: ClusterState | None) -> list[Reassigned]:
    """Return the reassignments of a response that are still in progress."""
    changes = [read_change(row) for row in response.get("made", ())]
    views = [partition_view(state, (each.topic, each.partition)) if state is not None else None for each in changes]
    return [each for each, now in zip(changes, views, strict=True) if now is not None and now.reassigning]
