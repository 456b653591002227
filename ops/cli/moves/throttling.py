"""The throttle of `rehome move --file`: set while the moves are in progress, then restored to the earlier value.

With Temporal a run holds it on lease (`workflows.throttle_lease`), even if this command is killed. Without Temporal
this command records the earlier values in a file beside the plan, and restores them when the moves have ended. If it
exits while moves are in progress, it prints so, and a second call with --wait, with a rate or without, restores what
the first one has replaced. Of the plans of one folder that name the same node only one at a time has a throttle: a
second one would record the first one's rate as the earlier value. Plans of other folders or machines are recognised by
their effect: a plan is rejected if a node moves replicas under a rate that the plan has not set.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError

from ops.cli import output
from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.moves import runs
from ops.cli.moves.log_dirs import RequestedMove
from ops.cli.target import Target
from ops.stack.errors import OpsError
from workflows.model import names
from workflows.model.run_results import ThrottleHeld, ThrottleLeaseResult
from workflows.model.throttles import MOVE_RATE

#: A lease holds at most so many replicas: its parameter must fit into one event.
LARGEST_LEASE = 2_000
#: Seconds after which a run that does not hold the throttle counts as failed.
HELD_SECONDS = 30.0
#: Seconds for the nodes to apply a throttle that the controller has set.
APPLIED_SECONDS = 10.0
#: Seconds that a lease waits, beyond the command's retries, for the signal that names the accepted moves.
GRACE = 60
#: Seconds that a command with --wait waits for the end of the lease after the last move.
END_SECONDS = 60.0
POLL_SECONDS = 0.2
#: The suffix of a plan's note.
SUFFIX = ".move-throttles"


class MoveThrottle(Protocol):
    """A throttle that is set for the moves of one command."""

    def requested(self, accepted: Sequence[RequestedMove]) -> None:
        """Keep the throttle for these moves, which were accepted."""

    def ended(self) -> None:
        """Remove the throttle: the moves have ended."""


def begin(
    target: Target, admin: KafkaAdmin, file: Path, moves: Sequence[RequestedMove], rate: int, wait: float
) -> MoveThrottle:
    """Set the throttle on the nodes of these moves, which the command requests during the next `wait` seconds.

    Raises `OpsError` if the throttle cannot be set.
    """
    known = {node.node for node in admin.nodes(fenced=True)}
    nodes = sorted({move.node for move in moves if move.node in known})
    noted = Noted(admin, file)
    if not target.has_runs:
        noted.set(nodes, rate)
        _until_applied(admin, nodes, str(rate))
        return noted
    noted.ended()  # of a call without Temporal
    lease = Leased(target, [move for move in moves if move.node in known], rate, int(wait) + GRACE)
    _until_applied(admin, nodes, str(rate))
    return lease


def left(admin: KafkaAdmin, file: Path) -> Noted | None:
    """Return the throttle that an earlier call with this plan has left; None if that call has restored everything."""
    noted = Noted(admin, file)
    return noted if noted.nodes() else None


def _until_applied(admin: KafkaAdmin, nodes: Sequence[int], rate: str) -> None:
    """Wait until the nodes have applied the throttle, for a limited time: an unavailable one applies it later."""
    until = time.monotonic() + APPLIED_SECONDS
    left = list(nodes)
    while left and time.monotonic() < until:
        left = [node for node in left if not _applied(admin, node, rate)]
        time.sleep(POLL_SECONDS if left else 0)


def _applied(admin: KafkaAdmin, node: int, rate: str) -> bool:
    try:
        return admin.configs("broker", [str(node)])[str(node)].get(MOVE_RATE) == rate
    except OpsError:
        return False


class Leased:
    """A throttle that runs hold on lease."""

    def __init__(self, target: Target, moves: Sequence[RequestedMove], rate: int, patience: int) -> None:
        self._target = target
        stamp = f"cli-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-{uuid4().hex[:4]}"
        groups = [moves[at : at + LARGEST_LEASE] for at in range(0, len(moves), LARGEST_LEASE)]
        self._groups = {
            names.throttle_id(target.cluster, f"{stamp}+{place}" if place else stamp): group
            for place, group in enumerate(groups)
        }

        async def work(client: Client) -> None:
            begun: list[str] = []
            for workflow_id, group in self._groups.items():
                parameter = {
                    "throttles": {"nodes": {str(move.node): {MOVE_RATE: str(rate)} for move in group}},
                    "replicas": _rows(group),
                    "patience": patience,
                }
                await runs.start_move(client, target.cluster, workflow_id, parameter, names.THROTTLE_LEASE)
                begun.append(workflow_id)
                if why := await _not_held(client, workflow_id):
                    for each in begun:
                        await client.get_workflow_handle(each).cancel()
                    raise OpsError(f"no move was requested: the throttle could not be set ({workflow_id}): {why}")

        runs.with_temporal(target, work)

    def requested(self, accepted: Sequence[RequestedMove]) -> None:
        """Signal the accepted moves to each run."""
        moving = set(accepted)

        async def work(client: Client) -> None:
            for workflow_id, group in self._groups.items():
                payload = {"replicas": _rows([move for move in group if move in moving])}
                await client.get_workflow_handle(workflow_id).signal("requested", payload)

        try:
            runs.with_temporal(self._target, work)
        except OpsError as error:
            output.say(f"the throttle may outlast the moves: {error}")

    def ended(self) -> None:
        """Wait for the runs to end, for a limited time: they end in any case."""

        async def work(client: Client) -> None:
            for workflow_id in self._groups:
                await asyncio.wait_for(runs.result_of(client, workflow_id, ThrottleLeaseResult), END_SECONDS)

        try:
            runs.with_temporal(self._target, work)
        except (OpsError, TimeoutError):
            output.say(f"the throttle is still held: see {', '.join(self._groups)} in Temporal's UI")


def _rows(moves: Sequence[RequestedMove]) -> list[list[Any]]:
    return [[move.node, move.partition.topic, move.partition.partition] for move in moves]


async def _not_held(client: Client, workflow_id: str) -> str:
    """Wait until a run holds the throttle; return why it does not, "" if it does."""
    held = client.get_workflow_handle(workflow_id).execute_update("held", result_type=ThrottleHeld)
    try:
        response: ThrottleHeld = await asyncio.wait_for(held, HELD_SECONDS)
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
        return f"the controller has not set it within {HELD_SECONDS:g} s; is it running? see: rehome stack status"
    except WorkflowUpdateFailedError as error:
        return runs.why(error)
    except runs.UNREADABLE as error:
        return runs.unreadable("its response", error)
    if without := response.left_out:
        return f"node {', '.join(map(str, without))} is not registered with the controller"
    return "" if response.held else "its run was cancelled"


class Noted:
    """A throttle that this command holds; a file records the values that it has replaced."""

    def __init__(self, admin: KafkaAdmin, file: Path) -> None:
        self._admin, self._file, self._note = admin, file, note_of(file)

    def set(self, nodes: Sequence[int], rate: int) -> None:
        """Set the rate on these nodes. Raises `OpsError`, also if another plan of the folder holds one of them."""
        names = list(map(str, nodes))
        now = {node: values.get(MOVE_RATE) for node, values in self._admin.configs("broker", names).items()}
        noted = self._read()
        before = {
            node: noted[node]["before"] if node in noted and value == noted[node]["set"] else value
            for node, value in now.items()
        }
        others = {node: value for node, value in now.items() if value is not None and value != _set_by(noted, node)}
        used = self._used_by_another(others)
        held = {node: {"before": value, "set": str(rate)} for node, value in before.items()}
        _write(self._note, noted | held)
        # Checked after the note is written: of two concurrent commands at least one sees the other's.
        if why := self._held_by_another(names) or used:
            _write(self._note, noted) if noted else self._note.unlink(missing_ok=True)
            raise OpsError(f"no move was requested: the throttle could not be set: {why}")
        self._admin.change_configs("broker", {node: {MOVE_RATE: ("SET", str(rate))} for node in held})

    def nodes(self) -> list[str]:
        """Return the nodes that have the throttle by the note."""
        return sorted(self._read(), key=int)

    def keeps(self) -> str:
        """Return a sentence for a call that exits before the throttle is removed."""
        return f"the throttle stays on node {', '.join(self.nodes())} until it is removed by: {_call(self._file)}"

    def _held_by_another(self, nodes: Sequence[str]) -> str:
        """Return a sentence if another plan of this folder holds the throttle of one of these nodes, else ""."""
        for note in sorted(self._note.parent.glob(f"*{SUFFIX}")):
            if note.name != self._note.name and (both := sorted(set(nodes) & set(_read(note)), key=int)):
                plan = note.with_name(note.name.removesuffix(SUFFIX))
                return (
                    f"the plan {plan} holds the throttle of node {', '.join(both)}; "
                    f"wait for its end, or remove its throttle with: {_call(plan)}"
                )
        return ""

    def _used_by_another(self, rates: Mapping[str, str]) -> str:
        """Return a sentence if one of these nodes moves replicas under a rate that this plan has not set, else ""."""
        views = self._admin.log_dirs(sorted(map(int, rates))) if rates else []
        moving = sorted({view.node for view in views if any(replica.future for replica in view.replicas)})
        if not moving:
            return ""
        which, held = ", ".join(map(str, moving)), ", ".join(rates[str(node)] for node in moving)
        return (
            f"node {which} moves replicas under a throttle that this plan has not set: {held} bytes/s. It may belong "
            "to a plan in another folder, which removes it when it ends: wait for these moves, or omit --throttle"
        )

    def requested(self, accepted: Sequence[RequestedMove]) -> None:
        """Do nothing: this command waits for all moves itself."""

    def ended(self) -> None:
        """Restore the earlier values, except where another value was set meanwhile."""
        noted = self._read()
        now = {node: values.get(MOVE_RATE) for node, values in self._admin.configs("broker", sorted(noted)).items()}
        changes = {
            node: {MOVE_RATE: ("DELETE", None) if each["before"] is None else ("SET", each["before"])}
            for node, each in noted.items()
            if now[node] == each["set"]
        }
        self._admin.change_configs("broker", changes)
        for node in noted.keys() - changes.keys():
            if now[node] != noted[node]["before"]:
                output.say(
                    f"node {node} keeps {MOVE_RATE} = {now[node] or 'unset'}, which was set meanwhile; "
                    f"before the moves it was {noted[node]['before'] or 'unset'}"
                )
        self._note.unlink(missing_ok=True)

    def _read(self) -> dict[str, Mapping[str, Any]]:
        return _read(self._note)


def note_of(file: Path) -> Path:
    """Return the file that records the values that the throttle of a plan has replaced."""
    return file.with_name(file.name + SUFFIX)


def _set_by(noted: Mapping[str, Mapping[str, Any]], node: str) -> str | None:
    """Return the rate that a plan has set on a node by its note."""
    return noted[node]["set"] if node in noted else None


def _call(file: Path) -> str:
    return f"rehome move --file {shlex.quote(str(file))} --wait"


def _read(note: Path) -> dict[str, Mapping[str, Any]]:
    """Read a note: the earlier value and the value set, by node."""
    try:
        value = json.loads(note.read_text())
        return {str(int(node)): {"before": each["before"], "set": str(each["set"])} for node, each in value.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OpsError(
            f"cannot read {note}, which records the throttles from before its plan: {error}; "
            f"set {MOVE_RATE} with kafka-configs and delete the file"
        ) from error


def _write(note: Path, value: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the file atomically."""
    new = note.with_name(f"{note.name}.{os.getpid()}")
    try:
        new.write_text(json.dumps(value, indent=1) + "\n")
        new.replace(note)
    except OSError as error:
        raise OpsError(f"cannot write the replaced throttles to {note}: {error.strerror}") from error
