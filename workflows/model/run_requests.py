"""What runs of reassignments ask the controller, and what it answers. Knows no Temporal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workflows.model import fields, throttles
from workflows.model.controller import Controller
from workflows.model.outcome import Code, Reassigned, Result
from workflows.model.reassignment_request import change_row, read_change
from workflows.model.reassignment_runs import Key
from workflows.model.state import ClusterState
from workflows.model.watchers import Run, standing

#: Responses to runs are kept up to so many changes and runs in all, the latest first.
REMEMBERED_ROWS = 10_000

#: Characters that these answers' messages, and the names of their runs, have in all.
REMEMBERED_CHARACTERS = 200_000

_INT = (1 << 31) - 1

#: One request has at most so many changes, and looks at so many partitions: the response must fit into one event.
MOST_ASKED = 1_000

#: Bytes of JSON that its changes and partitions may have: the answer repeats topics' names, which may be any text.
LONGEST_REQUEST = 700_000

#: The answer to a cancel that is not meant for what is under way now.
NOT_MEANT: Result = {"error": Code.NO_REASSIGNMENT_IN_PROGRESS, "message": ""}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run asks: changes as (topic, partition, target or None, the target that a cancel is meant for), and
    partitions to look at; `hold`: throttles that it leases, as `throttles.parse` reads them; `release`: its lease ends,
    {} for all of it, or as `throttles.release` reads it.
    """

    request: int
    workflow_id: str
    run_id: str
    changes: tuple[tuple[str, int, tuple[int, ...] | None, tuple[int, ...]], ...]
    looks: tuple[Key, ...]
    hold: Mapping[str, Any] | None = None
    release: Mapping[str, Any] | None = None

    @property
    def run(self) -> Run:
        """Who asks."""
        return self.workflow_id, self.run_id

    @property
    def holder(self) -> str:
        """The run's name as the holder of a lease: workflow id and run id, which has no space."""
        return f"{self.workflow_id} {self.run_id}"

    @staticmethod
    def of(payload: Any) -> Asked:
        """Read a run's signal. Raises BadField."""
        row = fields.an_object(payload, "$")
        hold, release = row.get("hold"), row.get("release")
        asked = Asked(
            fields.a_number(fields.need(row, "request", "$"), "$.request"),
            fields.a_string(fields.need(row, "workflow_id", "$"), "$.workflow_id"),
            fields.a_string(fields.need(row, "run_id", "$"), "$.run_id"),
            tuple(_change(each, f"$.changes[{place}]") for place, each in enumerate(_few(row, "changes"))),
            tuple(_look(each, f"$.looks[{place}]") for place, each in enumerate(_few(row, "looks"))),
            None if hold is None else throttles.parse(hold, "$.hold"),
            None if release is None else _release(release),
        )
        if len(json.dumps([asked.changes, asked.looks])) > LONGEST_REQUEST:
            raise fields.BadField("$", f"has changes and looks of more than {LONGEST_REQUEST} bytes")
        return asked

    def command(self, state: ClusterState) -> tuple[dict[str, Any], list[bool]]:
        """The command for the changes, and which of them it has: a cancel is only for the target it is meant for."""
        meant: list[bool] = []
        for topic, partition, target, expected in self.changes:
            now = standing(state, (topic, partition))
            meant.append(target is not None or (now is not None and now.reassigning and now.target == expected))
        rows = [
            [topic, partition, None if target is None else list(target)]
            for (topic, partition, target, _), in_it in zip(self.changes, meant, strict=True)
            if in_it
        ]
        return {"do": "alter_reassignments", "partitions": rows, "client": f"run {self.workflow_id}"}, meant


def _release(payload: Any) -> dict[str, Any]:
    row = fields.an_object(payload, "$.release", ("nodes",))
    return {"nodes": list(fields.numbers(row["nodes"], "$.release.nodes"))} if "nodes" in row else {}


def _few(row: Mapping[str, Any], name: str) -> Sequence[Any]:
    rows = fields.a_list(fields.need(row, name, "$"), f"$.{name}")
    if len(rows) > MOST_ASKED:
        raise fields.BadField(f"$.{name}", f"has {len(rows)} entries, but may have {MOST_ASKED}")
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
    asked: Asked, results: Sequence[Mapping[str, Any]], before: ClusterState, after: ClusterState
) -> list[Reassigned]:
    """What the changes of a run that were taken have made of their partitions."""
    changes: list[Reassigned] = []
    for (topic, partition, target, _), result in zip(asked.changes, results, strict=True):
        old, new = standing(before, (topic, partition)), standing(after, (topic, partition))
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
                f"run {asked.workflow_id}",
            )
        )
    return changes


