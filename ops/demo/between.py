"""Step 6 of the demo: replicas move between nodes, throttled, and one of the reassignments is cancelled."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.cli import output
from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.reassign import reassignments
from ops.cli.reassign.comparing import Line, measured
from ops.cli.reassign.reassignments import Gathered
from ops.cli.target import Target
from ops.demo import choice
from ops.demo.choice import Reassigned
from ops.demo.commands import rehome
from ops.demo.moving import ROOT
from ops.demo.screen import Screen
from ops.stack.errors import OpsError
from ops.stack.stack import Stack

#: The timeout of the whole step in seconds.
SECONDS = 90.0
LOOK_SECONDS = 0.5
COMMAND_FAILED = 1


@dataclass(slots=True)
class Between:
    """Reassign replicas of the topic and show the progress; `wanted` has the expected result."""

    stack: Stack
    target: Target
    screen: Screen
    wanted: Sequence[Reassigned]

    def run(self) -> None:
        """Submit the reassignments, show them, cancel one, and wait for the others. Raises `OpsError`."""
        chosen = [each for each in self.wanted if each.cancelled]
        file = self._file("reassign.json", self.wanted)
        throttle = f"{choice.REASSIGN_THROTTLE // 1_000_000}MB"
        command = rehome("reassign", file, "--throttle", throttle, "--wait", "--data", self.stack.data)
        self.screen.command(str(command))
        process = subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        try:
            self._watch(process, chosen)
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired as late:
            raise OpsError(f"the reassignments did not end within {SECONDS:.0f} s") from late
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        self.screen.plain(out)
        # The command must fail: the cancelled partition is not on the replicas of the file.
        if process.returncode != COMMAND_FAILED or "cancelled: back on node" not in " ".join((out + err).split()):
            printed = (err or out).strip()[-300:]
            raise OpsError(f"rehome reassign ended unexpectedly (exit code {process.returncode}): {printed}")
        self.screen.line(
            f"exit code {COMMAND_FAILED}: {chosen[0]} was cancelled, so it is not on the replicas of the file"
        )

    def _watch(self, process: subprocess.Popen[str], chosen: Sequence[Reassigned]) -> None:
        """Show the reassignments until the command exits; cancel the chosen one once its copy is in progress."""
        until, open_ = time.monotonic() + SECONDS, list(chosen)
        with (
            KafkaAdmin(self.target.bootstrap) as admin,
            reassignments.ReassignmentReader(admin, self.target, again=True) as looking,
        ):
            shown: Gathered | None = None
            while process.poll() is None:
                with self.screen.live() as show:
                    while process.poll() is None:
                        before, shown = shown, looking.gather()
                        lines = shown.lines
                        if before is not None:
                            lines = measured(lines, before.lines, shown.at - before.at)
                        show(reassignments.table(lines), summary(lines))
                        if open_ and _in_progress(lines, open_[0]):
                            break
                        if time.monotonic() > until:
                            raise OpsError(f"the reassignments did not end within {SECONDS:.0f} s: {summary(lines)}")
                        time.sleep(LOOK_SECONDS)
                if open_ and process.poll() is None:
                    self._cancel(open_.pop())
        if open_:
            raise OpsError(f"{open_[0]} could not be cancelled: it completed before its copy was seen in progress")

    def _cancel(self, one: Reassigned) -> None:
        file = self._file("cancel.json", [one])
        command = rehome("reassign", file, "--cancel", "--data", self.stack.data)
        self.screen.command(str(command))
        done = subprocess.run(
            command.argv, capture_output=True, text=True, timeout=60, cwd=ROOT, stdin=subprocess.DEVNULL
        )
        self.screen.plain(done.stdout)
        if done.returncode:
            raise OpsError(f"the cancel failed (exit code {done.returncode}): {done.stderr.strip()[-300:]}")

    def problems(self) -> list[str]:
        """Return a sentence for each difference from the expected result: replicas, ISR, replicas on disk."""
        with KafkaAdmin(self.target.bootstrap) as admin:
            rows = {row["partition"]: row for row in admin.describe([choice.TOPIC])[0]["partitions"]}
            held: dict[int, set[int]] = {each.partition: set() for each in self.wanted}
            for view in admin.log_dirs():
                for replica in view.replicas:
                    if replica.partition.topic == choice.TOPIC and replica.partition.partition in held:
                        held[replica.partition.partition].add(view.node)
            going = admin.reassignments()
        found = [f"{tp} is still being reassigned" for tp in going]
        for each in self.wanted:
            found += wrong(each, rows[each.partition], held[each.partition])
        return found

    def _file(self, name: str, rows: Sequence[Reassigned]) -> Path:
        file = self.stack.data / name
        partitions = [
            {"topic": choice.TOPIC, "partition": each.partition, "replicas": list(each.replicas)} for each in rows
        ]
        file.write_text(json.dumps({"version": 1, "partitions": partitions}, indent=2) + "\n")
        return file


def wrong(each: Reassigned, row: Mapping[str, object], held: Collection[int]) -> list[str]:
    """Return a sentence for each difference of one partition from its expected result."""
    expected = each.before if each.cancelled else each.replicas
    replicas, isr = row["replicas"], row["isr"]
    assert isinstance(replicas, list | tuple) and isinstance(isr, list | tuple)
    found = []
    if tuple(replicas) != expected:
        found.append(f"{each} is on nodes {list(replicas)}, not on {list(expected)}")
    if sorted(isr) != sorted(expected):
        found.append(f"the ISR of {each} is {sorted(isr)}, not {sorted(expected)}")
    if sorted(held) != sorted(expected):
        found.append(f"{each} has data on nodes {sorted(held)}, not on {sorted(expected)}")
    return found


def summary(lines: Sequence[Line]) -> str:
    """Format all reassignments in one line."""
    parts = []
    for line in lines:
        share = f" {100 * line.bytes_copied // line.bytes_total}%" if line.bytes_total else ""
        rate = f" {output.rate(line.rate)}" if line.rate else ""
        target = ",".join(map(str, line.target))
        parts.append(f"{line.topic}-{line.partition} to {target}{share}{rate}")
    return "; ".join(parts) or "no reassignments"


def _in_progress(lines: Sequence[Line], one: Reassigned) -> bool:
    for line in lines:
        if line.partition == one.partition and line.bytes_total:
            return line.bytes_copied / line.bytes_total >= choice.CANCEL_FROM
    return False
