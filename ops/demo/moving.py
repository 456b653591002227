"""Steps 3 to 5 of the demo: submit the moves, kill a node during a copy, cancel one move."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import Client

from ops.cli import output
from ops.cli.moves import open_moves, runs
from ops.cli.moves.view import MoveLine
from ops.cli.target import Target
from ops.demo import choice
from ops.demo.choice import PlannedMove
from ops.demo.commands import Command, rehome
from ops.demo.screen import Screen
from ops.stack.errors import OpsError
from ops.stack.layout import node_name
from ops.stack.stack import Stack
from workflows.model.calls import MoveRow
from workflows.model.run_results import MoveRunResult

ROOT = Path(__file__).resolve().parents[2]

#: The timeout of all moves together in seconds.
MOVES_SECONDS = 120.0
START_SECONDS = 30.0
LOOK_SECONDS = 0.5


@dataclass(slots=True)
class Outcome:
    """The moves' outcome: each one's run, the cancelled move, the killed node's copy, and the runs' result rows."""

    moves: list[PlannedMove]
    owners: dict[PlannedMove, str] = field(default_factory=dict)
    cancelled: PlannedMove | None = None
    victim: PlannedMove | None = None
    copied_before_kill: int = 0
    rows: list[MoveRow] = field(default_factory=list)


class Mover:
    """Run the demo's moves and show them."""

    def __init__(
        self, stack: Stack, target: Target, screen: Screen, chosen: Sequence[PlannedMove], single: PlannedMove
    ) -> None:
        self._stack, self._target, self._screen = stack, target, screen
        self._chosen, self._single = list(chosen), single
        self.outcome = Outcome([*chosen, single])

    def submit(self) -> None:
        """Step 3: submit the KIP-113 JSON by `rehome move --file`, and one more move by a run with an SLA."""
        file = self._stack.data / "moves.json"
        file.write_text(json.dumps(choice.reassignment_json(self._chosen), indent=2) + "\n")
        throttle = f"{choice.THROTTLE // 1_000_000}MB"
        self._rehome(rehome("move", "--file", file, "--throttle", throttle, "--data", self._stack.data))
        move = self._single
        sla = ("--sla", choice.SLA_SECONDS, "--data", self._stack.data)
        self._rehome(rehome("move", str(move), "--node", move.node, "--to", move.directory, *sla))

    def watch_until(self, done: Callable[[open_moves.Gathered], bool], seconds: float, what: str) -> list[MoveLine]:
        """Show the moves until `done` returns True. Raises `OpsError` after `seconds`."""
        until = time.monotonic() + seconds
        with self._screen.live() as show:
            while True:
                shown = open_moves.gather(self._target)
                self._remember(shown.lines)
                show(open_moves.table(shown), summary(shown.lines))
                if done(shown):
                    return shown.lines
                if time.monotonic() > until:
                    raise OpsError(f"{what} did not happen within {seconds:.0f} s: {summary(shown.lines)}")
                time.sleep(LOOK_SECONDS)

    def kill_in_the_middle(self) -> None:
        """Step 4: kill a node (SIGKILL) between 30% and 70% of a copy, and restart it during the other moves."""
        name = node_name(choice.KILLED_NODE)
        lines = self.watch_until(
            lambda seen: _middle(seen.lines, choice.KILLED_NODE) is not None,
            MOVES_SECONDS,
            f"the middle of a copy on {name}",
        )
        line = _middle(lines, choice.KILLED_NODE)
        if line is None:
            raise OpsError(f"no copy on {name} was between 30% and 70%")
        self.outcome.victim = self._planned(line)
        self.outcome.copied_before_kill = line.bytes_copied
        share = 100 * line.bytes_copied // max(1, line.bytes_total)
        self._screen.command(str(rehome("stack", "kill", name, "--data", self._stack.data)))
        self._stack.kill(name)
        self._screen.line(
            f"{name} was killed with SIGKILL when {self.outcome.victim} was {share}% copied "
            f"({output.size(line.bytes_copied)} of {output.size(line.bytes_total)})"
        )
        self._screen.command(str(rehome("stack", "start", name, "--data", self._stack.data)))
        problems: list[OpsError] = []

        def start() -> None:
            try:
                self._stack.start(name)
            except OpsError as error:
                problems.append(error)

        starter = threading.Thread(target=start, name="start", daemon=True)
        began = time.monotonic()
        starter.start()
        self.watch_until(lambda _: not starter.is_alive(), 180.0, f"the start of {name}")
        if problems:
            raise problems[0]
        self._screen.line(f"{name} works again after {output.duration(time.monotonic() - began)}")

    def cancel_one(self) -> None:
        """Step 5: cancel a move by Temporal's CLI."""
        lines = self.watch_until(
            lambda seen: self._cancellable(seen.lines) is not None, START_SECONDS, "a copy that can be cancelled"
        )
        line = self._cancellable(lines)
        if line is None:
            raise OpsError(f"all copies on node {choice.CANCEL_NODE} are complete: none can be cancelled")
        self.outcome.cancelled = self._planned(line)
        arguments = ["workflow", "cancel", "--workflow-id", line.id, "--address", self._target.temporal_address]
        self._screen.command(shlex.join(["temporal", *arguments]))
        self._run([self._target.temporal_binary, *arguments], "temporal workflow cancel")
        copy = Path(line.directory) / f"{self.outcome.cancelled}.move"
        self.watch_until(lambda _: not copy.exists(), START_SECONDS, f"the removal of {copy.name}")
        self._screen.good(f"{copy.name} was removed from {copy.parent.name} of node {line.node}; the source serves")

    def wait_for_all(self) -> None:
        """Wait until every run has closed, and collect the results."""
        self.watch_until(lambda seen: not seen.lines and not seen.notes, MOVES_SECONDS, "the end of all moves")
        missing = [str(move) for move in self.outcome.moves if move not in self.outcome.owners]
        if missing:
            raise OpsError(f"no run was seen for {', '.join(missing)}; see the nodes' logs")
        ids = sorted({run for move, run in self.outcome.owners.items() if move != self.outcome.cancelled})

        async def results(client: Client) -> list[MoveRunResult]:
            return [await runs.result_of(client, workflow_id, MoveRunResult) for workflow_id in ids]

        for result in runs.with_temporal(self._target, results):
            self.outcome.rows += result.rows

    def row_of(self, move: PlannedMove) -> MoveRow:
        """Return the result row of one move. Raises `OpsError` if there is none."""
        for row in self.outcome.rows:
            if (row.topic, row.partition) == (move.topic, move.partition):
                return row
        raise OpsError(f"the runs' results contain no row of {move}")

    def _cancellable(self, lines: Iterable[MoveLine]) -> MoveLine | None:
        """Return the node's copy, of those in the file, with the most bytes left; None if all are almost complete."""
        wanted = {(move.topic, move.partition) for move in self._chosen if move.node == choice.CANCEL_NODE}
        left = [
            line
            for line in lines
            if (line.topic, line.partition) in wanted and line.id and line.bytes_copied < 0.9 * max(1, line.bytes_total)
        ]
        return max(left, key=lambda line: line.bytes_total - line.bytes_copied, default=None)

    def _remember(self, lines: Iterable[MoveLine]) -> None:
        for line in lines:
            move = self._planned(line, required=False)
            if move is not None and line.id:
                self.outcome.owners[move] = line.id

    def _planned(self, line: MoveLine, *, required: bool = True) -> Any:
        for move in self.outcome.moves:
            if (move.topic, move.partition, move.node) == (line.topic, line.partition, line.node):
                return move
        if required:
            raise OpsError(f"{line.topic}-{line.partition} moves on node {line.node}, but the demo did not request it")
        return None

    def _rehome(self, command: Command) -> None:
        self._screen.command(str(command))
        self._screen.plain(self._run(command.argv, "rehome move"))

    def _run(self, command: list[str], what: str) -> str:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=60, cwd=ROOT, stdin=subprocess.DEVNULL, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OpsError(f"{what} could not be run: {error}") from error
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()
            why = last[-1].removeprefix("error: ").removeprefix("Error: ") if last else "no output"
            raise OpsError(f"{what} failed (exit code {done.returncode}): {why}")
        return done.stdout


def summary(lines: Sequence[MoveLine]) -> str:
    """Format all moves in one line."""
    parts = []
    for line in lines:
        share = f" {100 * line.bytes_copied // line.bytes_total}%" if line.bytes_total else ""
        rate = f" {output.rate(line.rate)}, {output.duration(line.eta)} to go" if line.rate else ""
        parts.append(f"{line.topic}-{line.partition} {line.phase}{share}{rate}")
    return "; ".join(parts) or "no open moves"


def _middle(lines: Iterable[MoveLine], node: int) -> MoveLine | None:
    for line in lines:
        share = line.bytes_copied / line.bytes_total if line.bytes_total else 0.0
        if line.node == node and line.id and choice.KILL_FROM <= share <= choice.KILL_UNTIL:
            return line
    return None
