"""rehome move --file: a KIP-113 JSON carried out by AlterReplicaLogDirs, one row per replica."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from ops.cli import log_dirs, move_throttle, moves, output, reassign_plan
from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.log_dirs import Answer, Standing, Wish
from ops.cli.moves_view import NODE_AWAY
from ops.cli.target import Target
from ops.cli.waiting import Bars, Shown, by_replica
from ops.stack.errors import OpsError, UsageError
from storage_node.types import TopicPartition
from workflows.model import plan

LOOK_SECONDS = 0.5


def read_wishes(file: Path) -> list[Wish]:
    """The replicas that the file gives a directory. Raises `UsageError` naming the path of the bad field."""
    wishes = [
        Wish(TopicPartition(entry.topic, entry.partition), node, directory)
        for entry in reassign_plan.read(file)
        for node, directory in zip(entry.replicas, entry.log_dirs, strict=True)
        if directory != plan.ANY
    ]
    if not wishes:
        raise UsageError(f'the plan {file} moves nothing: no replica in it has a log_dirs entry other than "any"')
    return wishes


def run(target: Target, file: Path, *, rate: int | None, patience: float, wait: bool, as_json: bool) -> None:
    """Request every move of the file; with `wait` show progress until each replica is in its target directory.

    With a `rate` the nodes have it as their throttle while the moves are under way. A throttle that an earlier call
    without runs has left is removed after the wait.
    """
    wishes = read_wishes(file)
    if rate is not None and not wait and not target.temporal_address:
        raise UsageError("--throttle ends with the moves; without Temporal only this command can remove it: add --wait")
    with KafkaAdmin(target.need_kafka()) as admin:
        try:
            throttle = (
                move_throttle.left(admin, file)
                if rate is None
                else move_throttle.begin(target, admin, file, wishes, rate, patience)
            )
            answers = log_dirs.ask(admin, wishes, patience=patience)
            refused = [answer for answer in answers if answer.outcome == log_dirs.REFUSED]
            accepted = [answer.wish for answer in answers if answer.outcome == log_dirs.ACCEPTED]
            if throttle is not None:
                throttle.requested(accepted)
            rows: Sequence[Answer | Standing] = answers
            lost: list[Standing] = []
            if wait:
                ended = {standing.wish: standing for standing in _wait(admin, accepted)}
                if throttle is not None:
                    throttle.ended()
                rows = [ended.get(answer.wish, answer) for answer in answers]
                lost = [s for s in ended.values() if s.state != log_dirs.IN_PLACE]
            elif isinstance(throttle, move_throttle.Noted):
                output.say(throttle.keeps())
        except BaseException as error:
            _leave(admin, file, wishes, isinstance(error, Exception))
            raise
    _print(rows, as_json)
    if refused:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise OpsError(f"{refused[0].wish.partition} was refused: {refused[0].message}{more}")
    if lost:
        wish = lost[0].wish
        raise OpsError(
            f"{wish.partition} is not in {wish.directory} on node {wish.node} and is no longer being copied: "
            "the move was cancelled or failed; see its run in Temporal's UI"
        )


def _leave(admin: KafkaAdmin, file: Path, wishes: Sequence[Wish], look: bool) -> None:
    """Remove the throttle that this call or an earlier one has noted where no move of the file is under way, else say
    what removes it. Without `look`, as after Ctrl-C, no node is asked.
    """
    with contextlib.suppress(OpsError):
        throttle = move_throttle.left(admin, file)
        if throttle is None:
            return
        with contextlib.suppress(OpsError):
            if look and not _under_way(admin, wishes):
                throttle.ended()
                return
        output.say(throttle.keeps())


def _under_way(admin: KafkaAdmin, wishes: Sequence[Wish]) -> bool:
    """Whether a node has a copy of one of these moves. Raises `OpsError`."""
    views = admin.log_dirs(sorted({wish.node for wish in wishes}))
    return any(each.state == log_dirs.COPYING for each in log_dirs.standings(wishes, views))


def _wait(admin: KafkaAdmin, wishes: Sequence[Wish]) -> list[Standing]:
    """Until nothing is being copied any more; a node that does not answer is waited for."""
    nodes = sorted({wish.node for wish in wishes})
    final: dict[Wish, Standing] = {}
    addresses = {each.node: each for each in admin.nodes(fenced=True)}
    with Bars() as bars:
        for wish in wishes:
            bars.show(f"{wish.partition} on node {wish.node}", Shown("queued"))
        while len(final) < len(wishes):
            reported = by_replica(moves.ask([addresses[node] for node in nodes if node in addresses]).lines)
            for node in nodes:
                mine = [wish for wish in wishes if wish.node == node and wish not in final]
                if not mine:
                    continue
                try:
                    standings = log_dirs.standings(mine, admin.log_dirs([node]))
                except OpsError:
                    for wish in mine:
                        bars.show(f"{wish.partition} on node {wish.node}", Shown(NODE_AWAY))
                    continue
                for standing in standings:
                    tp, over = standing.wish.partition, standing.state != log_dirs.COPYING
                    line = reported.get((node, tp.topic, tp.partition))
                    now = Shown(standing.state, standing.bytes_total, standing.bytes_copied, done=over)
                    if line is not None and not over:
                        now = replace(now, rate=line.rate, eta=line.eta)
                    bars.show(f"{tp} on node {node}", now)
                    if over:
                        final[standing.wish] = standing
            bars.looked()
            time.sleep(LOOK_SECONDS if len(final) < len(wishes) else 0)
    return [final[wish] for wish in wishes]


def _print(rows: Sequence[Answer | Standing], as_json: bool) -> None:
    if as_json:
        output.print_json([row.as_json() for row in rows])
        return
    lines = [
        [
            str(row.wish.partition),
            str(row.wish.node),
            row.wish.directory,
            row.outcome if isinstance(row, Answer) else row.state,
            row.message if isinstance(row, Answer) else "",
        ]
        for row in rows
    ]
    output.console().print(output.table(("replica", "node", "to", "outcome", "why"), lines))
    typer.echo(f"{len(rows)} replica{'s' if len(rows) != 1 else ''}; watch them with: rehome moves --watch")
