"""The throttle of `rehome move --file`: it is set while the moves are under way, then the earlier value is restored.

With Temporal a run holds it on lease (`workflows.throttle_lease`), even if this command is killed. Without Temporal
this command keeps the earlier value in a file beside the plan and restores it once the moves have ended; a second call
restores what an interrupted first one has left.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError

from ops.cli import output, runs
from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.log_dirs import Wish
from ops.cli.target import Target
from ops.stack.errors import OpsError
from workflows.model import names
from workflows.model.throttles import MOVE_RATE

#: One lease is for at most so many replicas: its parameter must fit into one event.
LARGEST_LEASE = 2_000
#: Seconds until it is clear that no run holds the throttle.
HELD_SECONDS = 30.0
#: Seconds for the nodes to apply a throttle that the controller has set.
APPLIED_SECONDS = 10.0
#: Seconds that a lease waits, beyond the command's own patience, for the signal which moves were accepted.
GRACE = 60
#: Seconds that a waiting command gives the lease to end after the last move.
END_SECONDS = 60.0
LOOK_SECONDS = 0.2


class MoveThrottle(Protocol):
    """A throttle that is set for the moves of one command."""

    def requested(self, accepted: Sequence[Wish]) -> None:
        """Keep the throttle for these moves, which were accepted."""

    def ended(self) -> None:
        """Remove the throttle: the moves have ended."""


def begin(
    target: Target, admin: KafkaAdmin, file: Path, wishes: Sequence[Wish], rate: int, wait: float
) -> MoveThrottle:
    """Set the throttle on the nodes of these moves, which are requested for `wait` seconds from then on.

    Raises `OpsError` when it is not set.
    """
    known = {node.node for node in admin.nodes(fenced=True)}
    nodes = sorted({wish.node for wish in wishes if wish.node in known})
    if not target.temporal_address:
        return Noted(admin, file, nodes, rate)
    lease = Leased(target, [wish for wish in wishes if wish.node in known], rate, int(wait) + GRACE)
    _until_applied(admin, nodes, str(rate))
    return lease


def _until_applied(admin: KafkaAdmin, nodes: Sequence[int], rate: str) -> None:
    """Wait until the nodes have applied it, not for long: an unavailable one applies it when it is back."""
    until = time.monotonic() + APPLIED_SECONDS
    left = list(nodes)
    while left and time.monotonic() < until:
        left = [node for node in left if not _applied(admin, node, rate)]
        time.sleep(LOOK_SECONDS if left else 0)


def _applied(admin: KafkaAdmin, node: int, rate: str) -> bool:
    try:
        return admin.configs("broker", [str(node)])[str(node)].get(MOVE_RATE) == rate
    except OpsError:
        return False


class Leased:
    """Runs hold the throttle."""

    def __init__(self, target: Target, wishes: Sequence[Wish], rate: int, patience: int) -> None:
        self._target = target
        stamp = f"cli-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-{uuid4().hex[:4]}"
        groups = [wishes[at : at + LARGEST_LEASE] for at in range(0, len(wishes), LARGEST_LEASE)]
        self._groups = {
            names.throttle_id(target.cluster, f"{stamp}+{place}" if place else stamp): group
            for place, group in enumerate(groups)
        }

        async def work(client: Client) -> None:
            begun: list[str] = []
            for workflow_id, group in self._groups.items():
                parameter = {
                    "throttles": {"nodes": {str(wish.node): {MOVE_RATE: str(rate)} for wish in group}},
                    "replicas": _rows(group),
                    "patience": patience,
                }
                await runs.start_move(client, target.cluster, workflow_id, parameter, names.THROTTLE_LEASE)
                begun.append(workflow_id)
                if why := await _not_held(client, workflow_id):
                    for each in begun:
                        await client.get_workflow_handle(each).cancel()
                    raise OpsError(f"no move was requested, since the throttle is not set ({workflow_id}): {why}")

        runs.with_temporal(target, work)

    def requested(self, accepted: Sequence[Wish]) -> None:
        """Signal each run which of its moves were accepted."""
        moving = set(accepted)

        async def work(client: Client) -> None:
            for workflow_id, group in self._groups.items():
                payload = {"replicas": _rows([wish for wish in group if wish in moving])}
                await client.get_workflow_handle(workflow_id).signal("requested", payload)

        try:
            runs.with_temporal(self._target, work)
        except OpsError as error:
            output.say(f"the throttle may outlast the moves: {error}")

    def ended(self) -> None:
        """Wait for the runs to end, not for long: they end in any case."""

        async def work(client: Client) -> None:
            for workflow_id in self._groups:
                await asyncio.wait_for(runs.result_of(client, workflow_id), END_SECONDS)

        try:
            runs.with_temporal(self._target, work)
        except (OpsError, TimeoutError):
            output.say(f"the throttle is still held: see {', '.join(self._groups)} in Temporal's UI")


def _rows(wishes: Sequence[Wish]) -> list[list[Any]]:
    return [[wish.node, wish.partition.topic, wish.partition.partition] for wish in wishes]


async def _not_held(client: Client, workflow_id: str) -> str:
    """Wait until a run holds the throttle; return why it does not, "" when it does."""
    held = client.get_workflow_handle(workflow_id).execute_update("held")
    try:
        answer = await asyncio.wait_for(held, HELD_SECONDS)
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
        return f"the controller has not set it within {HELD_SECONDS:g} s; is it running? see: rehome stack status"
    except WorkflowUpdateFailedError as error:
        return runs.why(error)
    return "" if answer.get("held") else "its run was cancelled"


class Noted:
    """This command holds the throttle; a file keeps the values that it has replaced."""

    def __init__(self, admin: KafkaAdmin, file: Path, nodes: Sequence[int], rate: int) -> None:
        self._admin, self._note = admin, note_of(file)
        now = {node: values.get(MOVE_RATE) for node, values in admin.configs("broker", list(map(str, nodes))).items()}
        noted = self._read()
        before = {
            node: noted[node]["before"] if node in noted and value == noted[node]["set"] else value
            for node, value in now.items()
        }
        held = {node: {"before": value, "set": str(rate)} for node, value in before.items()}
        _write(self._note, noted | held)
        admin.change_configs("broker", {node: {MOVE_RATE: ("SET", str(rate))} for node in held})

    def requested(self, accepted: Sequence[Wish]) -> None:
        """Do nothing: this command waits for all of them itself."""

    def ended(self) -> None:
        """Restore the earlier values, except where an operator has set another one meanwhile."""
        noted = self._read()
        now = self._admin.configs("broker", sorted(noted))
        changes = {
            node: {MOVE_RATE: ("DELETE", None) if each["before"] is None else ("SET", each["before"])}
            for node, each in noted.items()
            if now[node].get(MOVE_RATE) == each["set"]
        }
        self._admin.change_configs("broker", changes)
        self._note.unlink(missing_ok=True)

    def _read(self) -> dict[str, Mapping[str, Any]]:
        try:
            value = json.loads(self._note.read_text())
            return {str(node): {"before": each["before"], "set": str(each["set"])} for node, each in value.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise OpsError(
                f"cannot read {self._note}, which holds the throttles to restore: {error}; "
                f"set {MOVE_RATE} with kafka-configs and delete the file"
            ) from error


def note_of(file: Path) -> Path:
    """The file with the values that the throttle of a plan has replaced."""
    return file.with_name(file.name + ".move-throttles")


def _write(note: Path, value: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the file atomically."""
    new = note.with_name(f"{note.name}.{os.getpid()}")
    try:
        new.write_text(json.dumps(value, indent=1) + "\n")
        new.replace(note)
    except OSError as error:
        raise OpsError(f"cannot write the replaced throttles to {note}: {error.strerror}") from error
