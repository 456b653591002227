"""One program, a role each: a storage node, or what stands above the nodes.

    python worker.py node --config server.properties     a storage node: Kafka listener, log directories, its activities
    python worker.py controller --cluster NAME           all that is not a node: the next two in one process
    python worker.py orchestrator --cluster NAME         workflows and the metadata's activities
    python worker.py history --cluster NAME              exports of histories

Temporal is found as its own command line finds it: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, ... and the profile file.
Log lines go to standard error. SIGTERM and SIGINT stop a role cleanly; the exit code is then 0, 1 when it could not
start, 2 for bad usage.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from activities import connection, state_file
from activities.client_state import ClientHealth
from activities.cluster_run import ClusterRun, paused_sentence
from activities.housekeeping import Housekeeper
from activities.serving import serve
from activities.supervision import supervise
from activities.temporal_client import TemporalClient
from storage_node import interpreter
from workflows.model import names

log = logging.getLogger("rehome")

#: Seconds after which a workflow task of a killed controller goes to another one.
STICKY = timedelta(seconds=2)
GRACE = timedelta(seconds=2)  # for activities under way when a role stops
HEARTBEATS = timedelta(seconds=2)  # between heartbeats of an export that reach the server

ORCHESTRATOR = "orchestrator"
HISTORY = "history"


def parser() -> argparse.ArgumentParser:
    """The command line."""
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
        one.add_argument("--cluster", required=True, metavar="NAME", help="the cluster's name, as in its task queues")
        one.add_argument(
            "--export-dir",
            metavar="DIR",
            default=os.environ.get("REHOME_EXPORT_DIR", "export"),
            help="where the hourly export writes (default: $REHOME_EXPORT_DIR, or ./export)",
        )
        one.add_argument(
            "--export-keep-days",
            metavar="DAYS",
            type=_days,
            default=os.environ.get("REHOME_EXPORT_KEEP_DAYS", "0"),
            help="remove exports that are older (default: $REHOME_EXPORT_KEEP_DAYS, or 0: keep all)",
        )
        one.add_argument(
            "--state-file",
            metavar="FILE",
            default=os.environ.get("REHOME_STATE_FILE", ""),
            help="where the process writes the state of its connection to Temporal (default: $REHOME_STATE_FILE)",
        )
    for each in roles.choices.values():
        each.add_argument("--profile", metavar="NAME", help="profile of Temporal's configuration file")
    return top


def _days(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 36_500:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days from 0 to 36500")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a role until it is told to stop; answers the exit code."""
    if refused := interpreter.refusal():
        print(f"worker.py: {refused}", file=sys.stderr)
        return 1
    given = parser().parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr, level=given.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    if given.role == "node":
        from activities.node_process import run_node

        return run_node(given.config, given.profile)
    roles = (ORCHESTRATOR, HISTORY) if given.role == "controller" else (given.role,)
    export = str(Path(given.export_dir).absolute()), given.export_keep_days
    try:
        connection.settings(given.role, given.profile)  # what cannot be read at the start ends it
        asyncio.run(_until_stopped(lambda: _above(given, roles, export)))
    except KeyboardInterrupt:
        return 0
    except Exception as error:
        log.debug("the role failed", exc_info=True)
        print(f"worker.py {given.role}: {error}", file=sys.stderr)
        return 1
    return 0


async def _until_stopped(work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` until it fails or a signal says stop; then cancel it and wait for its end."""
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


async def _above(given: argparse.Namespace, roles: Sequence[str], export: tuple[str, int]) -> None:
    """Run the roles above the nodes, until cancelled; `export` is where exports go, and for how many days.

    Each part is restarted when it fails: neither an error nor an outage of the server ends the process.
    """
    cluster, health = given.cluster, ClientHealth(f"the {given.role} of {given.cluster}")
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
    if given.state_file:
        parts["the state file"] = lambda: state_file.keep(Path(given.state_file), given.role, lambda: health.state)
    async with asyncio.TaskGroup() as group:
        for part, work in parts.items():
            group.create_task(supervise(part, work, health))


async def _serve(temporal: TemporalClient, make: Callable[[Client], Worker], renewed: asyncio.Event) -> None:
    """Run a worker until cancelled or until it fails; replace it when it is to be renewed, or the client was."""
    while True:
        client = await temporal.get()
        renewed.clear()
        await serve([make(client)], _wait(renewed), temporal.replaced(client))


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _orchestrator(client: Client, cluster: str) -> Worker:
    import workflows
    from activities.metadata import probe_node
    from workflows import options
    from workflows.runner import deciding_as_replays, workflow_runner

    runner = workflow_runner()
    worker = Worker(
        client,
        task_queue=names.cluster_queue(cluster),
        workflows=workflows.ALL,
        activities=[probe_node],
        workflow_runner=runner,
        max_concurrent_workflow_tasks=options.STEPS_AT_ONCE,
        sticky_queue_schedule_to_start_timeout=STICKY,
        graceful_shutdown_timeout=GRACE,
    )
    return deciding_as_replays(worker, runner)


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
    # The client's threads may crash an interpreter that winds down; everything is flushed and closed by now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
