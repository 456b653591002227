"""The worker program: a storage node, or one of the roles above the nodes.

    python worker.py node --config server.properties     a storage node: Kafka listener, log directories, its activities
    python worker.py controller --cluster NAME           orchestrator and history in one process
    python worker.py orchestrator --cluster NAME         workflows and the metadata's activities
    python worker.py orchestrator --command-config FILE  plans on any Kafka cluster, by Kafka's client.properties
    python worker.py history --cluster NAME              exports of histories

The connection to Temporal is configured as for its CLI: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, ... and the configuration
file. Logs are written to standard error. SIGTERM and SIGINT stop a role cleanly. Exit codes: 0 after a clean stop, 1 if
the role fails, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.client import Client
from temporalio.worker import Worker

from activities.controller.cluster_run import ClusterRun, paused_sentence
from activities.controller.housekeeping import Housekeeper, keep_exports
from activities.kafka_admin import client_config
from activities.kafka_admin.client_config import ClientConfig
from activities.kafka_admin.cluster_id import cluster_id_of
from activities.temporal import connection, state_file
from activities.temporal.client import TemporalClient
from activities.temporal.client_state import ClientHealth
from activities.temporal.serving import serve
from activities.temporal.supervision import supervise
from storage_node.lifecycle import interpreter
from workflows.model import names
from workflows.model.plans.problems import PlanProblems

if TYPE_CHECKING:
    from activities.kafka_admin.pool import AdminPool
    from activities.plans.alerts import Webhook

log = logging.getLogger("rehome")

#: The time after which the server gives a workflow task of a killed controller to another one.
STICKY = timedelta(seconds=2)
GRACE = timedelta(seconds=2)  # for running activities when a role stops
HEARTBEATS = timedelta(seconds=2)  # between heartbeats of an export that reach the server

ORCHESTRATOR = "orchestrator"
HISTORY = "history"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="worker.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="default: INFO")
    roles = top.add_subparsers(dest="role", required=True, metavar="ROLE")
    node = roles.add_parser("node", help="a storage node")
    node.add_argument("--config", required=True, metavar="FILE", help="Kafka's server.properties")
    for role, text in (
        ("controller", "orchestrator and history in one process"),
        (ORCHESTRATOR, "workflows and the metadata's activities"),
        (HISTORY, "exports of histories"),
    ):
        one = roles.add_parser(role, help=text)
        one.add_argument(
            "--cluster",
            required=role != ORCHESTRATOR,
            metavar="NAME",
            help="the cluster id, as in its task queues" + (" (default: Kafka's)" if role == ORCHESTRATOR else ""),
        )
        if role != HISTORY:
            one.add_argument(
                "--command-config", metavar="FILE", help="Kafka's client.properties: serve plans on this Kafka cluster"
            )
            one.add_argument(
                "--bootstrap-server", metavar="HOST:PORT", default="", help="the same, or in place of the file's"
            )
            one.add_argument(
                "--plan-dir",
                metavar="DIR",
                default=os.environ.get("REHOME_PLAN_DIR", "plans"),
                help="folder of plans and certificates (default: $REHOME_PLAN_DIR, or ./plans)",
            )
            one.add_argument(
                "--alerts",
                metavar="FILE",
                default=os.environ.get("REHOME_ALERTS", ""),
                help="TOML file of the webhooks that plans may alert (default: $REHOME_ALERTS)",
            )
        one.add_argument(
            "--export-dir",
            metavar="DIR",
            default=os.environ.get("REHOME_EXPORT_DIR", "export"),
            help="folder of the hourly export (default: $REHOME_EXPORT_DIR, or ./export)",
        )
        one.add_argument(
            "--export-keep-days",
            metavar="DAYS",
            type=_days,
            default=os.environ.get("REHOME_EXPORT_KEEP_DAYS", "0"),
            help="delete older exports (default: $REHOME_EXPORT_KEEP_DAYS, or 0: keep all)",
        )
        one.add_argument(
            "--state-file",
            metavar="FILE",
            default=os.environ.get("REHOME_STATE_FILE", ""),
            help="file for the state of the connection to Temporal (default: $REHOME_STATE_FILE)",
        )
    for each in roles.choices.values():
        each.add_argument("--profile", metavar="NAME", help="profile of Temporal's configuration file")
    return top


def _days(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 36_500:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid number of days: it must be from 0 to 36500")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a role until a signal stops it; return the exit code."""
    if refused := interpreter.refusal():
        print(f"worker.py: {refused}", file=sys.stderr)
        return 1
    given = parser().parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr, level=given.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    if given.role == "node":
        from activities.node.process import run_node

        return run_node(given.config, given.profile)
    roles: tuple[str, ...] = (ORCHESTRATOR, HISTORY) if given.role == "controller" else (given.role,)
    export = str(Path(given.export_dir).absolute()), given.export_keep_days
    try:
        connection.settings(given.role, given.profile)  # invalid settings end the process at its start
        kafka = _kafka(given)
        webhooks = _webhooks(getattr(given, "alerts", ""))
        if kafka is None and not given.cluster:
            top = (
                f"worker.py {given.role}: --cluster is missing: name the cluster of storage nodes; for any other Kafka"
            )
            print(f"{top} cluster hand in --command-config or --bootstrap-server", file=sys.stderr)
            return 2
        if kafka is not None and given.role == ORCHESTRATOR:
            roles = ()
        asyncio.run(_until_stopped(lambda: _above(given, roles, export, kafka, webhooks)))
    except KeyboardInterrupt:
        return 0
    except Exception as error:
        log.debug("the role failed", exc_info=True)
        print(f"worker.py {given.role}: {error}", file=sys.stderr)
        return 1
    return 0


