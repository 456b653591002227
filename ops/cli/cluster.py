"""rehome cluster: the cluster as its controller sees it, and its recovery when the controller's memory is lost."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.service import RPCError

from ops.cli import output, runs
from ops.cli.options import Cluster, Data, Json, TemporalAddress
from ops.cli.target import resolve
from ops.stack.errors import OpsError
from workflows.model import names

app = typer.Typer(help="The cluster as its controller sees it.", no_args_is_help=True)

ANSWER_SECONDS = 10.0


@app.command()
def describe(
    data: Data = None, temporal_address: TemporalAddress = None, cluster: Cluster = None, json: Json = False
) -> None:
    """Show the controller's state: generation, nodes with their leases and directories, counts."""
    target = resolve(data, temporal_address=temporal_address, cluster=cluster)

    async def ask(client: Client) -> dict[str, Any]:
        handle = client.get_workflow_handle(names.cluster_id(target.cluster))
        try:
            answer = await asyncio.wait_for(handle.query("describe"), ANSWER_SECONDS)
        except (RPCError, TimeoutError) as error:
            raise _no_controller(target.cluster, error) from error
        return answer if isinstance(answer, dict) else {"describe": answer}

    answer = runs.with_temporal(target, ask)
    if json:
        output.print_json(answer)
        return
    nodes = answer.get("nodes", [])
    for key, value in answer.items():
        if not isinstance(value, (list, dict)):
            typer.echo(f"{key.replace('_', ' ')}: {value}")
    if isinstance(nodes, list) and nodes and all(isinstance(node, dict) for node in nodes):
        columns = tuple(nodes[0])
        output.show(nodes, False, columns, ([node.get(c, "") for c in columns] for node in nodes), "no nodes")


@app.command()
def recover(
    without: Annotated[
        list[int], typer.Option("--without", metavar="NODE", help="A node that will not come back; may be repeated.")
    ],
    data: Data = None,
    temporal_address: TemporalAddress = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Let a controller that lost its memory serve without waiting for the nodes named."""
    target = resolve(data, temporal_address=temporal_address, cluster=cluster)

    async def tell(client: Client) -> list[Any]:
        handle = client.get_workflow_handle(names.cluster_id(target.cluster))
        answers: list[Any] = []
        for node in without:
            try:
                update = handle.execute_update("recover_without", {"node": node})
                answers.append(await asyncio.wait_for(update, ANSWER_SECONDS))
            except WorkflowUpdateFailedError as error:
                raise OpsError(f"the controller refused to go on without node {node}: it {runs.why(error)}") from error
            except (RPCError, TimeoutError) as error:
                raise _no_controller(target.cluster, error) from error
        return answers

    answers = runs.with_temporal(target, tell)
    if json:
        output.print_json({"without": without, "answers": answers})
    else:
        typer.echo(f"the controller of {target.cluster} goes on without {', '.join(f'node {n}' for n in without)}")


def _no_controller(cluster: str, error: Exception) -> OpsError:
    why = getattr(error, "message", "") or "no answer"
    return OpsError(
        f"the controller of cluster {cluster} does not answer ({why}); is it running? see: rehome stack status"
    )
