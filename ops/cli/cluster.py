"""rehome cluster: the controller's state, and the recovery of a controller that lost its state."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.service import RPCError

from ops.cli import output
from ops.cli.moves import runs
from ops.cli.options import Cluster, Data, Json, TemporalAddress, group
from ops.cli.target import Target, resolve
from ops.stack.errors import OpsError, Refused, ResponseTimeout
from workflows.model import names
from workflows.model.run_progress import ClusterDescription, NodeDescription

app = group("Show the controller's state; recover a controller that lost its state.")

RESPONSE_SECONDS = 10.0


@app.command()
def describe(
    data: Data = None, temporal_address: TemporalAddress = None, cluster: Cluster = None, json: Json = False
) -> None:
    """Show the controller's state: generation, nodes with their leases and directories, counts."""
    target = _controlled(data, temporal_address, cluster)

    async def query(client: Client) -> ClusterDescription:
        handle = client.get_workflow_handle(names.cluster_id(target.cluster))
        try:
            described = handle.query("describe", result_type=ClusterDescription)
            return cast(ClusterDescription, await asyncio.wait_for(described, RESPONSE_SECONDS))
        except runs.UNREADABLE as error:
            raise OpsError(runs.unreadable(f"the state of cluster {target.cluster}", error)) from error
        except (RPCError, TimeoutError) as error:
            raise _no_controller(target.cluster, error) from error

    state = runs.with_temporal(target, query)
    if json:
        output.print_json(asdict(state))
        return
    for key, value in vars(state).items():
        if not isinstance(value, list):
            typer.echo(f"{key.replace('_', ' ')}: {value}")
    if state.nodes:
        columns = tuple(each.name for each in fields(NodeDescription))
        output.show([], False, columns, (list(vars(node).values()) for node in state.nodes), "no nodes")


@app.command()
def recover(
    without: Annotated[
        list[int], typer.Option("--without", metavar="NODE", help="A node that is permanently lost; may be repeated.")
    ],
    data: Data = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Let a controller that lost its state serve without the images of permanently lost nodes."""
    target = _controlled(data, temporal_address, cluster)

    async def request(client: Client) -> list[Any]:
        handle = client.get_workflow_handle(names.cluster_id(target.cluster))
        responses: list[Any] = []
        for node in without:
            try:
                update = handle.execute_update("recover_without", {"node": node})
                responses.append(await asyncio.wait_for(update, RESPONSE_SECONDS))
            except WorkflowUpdateFailedError as error:
                raise Refused(
                    f"the controller rejected the recovery without node {node}: the update {runs.why(error)}"
                ) from error
            except (RPCError, TimeoutError) as error:
                raise _no_controller(target.cluster, error) from error
        return responses

    responses = runs.with_temporal(target, request)
    if json:
        output.print_json({"without": without, "answers": responses})
    else:
        typer.echo(f"the controller of {target.cluster} recovers without {', '.join(f'node {n}' for n in without)}")


def _controlled(data: Path | None, temporal_address: str | None, cluster: str | None) -> Target:
    """Return the cluster. Raises `OpsError` for Apache Kafka."""
    target = resolve(data, temporal_address=temporal_address, cluster=cluster)
    target.refuse_apache_kafka("its own controllers hold the metadata; see: kafka-metadata-quorum describe --status")
    return target


def _no_controller(cluster: str, error: Exception) -> OpsError:
    why = getattr(error, "message", "") or "no response"
    return ResponseTimeout(
        f"the controller of cluster {cluster} does not respond ({why}); is it running? see: rehome stack status"
    )
