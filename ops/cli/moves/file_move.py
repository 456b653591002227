"""rehome move --file: requests the moves of a KIP-113 file through AlterReplicaLogDirs, one row per replica."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from ops.cli import output, waits
from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.moves import log_dirs, open_moves, throttling
from ops.cli.moves.log_dirs import MoveProgress, MoveResult, RequestedMove
from ops.cli.moves.waiting import Bars, Shown, by_replica
from ops.cli.reassign import comparing
from ops.cli.target import Target
from ops.stack.errors import OpsError, Refused, UsageError
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState, StallReason
from workflows.model.move.parameter import ANY

POLL_SECONDS = 0.5
#: Seconds for which a request is repeated for replicas that do not exist yet, unless an option has another value.
PATIENCE = 10.0


def read_moves(file: Path) -> list[RequestedMove]:
    """Return the moves that the file requests. Raises `UsageError` naming the path of the bad field."""
    entries, sla = comparing.read(file)
    if sla is not None:
        output.warn_once(
            f"sla_seconds of {file} has no effect here, but with: rehome reassign {shlex.quote(str(file))}"
        )
    moves = [
        RequestedMove(TopicPartition(entry.topic, entry.partition), node, directory)
        for entry in entries
        for node, directory in zip(entry.replicas, entry.log_dirs, strict=True)
        if directory != ANY
    ]
    if not moves:
        raise UsageError(f'the plan {file} requests no moves: no replica in it has a log_dirs entry other than "any"')
    return moves


def run(
    target: Target, file: Path, *, rate: int | None, patience: float, wait: bool, as_json: bool, note: str = ""
) -> None:
    """Request every move of the file; with `wait` show progress until each replica is in its target directory.

    `note` is printed once the cluster responds. `rate` is the throttle of the nodes until the moves end. The throttle
    that an interrupted call without Temporal has left is removed after the wait.
    """
    moves = read_moves(file)
    if rate is not None and not wait and not target.has_runs:
        raise UsageError(
            f"--throttle {target.without_runs} requires --wait: only this command can remove it when the moves end"
        )
    with KafkaAdmin(target.need_kafka()) as admin:
        if note:
            output.say(note)
        try:
            with waits.lines(f"requesting {len(moves)} moves"):
                throttle = (
                    throttling.left(admin, file)
                    if rate is None
                    else throttling.begin(target, admin, file, moves, rate, patience)
                )
                results = log_dirs.request_moves(admin, moves, patience=patience)
            refused = [result for result in results if result.outcome == log_dirs.REFUSED]
            accepted = [result.move for result in results if result.outcome == log_dirs.ACCEPTED]
            if throttle is not None:
                throttle.requested(accepted)
            rows: Sequence[MoveResult | MoveProgress] = results
            lost: list[MoveProgress] = []
            if wait:
                ended = {progress.move: progress for progress in _wait(target, admin, accepted)}
                if throttle is not None:
                    with waits.lines("waiting until the throttle is removed"):
                        throttle.ended()
                rows = [ended.get(result.move, result) for result in results]
                lost = [s for s in ended.values() if s.state != log_dirs.IN_PLACE]
            elif isinstance(throttle, throttling.Noted):
                output.say(throttle.keeps())
        except BaseException as error:
            _leave(admin, file, moves, isinstance(error, Exception))
            raise
    _print(rows, as_json)
    if refused:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise Refused(f"{refused[0].move.partition} was refused: {refused[0].message}{more}")
    if lost:
        move = lost[0].move
        raise OpsError(
            f"{move.partition} is not in {move.directory} on node {move.node} and is no longer being copied: "
            "the move was cancelled or failed; see its run in Temporal's UI"
        )


def _leave(admin: KafkaAdmin, file: Path, moves: Sequence[RequestedMove], query: bool) -> None:
    """Remove the throttle that this call or an earlier one has recorded if no move of the file is in progress, else
    print the command that removes it. Without `query`, as after Ctrl-C, no node is queried.
    """
    with contextlib.suppress(OpsError):
        throttle = throttling.left(admin, file)
        if throttle is None:
            return
        with contextlib.suppress(OpsError):
            if query and not _under_way(admin, moves):
                throttle.ended()
                return
        output.say(throttle.keeps())


def _under_way(admin: KafkaAdmin, moves: Sequence[RequestedMove]) -> bool:
    """Return whether a node has a future replica of one of these moves. Raises `OpsError`."""
    views = admin.log_dirs(sorted({move.node for move in moves}))
    return any(each.state == log_dirs.COPYING for each in log_dirs.progress_of(moves, views))


def _wait(target: Target, admin: KafkaAdmin, moves: Sequence[RequestedMove]) -> list[MoveProgress]:
    """Wait until no replica is being copied, also for nodes that do not respond."""
    nodes = sorted({move.node for move in moves})
    final: dict[RequestedMove, MoveProgress] = {}
    addresses = {each.node: each for each in admin.nodes(fenced=True)}
    with Bars() as bars:
        for move in moves:
            bars.show(f"{move.partition} on node {move.node}", Shown(MoveState.QUEUED))
        while len(final) < len(moves):
            known = [addresses[node] for node in nodes if node in addresses and not target.apache_kafka]
            reported = by_replica(open_moves.query_nodes(known).lines)
            for node in nodes:
                mine = [move for move in moves if move.node == node and move not in final]
                if not mine:
                    continue
                try:
                    found = log_dirs.progress_of(mine, admin.log_dirs([node]))
                except OpsError:
                    for move in mine:
                        bars.show(f"{move.partition} on node {move.node}", Shown(StallReason.UNAVAILABLE))
                    bars.polled()  # the next node may not respond in time either
                    continue
                for progress in found:
                    tp, over = progress.move.partition, progress.state != log_dirs.COPYING
                    line = reported.get((node, tp.topic, tp.partition))
                    now = Shown(progress.state, progress.bytes_total, progress.bytes_copied, done=over)
                    if line is not None and not over:
                        now = replace(now, rate=line.rate, eta=line.eta)
                    bars.show(f"{tp} on node {node}", now)
                    if over:
                        final[progress.move] = progress
            bars.polled()
            time.sleep(POLL_SECONDS if len(final) < len(moves) else 0)
    return [final[move] for move in moves]


def _print(rows: Sequence[MoveResult | MoveProgress], as_json: bool) -> None:
    if as_json:
        output.print_json([row.as_json() for row in rows])
        return
    lines = [
        [
            str(row.move.partition),
            str(row.move.node),
            row.move.directory,
            row.outcome if isinstance(row, MoveResult) else row.state,
            row.message if isinstance(row, MoveResult) else "",
        ]
        for row in rows
    ]
    output.console().print(output.table(("replica", "node", "to", "outcome", "why"), lines))
    typer.echo(f"{len(rows)} replica{'s' if len(rows) != 1 else ''}; watch them with: rehome moves --watch")
