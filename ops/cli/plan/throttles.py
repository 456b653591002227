"""rehome throttles: which throttles are held for whom, and which are left over; removes leftovers on request."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text
from temporalio.client import Client

from activities.kafka_admin.admin import KafkaAdmin
from activities.kafka_admin.client_config import ClientConfig
from activities.kafka_admin.errors import AdminError
from activities.kafka_admin.pool import AdminPool
from activities.kafka_admin.reader import ClusterReader
from activities.temporal import describing
from ops.cli import output
from ops.cli.moves.runs import with_temporal
from ops.cli.options import Json
from ops.cli.plan import leftovers, runs
from ops.cli.plan.kafka import CommandConfig, settings_of, with_pool
from ops.cli.plan.leftovers import Leftover, Throttled
from ops.cli.plan.place import Place, at_place
from ops.cli.target import Target
from ops.stack.errors import OpsError, PartialAnswer, Refused, ResponseTimeout, UsageError
from workflows.model import names
from workflows.model.plans.running.keeper_results import ThrottleKeeperProgress, ThrottlesForgotten
from workflows.model.plans.running.throttling import Leases, leases_in
from workflows.model.plans.values import ClusterView
from workflows.model.throttles import LISTS, MOVE_RATE, RATES

#: Topics of one DescribeConfigs.
TOPICS_AT_ONCE = 200
MOST_ENTRIES = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(throttles)


@at_place
def throttles(
    place: Place,
    repair: Annotated[bool, typer.Option("--repair", help="Remove the leftovers, after showing them.")] = False,
    forget: Annotated[
        int | None,
        typer.Option(
            "--forget", metavar="BROKER", help="Give up restoring the configs of a broker that does not come back."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove them without asking.")] = False,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Show the cluster's throttles: those held for plans, with the values from before, and leftovers.

    Leftovers are set by another tool or by hand, and held for no plan. --repair removes them, except those
    that slow a move in progress. The keeper of throttles waits for a broker that is down, to restore its
    configs; --forget ends that for a broker that does not come back.
    """
    target = place.target
    of_cluster = place.cluster
    if forget is not None:
        given_up = with_temporal(target, lambda client: _forget(client, of_cluster, forget))
        if json:
            output.print_json({"version": 1, "broker": forget, "before": given_up})
        for key, value in [] if json else given_up.items():
            typer.echo(f"broker {forget}: {key} is not restored; before, it was {value or 'not set'}")
        return
    config = settings_of(target, command_config)
    look = _look(target, config, of_cluster)
    left = look.left
    if not json:
        output.console().print(shown(look.keeper, look.leases, left, look.throttled.silent, look.others))
    removed: list[Leftover] = []
    removable = [each for each in left if not each.in_use]
    if repair and removable:
        if look.others:
            raise Refused(f"nothing was removed: {look.others[0]} is open, which may hold throttles of its own")
        _confirm(f"Remove {_count(len(removable), 'leftover')}?", yes)
        again = _look(target, config, of_cluster)
        if again.others:
            raise Refused(f"nothing was removed: {again.others[0]} is open, which may hold throttles of its own")
        removed = leftovers.still(removable, again.left)
        _remove(config, removed)
        if not json:
            typer.echo(f"removed {_count(len(removed), 'leftover')}")
    if json:
        output.print_json(as_json(look.keeper, look.leases, left, look.throttled.silent, look.others, removed))
    if look.throttled.silent:
        raise PartialAnswer(
            f"the result lacks broker {', '.join(look.throttled.silent)}: it does not respond; try again"
        )


def _confirm(question: str, yes: bool) -> None:
    """Ask for confirmation; without a terminal --yes is required. Raises `OpsError`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("--yes is required without a terminal to remove leftovers; nothing was changed")
    if not typer.confirm(question, default=False, err=True):
        raise OpsError("nothing was changed")


class Look:
    """The throttles at one moment: the keeper's progress (None without one), what is set, and other holders' runs."""

    def __init__(
        self, keeper: ThrottleKeeperProgress | None, throttled: Throttled, view: ClusterView, others: Sequence[str]
    ) -> None:
        self.keeper, self.throttled, self.others = keeper, throttled, others
        self.leases = leases_in(keeper) if keeper is not None else Leases()
        self.left = leftovers.leftovers(throttled, self.leases, view)


def _look(target: Target, config: ClientConfig, cluster: str) -> Look:
    # The keeper last: what it has set before it responds, but not before the cluster did, is not taken for a leftover.
    throttled, view = with_pool(config, _read)
    keeper, others = with_temporal(target, lambda client: _held(client, cluster))
    return Look(keeper, throttled, view, others)


async def _held(client: Client, cluster: str) -> tuple[ThrottleKeeperProgress | None, list[str]]:
    """Return the keeper's progress, None if it is not open, and the open runs that hold throttles on storage nodes.

    Raises `OpsError` if the keeper does not respond: what is left over is then unknown.
    """
    others = [
        run.workflow_id
        for kind in (names.THROTTLE_LEASE, names.PARTITION_REASSIGNMENT)
        async for run in describing.open_runs(client, names.cluster_queue(cluster), kind)
    ]
    workflow_id = names.throttle_keeper_id(cluster)
    run = await describing.describe_run(client, workflow_id)
    if run is None or run.ended is not None:
        return None, others
    found = await runs.progress_of(client, workflow_id, ThrottleKeeperProgress)
    if found is None:
        raise ResponseTimeout(
            f"{workflow_id} is open, but no worker responds for it, so that what it holds is unknown; start one with: "
            f"worker.py orchestrator --command-config FILE --cluster {cluster}"
        )
    return found, others


async def _forget(client: Client, cluster: str, broker: int) -> dict[str, str | None]:
    """Have the keeper give up a broker; return the values from before. Raises `OpsError`."""
    workflow_id, argument = names.throttle_keeper_id(cluster), {"broker": str(broker)}
    found = await runs.update(client, workflow_id, "forget", ThrottlesForgotten, argument, of="the keeper of throttles")
    return found.before


async def _read(pool: AdminPool) -> tuple[Throttled, ClusterView]:
    """Return the throttles that are set on the cluster's brokers and topics. Raises `AdminError`."""
    view = await ClusterReader(pool).view()
    brokers: dict[str, dict[str, str]] = {}
    silent: list[str] = []

    async def read(node: int) -> None:
        try:
            brokers.update(await pool.run(lambda admin: admin.overrides("broker", [str(node)], (*RATES, MOVE_RATE))))
        except AdminError:
            silent.append(str(node))

    await asyncio.gather(*map(read, sorted(view.nodes)))
    names_ = await pool.run(KafkaAdmin.topics)
    topics: dict[str, dict[str, str]] = {}
    for at in range(0, len(names_), TOPICS_AT_ONCE):
        part = names_[at : at + TOPICS_AT_ONCE]
        topics |= await pool.run(lambda admin, part=part: admin.overrides("topic", part, LISTS))  # type: ignore[misc]
    return Throttled(brokers, topics, tuple(sorted(silent, key=int))), view


