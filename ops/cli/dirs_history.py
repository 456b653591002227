"""rehome dirs history: what became of one log directory, by its node's records and by the runs of its failures."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from ops.cli import nodes, output
from ops.cli.moves import runs
from ops.cli.options import Bootstrap, Cluster, Data, Json, TemporalAddress
from ops.cli.target import Target, resolve
from ops.stack.errors import OpsError
from workflows.model import names

#: Runs that are read, the newest ones, and seconds for each.
RUNS = 200
SECONDS = 3.0
#: A line names so many replicas at most.
_SHOWN = 3

_NODE = typer.Argument(metavar="NODE", min=0, help="The node's id.")
_DIR = typer.Argument(metavar="DIR", help="The path of the log directory, as in log.dirs.")


def register(app: typer.Typer) -> None:
    """Add the command to `rehome dirs`."""
    app.command("history")(history)


def history(
    node: Annotated[int, _NODE],
    directory: Annotated[str, _DIR],
    data: Data = None,
    bootstrap: Bootstrap = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Show the timeline of a log directory: failures, signs of trouble, returns, and what became of its replicas.

    The node's own records and the runs of DirectoryFailure are merged; without one of them the other is shown, with the
    reason, and the exit code is 3. --json has the evidence of each failure: verdict, operation, path, errno, time.
    """
    target = resolve(data, bootstrap, temporal_address, cluster)
    found = timeline(target, node, directory)
    if json:
        output.print_json(found)
    else:
        _print(node, found)
    output.need_whole(found["problems"])


def _print(node: int, found: dict[str, Any]) -> None:
    typer.echo(f"{found['path']} of node {node}: {_state(found)}")
    columns = ("time", "event", "replicas", "what became of them", "reason")
    if found["events"]:
        output.console().print(output.table(columns, [_line(event) for event in found["events"]]))
    else:
        typer.echo("nothing is recorded: it has not failed")


def timeline(target: Target, node: int, directory: str) -> dict[str, Any]:
    """Return the state of a directory and its events, oldest first; `problems` has why a source is missing.

    Raises `OpsError` when neither the node nor Temporal responds, or the node has never had the directory.
    """
    target.refuse_apache_kafka("its brokers keep no history of their log directories")
    problems: list[str] = []
    own: dict[str, Any] = {"path": directory, "state": "unknown", "failure": None, "signs": {}, "entries": []}
    try:
        own = nodes.call(nodes.address(target, node), "directory-history", path=directory)
    except nodes.Unreachable as error:
        problems.append(str(error))
    failed: list[dict[str, Any]] = []
    if target.temporal_address:
        try:
            failed = runs.with_temporal(target, lambda client: failure_runs(client, target.cluster, node, own["path"]))
        except OpsError as error:
            problems.append(str(error))
    else:
        problems.append("no address of Temporal is known: the runs of its failures are not shown; --temporal-address")
    if len(problems) > 1:
        raise OpsError("; ".join(problems))
    events = merge(own["entries"], failed)
    rest = {name: value for name, value in own.items() if name != "entries"}
    return {"node": node, **rest, "events": events, "problems": problems}


def merge(entries: list[dict[str, Any]], failed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the node's entries and the runs as events, oldest first; a run belongs to the failure of its time.

    Both note a failure within a second of each other. A run without an entry, which is older than the node's records or
    of a node that does not respond, is an event of its own.
    """
    events = [{**entry, "run": None} for entry in entries]
    for run in failed:
        same = [event for event in events if event["event"] == "failed" and event["run"] is None
                and abs(event["time"] - run["noticed"]) < 1.0]  # fmt: skip
        if same:
            same[0]["run"] = run
            continue
        held = [[row["topic"], partition] for row in run["replicas"] for partition in row["partitions"]]
        events.append(
            {
                "time": run["noticed"],
                "path": run["directory"],
                "directory_id": run["directory_id"],
                "event": "failed",
                "reason": run["reason"],
                "evidence": run["evidence"],
                "replicas": held,
                "count": len(held),
                "became": [],
                "run": run,
            }
        )
    return sorted(events, key=lambda event: float(event["time"]))


async def failure_runs(client: Client, cluster: str, node: int, path: str) -> list[dict[str, Any]]:
    """Return the results of the runs of a directory's failures, so far as they are known."""
    prefix = f"{names.directory_failure_id(cluster, node, '', 0.0).rsplit('//', 1)[0]}/"
    query = f"WorkflowType = '{names.DIRECTORY_FAILURE}' AND WorkflowId STARTS_WITH '{prefix}'"
    executions = [each async for each in client.list_workflows(query, limit=RUNS)]
    found = await asyncio.gather(*(_result(client, each) for each in executions))
    return [row for row in found if row is not None and row["directory"] == path]


async def _result(client: Client, run: WorkflowExecution) -> dict[str, Any] | None:
    handle = client.get_workflow_handle(run.id, run_id=run.run_id)
    try:
        closed = run.status is WorkflowExecutionStatus.COMPLETED
        async with asyncio.timeout(SECONDS):
            found: dict[str, Any] = await (handle.result() if closed else handle.query("progress"))
    except Exception:
        return None  # it failed, or no worker responds: the node's own record remains
    return {"workflow_id": run.id, "evidence": None, **found}


def _state(found: dict[str, Any]) -> str:
    words = ", ".join([found["state"], *found["signs"]])
    return f"{words} ({found['failure']})" if found["failure"] else words


def _line(event: dict[str, Any]) -> tuple[str, ...]:
    when = datetime.fromtimestamp(event["time"], UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    evidence, run = event["evidence"], event["run"]
    why = event["reason"] or "-"
    if evidence is not None and evidence["errno"]:
        why += f" ({evidence['verdict']}, {evidence['errno']})"
    elif evidence is not None:
        why += f" ({evidence['verdict']})"
    if run is not None and run["moves"]:
        why += f"; ended {len(run['moves'])} moves"
    return when, event["event"], str(event["count"]), _became(event), why


def _became(event: dict[str, Any]) -> str:
    held = [f"{topic}-{partition} {became}" for (topic, partition), became
            in zip(event["replicas"], event["became"], strict=False)]  # fmt: skip
    more = event["count"] - _SHOWN
    return ", ".join(held[:_SHOWN]) + (f", and {more} more" if held and more > 0 else "") if held else "-"
