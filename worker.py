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

from activities import connection, housekeeping
from storage_node import interpreter
from workflows.model import names

log = logging.getLogger("rehome")

#: Seconds after which a workflow task of a killed controller goes to another one.
STICKY = timedelta(seconds=2)
GRACE = timedelta(seconds=2)  # for activities under way when a role stops
HEARTBEATS = timedelta(seconds=2)  # between heartbeats of an export that reach the server
PAUSE = 1.0  # seconds before failed workers are started again

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
        asyncio.run(_until_stopped(lambda: _above(given.role, roles, given.cluster, export, given.profile)))
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


async def _above(role: str, roles: Sequence[str], cluster: str, export: tuple[str, int], profile: str | None) -> None:
    """The roles above the nodes, until cancelled; `export` is where exports go, and for how many days."""
    client = await connection.connect_forever(role, profile)
    log.info("%s of %s is connected to namespace %s", role, cluster, client.namespace)
    renewed = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        if ORCHESTRATOR in roles:
            group.create_task(_serve(lambda: _orchestrator(client, cluster), renewed))
            group.create_task(housekeeping.keep_house(client, cluster, *export, renewed.set))
        if HISTORY in roles:
            group.create_task(_serve(lambda: _history(client, cluster), asyncio.Event()))


async def _serve(make: Callable[[], Worker], renewed: asyncio.Event) -> None:
    """Run a worker until cancelled; one that fails, or is to be renewed, is replaced."""
    while True:
        renewed.clear()
        worker = make()
        running = asyncio.create_task(worker.run())
        renewal = asyncio.create_task(renewed.wait())
        try:
            await asyncio.wait({running, renewal}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            renewal.cancel()
            await worker.shutdown()
            (ended,) = await asyncio.gather(running, return_exceptions=True)
        if isinstance(ended, Exception):
            log.error("the worker on %s failed and is started again", worker.task_queue, exc_info=ended)
            await asyncio.sleep(PAUSE)


def _orchestrator(client: Client, cluster: str) -> Worker:
    import workflows
    from activities.metadata import probe_node
    from workflows.runner import deciding_as_replays, workflow_runner

    runner = workflow_runner()
    worker = Worker(
        client,
        task_queue=names.cluster_queue(cluster),
        workflows=workflows.ALL,
        activities=[probe_node],
        workflow_runner=runner,
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