def _kafka(given: argparse.Namespace) -> ClientConfig | None:
    """Return the settings of the Kafka cluster whose plans the role serves. Raises `BadClientConfig`."""
    config, bootstrap = getattr(given, "command_config", None), getattr(given, "bootstrap_server", "")
    if config:
        return client_config.read(Path(config), bootstrap)
    return client_config.of({"bootstrap.servers": bootstrap}) if bootstrap else None


def _webhooks(file: str) -> Mapping[str, Webhook]:
    """Return the webhooks of an --alerts file. Raises ValueError for one that cannot be used."""
    from activities.plans import alerts

    if not file:
        return {}
    try:
        return alerts.read(Path(file))
    except OSError as error:
        raise ValueError(f"cannot read the file of --alerts {file}: {error.strerror}") from None
    except PlanProblems as error:
        raise ValueError(f"the file of --alerts {file} is not valid: {error}") from None


async def _until_stopped(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` until it fails, or until SIGTERM or SIGINT; then cancel it and wait for its end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    working = asyncio.ensure_future(work())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return
    await working


async def _above(
    given: argparse.Namespace,
    roles: Sequence[str],
    export: tuple[str, int],
    kafka: ClientConfig | None,
    webhooks: Mapping[str, Webhook],
) -> None:
    """Run the roles above the nodes until cancelled; `export` is the export folder and the days to keep exports. With
    `kafka` also plans on that cluster, whose alerts `webhooks` receive.

    A part that fails is restarted: neither an error nor a Temporal outage ends the process.
    """
    cluster = given.cluster or (await cluster_id_of(kafka) if kafka is not None else "")
    health = ClientHealth(f"the {given.role} of {cluster}")
    temporal = TemporalClient(given.role, health, given.profile)
    renewed = asyncio.Event()

    def saw(run: ClusterRun | None) -> None:
        health.note("controller", paused_sentence(cluster, run))

    house = Housekeeper(temporal.get, cluster, *export, renewed.set, saw)
    parts: dict[str, Callable[[], Awaitable[None]]] = {"the client": temporal.run}
    if ORCHESTRATOR in roles:
        parts["workflows"] = lambda: _serve(temporal, lambda client: _orchestrator(client, cluster), renewed)
        parts["housekeeping"] = house.run
    if HISTORY in roles:
        parts["exports"] = lambda: _serve(temporal, lambda client: _history(client, cluster), asyncio.Event())
    if kafka is not None:
        folder = Path(given.plan_dir).absolute()
        parts["plans"] = lambda: _serve(
            temporal, lambda client: _plans(client, cluster, kafka, folder, webhooks), asyncio.Event()
        )
        if ORCHESTRATOR not in roles:
            parts["exports' workflow"] = lambda: _serve(
                temporal, lambda client: _exporting(client, cluster), asyncio.Event()
            )
            parts["the exports' schedule"] = lambda: keep_exports(temporal.get, cluster, *export)
    if given.state_file:
        parts["the state file"] = lambda: state_file.keep(Path(given.state_file), given.role, lambda: health.state)
    async with asyncio.TaskGroup() as group:
        for part, work in parts.items():
            group.create_task(supervise(part, work, health))


async def _serve(temporal: TemporalClient, make: Callable[[Client], Worker], renewed: asyncio.Event) -> None:
    """Run a worker until it fails or is cancelled; replace it when `renewed` is set or the client has been replaced."""
    while True:
        client = await temporal.get()
        renewed.clear()
        await serve([make(client)], _wait(renewed), temporal.replaced(client))


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _orchestrator(client: Client, cluster: str) -> Worker:
    import workflows
    from activities.controller.probing import probe_node
    from workflows import options
    from workflows.runner import deciding_as_replays, workflow_runner

    runner = workflow_runner()
    worker = Worker(
        client,
        task_queue=names.cluster_queue(cluster),
        workflows=workflows.ALL,
        activities=[probe_node],
        workflow_runner=runner,
        max_concurrent_workflow_tasks=options.WORKFLOW_TASKS_AT_ONCE,
        sticky_queue_schedule_to_start_timeout=STICKY,
        graceful_shutdown_timeout=GRACE,
    )
    return deciding_as_replays(worker, runner)


def _plans(client: Client, cluster: str, kafka: ClientConfig, folder: Path, webhooks: Mapping[str, Webhook]) -> Worker:
    from activities.kafka_admin.pool import AdminPool

    return plans_worker(client, cluster, AdminPool(kafka), folder, webhooks)


def plans_worker(
    client: Client, cluster: str, pool: AdminPool, folder: Path, webhooks: Mapping[str, Webhook] | None = None
) -> Worker:
    """Return the worker of plans of a cluster, which reaches it through a pool of admin clients."""
    import workflows
    from activities.plans.activities import PlanActivities
    from activities.plans.store import PlanStore
    from workflows import options
    from workflows.runner import deciding_as_replays, workflow_runner

    runner = workflow_runner()
    activities = PlanActivities(pool, PlanStore(folder), client, webhooks)
    activities.search_attributes.begin()
    worker = Worker(
        client,
        task_queue=names.plans_queue(cluster),
        workflows=workflows.PLANS,
        activities=activities.all,
        workflow_runner=runner,
        max_concurrent_workflow_tasks=options.WORKFLOW_TASKS_AT_ONCE,
        max_heartbeat_throttle_interval=HEARTBEATS,
        sticky_queue_schedule_to_start_timeout=STICKY,
        graceful_shutdown_timeout=GRACE,
    )
    return deciding_as_replays(worker, runner)


def _exporting(client: Client, cluster: str) -> Worker:
    """Return the worker of the workflow that exports: a Kafka cluster has no worker of a controller, which runs it."""
    import workflows
    from workflows.runner import workflow_runner

    return Worker(
        client,
        task_queue=names.cluster_queue(cluster),
        workflows=workflows.EXPORTS,
        workflow_runner=workflow_runner(),
        graceful_shutdown_timeout=GRACE,
    )


def _history(client: Client, cluster: str) -> Worker:
    from activities.history import HistoryActivities

    activities: list[Callable[..., Any]] = [HistoryActivities(client, client.namespace, cluster).export_histories]
    return Worker(
        client,
        task_queue=names.history_queue(cluster),
        activities=activities,
        max_heartbeat_throttle_interval=HEARTBEATS,
        graceful_shutdown_timeout=GRACE,
    )


if __name__ == "__main__":
    code = main()
    # The client's threads may crash the interpreter's shutdown; all files are flushed and closed at this point.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