def _remove(config: ClientConfig, chosen: Sequence[Leftover]) -> None:
    """Remove leftovers. Raises `OpsError` with the first one that the cluster refuses to remove."""

    async def work(pool: AdminPool) -> None:
        for kind, changes in leftovers.changes(chosen).items():
            await pool.run(lambda admin, kind=kind, changes=changes: admin.change_configs(kind, changes))  # type: ignore[misc]

    with_pool(config, work)


def as_json(
    keeper: ThrottleKeeperProgress | None,
    leases: Leases,
    left: Sequence[Leftover],
    silent: Sequence[str],
    others: Sequence[str],
    removed: Sequence[Leftover],
) -> dict[str, Any]:
    """Return the throttles: what the keeper holds, for whom and what was before, and the leftovers."""
    return {
        "version": 1,
        "keeper": keeper.workflow_id if keeper is not None else None,
        "holders": {holder: asdict(each) for holder, each in leases.holdings.items()},
        "rates": [
            {
                "broker": int(node),
                "config": key,
                "before": one.before,
                "value": one.written,
                "theirs": one.theirs,
                "holders": [holder for holder, _ in one.claims],
            }
            for (node, key), one in leases.values.items()
        ],
        "entries": [
            {"topic": topic, "config": key, "entry": entry, "holders": list(one.holders), "written": one.written}
            for (topic, key, entry), one in leases.entries.items()
        ],
        "failed": keeper.failed if keeper is not None else {},
        "other_runs": list(others),
        "silent": list(silent),
        "leftovers": [asdict(each) for each in left],
        "removed": [asdict(each) for each in removed],
    }


def shown(
    keeper: ThrottleKeeperProgress | None,
    leases: Leases,
    left: Sequence[Leftover],
    silent: Sequence[str],
    others: Sequence[str],
) -> RenderableType:
    """Return the throttles for people."""
    rates = [
        [
            f"broker {node}",
            key,
            "not written yet" if one.written is None else _rate(one.written),
            "set by another tool" if one.theirs else "not set" if one.before is None else _rate(one.before),
            ", ".join(holder for holder, _ in one.claims) or "being restored",
        ]
        for (node, key), one in leases.values.items()
    ]
    lists: dict[tuple[str, str], tuple[list[str], set[str]]] = {}
    for (topic, key, entry), held in leases.entries.items():
        entries, held_by = lists.setdefault((topic, key), ([], set()))
        entries.append(entry)
        held_by |= set(held.holders)
    rows = rates + [
        [f"topic {topic}", key, _few(entries), "-", ", ".join(sorted(held_by)) or "being removed"]
        for (topic, key), (entries, held_by) in sorted(lists.items())
    ]
    parts: list[RenderableType] = []
    if rows:
        parts.append(output.table(("held on", "config", "value", "before", "for"), rows))
    else:
        parts.append(Text("no throttle is held for a plan"))
    failed = keeper.failed if keeper is not None else {}
    parts += [Text(f"not written yet: {what}: {why}") for what, why in sorted(failed.items())]
    parts += [Text(f"{each} is open, which may hold throttles of its own") for each in others]
    parts += [Text(f"broker {each} does not return its configs") for each in silent]
    if left:
        columns = ("left over on", "config", "value", "in use")
        parts.append(
            output.table(
                columns, [[f"{e.kind} {e.name}", e.key, _few(e.value.split(",")), e.in_use or "no"] for e in left]
            )
        )
    else:
        parts.append(Text("no throttle is left over"))
    return Group(*parts)


def _rate(text: str) -> str:
    return output.rate(int(text)) if text.isdecimal() else text


def _few(entries: Sequence[str]) -> str:
    more = len(entries) - MOST_ENTRIES
    return ",".join(entries[:MOST_ENTRIES]) + (f" and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