def carry_out(asked: Asked, controller: Controller) -> dict[str, Any]:
    """Make the changes that a run asks for; the answer for it.

    Has an "error" when it is to be asked again.
    """
    before = controller.state
    if before is None:
        return {"request": asked.request, "error": "the controller collects the nodes' metadata"}
    command, meant = asked.command(before)
    if isinstance(asked.hold, Mapping):  # before anything is copied
        controller.carry_out({**asked.hold, "do": "hold_throttles", "holder": asked.holder})
    change = controller.carry_out(command) if any(meant) else None
    if isinstance(asked.release, Mapping):
        controller.carry_out({**asked.release, "do": "release_throttles", "holder": asked.holder})
    taken = iter(change.results if change is not None else ())
    results = [next(taken, NOT_MEANT) if in_it else NOT_MEANT for in_it in meant]
    after = controller.state or before
    changes = made(asked, results, before, after)
    return _answer(asked, results, [change_row(each) for each in changes], after)


def nodes_of(answer: Mapping[str, Any]) -> set[int]:
    """Return the nodes that hold or are to hold replicas of an answer's partitions."""
    rows = (row for row in answer.get("rows", ()) if len(row) > 2)
    return {node for row in rows for at in (3, 4, 5) for node in row[at]}


def _answer(asked: Asked, results: list[Result], changes: list[list[Any]], state: ClusterState) -> dict[str, Any]:
    found = ((key, standing(state, key)) for key in asked.looks)
    return {
        "request": asked.request,
        "results": results,
        "made": changes,
        "rows": [list(key) if now is None else now.row() for key, now in found],
        **({"left_out": left_out} if (left_out := _left_out(asked, state)) else {}),
        "generation": state.generation,
        "version": state.version,
    }


def _left_out(asked: Asked, state: ClusterState) -> list[int]:
    """The nodes that a lease names and that are not registered: nothing is held on them."""
    nodes = asked.hold["nodes"] if isinstance(asked.hold, Mapping) else ()
    return sorted(int(node) for node in nodes if int(node) not in state.nodes)


@dataclass(frozen=True, slots=True)
class _Answered:
    request: int
    results: list[Result]
    made: list[list[Any]]

    @property
    def size(self) -> tuple[int, int]:
        """Rows, and characters; all changes of a request name the same run, which counts once."""
        messages = sum(len(str(each.get("message", ""))) for each in self.results)
        return 1 + len(self.results), messages + (len(str(self.made[0][-1])) if self.made else 0)


class Answers:
    """The last request of each run and its results: a run that did not get its response repeats the request, and gets
    the response without the change being made a second time, in the place of a later one.
    """

    def __init__(self) -> None:
        self._last: dict[str, _Answered] = {}
        self._rows = self._characters = 0

    def heard(self, asked: Asked) -> bool:
        """Whether this was carried out."""
        known = self._last.get(asked.run_id)
        return known is not None and asked.request <= known.request

    def again(self, asked: Asked, state: ClusterState | None) -> dict[str, Any] | None:
        """Return the response to a request that was carried out, with its partitions as they are now. None when the run
        has sent another request since, or while collecting, after which the run repeats it.
        """
        known = self._last.get(asked.run_id)
        if known is None or state is None or asked.request != known.request:
            return None
        return _answer(asked, known.results, known.made, state)

    def remember(self, asked: Asked, answer: Mapping[str, Any]) -> None:
        """Remember a request that was carried out; drop the oldest responses that are out of bounds."""
        if "error" in answer:
            return
        self._forget(asked.run_id)
        self._put(asked.run_id, _Answered(asked.request, answer["results"], answer["made"]))
        while (self._rows > REMEMBERED_ROWS or self._characters > REMEMBERED_CHARACTERS) and len(self._last) > 1:
            self._forget(next(iter(self._last)))

    def _put(self, run: str, answered: _Answered) -> None:
        rows, characters = answered.size
        self._last[run] = answered
        self._rows, self._characters = self._rows + rows, self._characters + characters

    def _forget(self, run: str) -> None:
        if (known := self._last.pop(run, None)) is not None:
            rows, characters = known.size
            self._rows, self._characters = self._rows - rows, self._characters - characters

    def rows(self) -> list[list[Any]]:
        """Return the rows for a continue-as-new."""
        return [[run, each.request, each.results, each.made] for run, each in self._last.items()]

    @staticmethod
    def of(rows: Sequence[Sequence[Any]]) -> Answers:
        """Return the responses of such rows."""
        it = Answers()
        for run, request, results, changes in rows:
            it._put(str(run), _Answered(int(request), results, changes))
        return it


def under_way(answer: Mapping[str, Any], state: ClusterState | None) -> list[Reassigned]:
    """Of what an answer says was made, what is not complete yet."""
    changes = [read_change(row) for row in answer.get("made", ())]
    standings = [standing(state, (each.topic, each.partition)) if state is not None else None for each in changes]
    return [each for each, now in zip(changes, standings, strict=True) if now is not None and now.reassigning]
