"""How each process of a stack reaches Temporal: nodes report it over their private API, the controller in its file."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from activities import state_file
from ops.stack.layout import CONTROLLER, TEMPORAL, ProcessSpec, StackSpec
from ops.stack.state import ProcessRecord
from storage_node.protocol import private_client

PATIENCE = 2.0  # seconds for a node to respond
#: Seconds after which the controller's last state counts as outdated.
STALE = 30.0

#: What `unknown` returns and what processes report have these keys in common.
State = dict[str, Any]


def states(
    spec: StackSpec, processes: Sequence[ProcessSpec], running: dict[str, ProcessRecord]
) -> dict[str, State | None]:
    """The state of each process's client by its name; None for what does not run, and for the server itself."""
    queried = [process for process in processes if process.name in running and process.name != TEMPORAL]
    found: dict[str, State | None] = {process.name: None for process in processes}
    with ThreadPoolExecutor(max(1, len(queried))) as pool:
        reported = pool.map(lambda process: _state(spec, process, running[process.name]), queried)
        return found | {process.name: state for process, state in zip(queried, reported, strict=True)}


def _state(spec: StackSpec, process: ProcessSpec, record: ProcessRecord) -> State:
    if process.name == CONTROLLER:
        return of_file(spec.controller_state, record.pid, datetime.now(UTC))
    host, _, port = process.addresses["kafka"].rpartition(":")
    try:
        return of_answer(private_client.call(host, int(port), "controller-client", timeout=PATIENCE))
    except (OSError, ValueError, private_client.PrivateCallFailed) as error:
        return unknown(f"the node does not respond at {host}:{port} ({error or type(error).__name__})")


def of_answer(answer: State) -> State:
    """The state that a node returned."""
    client = answer.get("client")
    return client if isinstance(client, dict) else unknown("the node does not run a Temporal client")


def of_file(path: Path, pid: int, now: datetime) -> State:
    """The state that the process `pid` wrote into its file."""
    found = state_file.read(path)
    if found is None or found.get("pid") != pid or not isinstance(found.get("temporal_client"), dict):
        return unknown(f"process {pid} has not written {path} yet")
    try:
        age = (now - datetime.fromisoformat(str(found["written"]))).total_seconds()
    except (KeyError, ValueError, TypeError):
        return unknown(f"{path} cannot be read")
    if age > STALE:
        return unknown(f"process {pid} has not written {path} for {age:.0f} s: it is stuck, or its disk is")
    state: State = found["temporal_client"]
    return state


def unknown(reason: str) -> State:
    """The state of a client that cannot be read."""
    return {"connected": None, "since": None, "kind": "unknown", "reason": reason, "notes": [], "restarted": []}


def short(state: State | None) -> str:
    """A state in a table: connected since, or not connected since."""
    if state is None:
        return "-"
    if state["connected"] is None:
        return "unknown"
    since = str(state["since"]).replace("T", " ")
    return f"{'connected' if state['connected'] else 'not connected'} since {since}"


def lines(name: str, state: State | None) -> list[str]:
    """Return what an operator must know of a process's client, a sentence per line; [] while all is well."""
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
