"""Each process' connection to Temporal: nodes report it over their private API, the others in their state files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from activities.temporal import state_file
from ops.stack.layout import CONTROLLER, HISTORY, ORCHESTRATOR, TEMPORAL, ProcessSpec, StackSpec
from ops.stack.state import ProcessRecord
from storage_node.wire.client import private_client

PATIENCE = 2.0  # seconds for a node to respond
#: Processes without a listener.
SERVICES = (CONTROLLER, ORCHESTRATOR, HISTORY)
#: Seconds after which the last state in a file counts as outdated.
STALE = 30.0

#: A client's state as processes report it, or as `unknown` returns it.
State = dict[str, Any]


def states(
    spec: StackSpec, processes: Sequence[ProcessSpec], running: dict[str, ProcessRecord]
) -> dict[str, State | None]:
    """Return the state of each process' client by its name; None for stopped processes, for the server itself and for
    Apache Kafka's brokers.
    """
    without = {TEMPORAL, *(spec.node_name(node) for node in spec.node_ids if spec.apache_kafka)}
    queried = [process for process in processes if process.name in running and process.name not in without]
    found: dict[str, State | None] = {process.name: None for process in processes}
    with ThreadPoolExecutor(max(1, len(queried))) as pool:
        reported = pool.map(lambda process: _state(spec, process, running[process.name]), queried)
        return found | {process.name: state for process, state in zip(queried, reported, strict=True)}


def _state(spec: StackSpec, process: ProcessSpec, record: ProcessRecord) -> State:
    if process.name in SERVICES:
        return of_file(spec.state_file(process.name), record.pid, datetime.now(UTC))
    host, _, port = process.addresses["kafka"].rpartition(":")
    try:
        return from_response(private_client.call(host, int(port), "controller-client", timeout=PATIENCE))
    except (OSError, ValueError, private_client.PrivateCallFailed) as error:
        return unknown(f"the node does not respond at {host}:{port} ({error or type(error).__name__})")


def from_response(response: State) -> State:
    """Return the client's state in a node's response."""
    client = response.get("client")
    return client if isinstance(client, dict) else unknown("the node does not run a Temporal client")


def of_file(path: Path, pid: int, now: datetime) -> State:
    """Return the state that process `pid` has written to its file."""
    found = state_file.read(path)
    if found is None or found.get("pid") != pid or not isinstance(found.get("temporal_client"), dict):
        return unknown(f"process {pid} has not written {path} yet")
    try:
        age = (now - datetime.fromisoformat(str(found["written"]))).total_seconds()
    except (KeyError, ValueError, TypeError):
        return unknown(f"{path} is not a valid state file")
    if age > STALE:
        return unknown(f"process {pid} has not written {path} for {age:.0f} s: it is stuck, or its disk is")
    state: State = found["temporal_client"]
    return state


def unknown(reason: str) -> State:
    """Return the state of a client whose state cannot be read."""
    return {"connected": None, "since": None, "kind": "unknown", "reason": reason, "notes": [], "restarted": []}


def short(state: State | None) -> str:
    """Format a state for a table: connected since, or not connected since."""
    if state is None:
        return "-"
    if state["connected"] is None:
        return "unknown"
    since = str(state["since"]).replace("T", " ")
    return f"{'connected' if state['connected'] else 'not connected'} since {since}"


def lines(name: str, state: State | None) -> list[str]:
    """Return the problems of a process' client, a sentence per line; [] if there are none."""
    if state is None:
        return []
    found = [] if state["connected"] else [f"{name}: {state['reason']}"]
    found += [f"{name}: {note}" for note in state.get("notes", ())]
    for part in state.get("restarted", ()):
        now = "" if part["running"] else "; it is down now and will be restarted"
        times = "once" if part["restarts"] == 1 else f"{part['restarts']} times"
        found.append(
            f"{name}: {part['part']} failed {times}, last at {part['last_failed'].replace('T', ' ')} "
            f"({part['last_error']}){now}"
        )
    return found
