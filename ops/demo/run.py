"""The main job from beginning to end: live partitions move to other disks and nodes, and Spark reports on the moves."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from ops.cli import history, output, spark
from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.reassign.comparing import listed
from ops.cli.target import Target, resolve
from ops.demo import choice, disk, folder, proof, traffic
from ops.demo.between import Between
from ops.demo.commands import rehome
from ops.demo.moving import ROOT, Mover, Outcome
from ops.demo.screen import Screen
from ops.stack import java, state
from ops.stack.errors import OpsError
from ops.stack.interrupts import interruptible, uninterrupted
from ops.stack.stack import Stack

#: The timeout of deletions in seconds; file.delete.delay.ms is 5 s in the dev stack.
CLEAN_SECONDS = 25.0
#: The timeout of a query, which starts Spark.
SQL_SECONDS = 300.0


class NotProved(OpsError):
    """The demo completed, but at least one proof failed."""


class Demo:
    """One run of the demo in a folder."""

    partition_bytes = choice.PARTITION_BYTES

    def __init__(self, data: Path, screen: Screen, *, keep: bool) -> None:
        self._data, self._screen, self._keep = data, screen, keep
        self._stack = Stack(data, screen.line)
        self._live: traffic.LiveTraffic | None = None
        self._loaded: traffic.Acknowledged | None = None
        self._problems: list[str] = []

    def run(self) -> None:
        """Run all nine steps; stop the stack in any case, except with `keep`."""
        folder.prepare(self._data)
        with interruptible(), state.owning(self._data):
            try:
                try:
                    self._steps()
                except Exception:
                    self._end()
                    raise
                self._end()
            except KeyboardInterrupt:
                # Later interrupts are ignored, so that the stop completes.
                self._screen.line("interrupted: stopping the stack")
                self._keep = False
                self._end()
                raise
        if self._problems:
            raise NotProved(f"{len(self._problems)} of the proofs failed, the first: {self._problems[0]}")

    def _end(self) -> None:
        """Stop the clients and, without `keep`, the stack. Idempotent."""
        if self._live is not None:
            self._live.abandon()
        if self._keep:
            self._print_next_steps()
            return
        with uninterrupted():
            while self._stack.down():  # again, for a node whose start was in progress
                pass

    def _steps(self) -> None:
        target = self._start()
        self._fill(target)
        chosen, single = self._choose(target)
        mover = Mover(self._stack, target, self._screen, chosen, single)
        self._screen.step(3, "move replicas to other disks of their nodes, throttled")
        mover.submit()
        self._screen.step(4, f"kill node-{choice.KILLED_NODE} with SIGKILL during a copy, and restart it")
        mover.kill_in_the_middle()
        self._screen.step(5, "cancel one move by Temporal's CLI")
        mover.cancel_one()
        self._screen.line("waiting for the other moves")
        mover.wait_for_all()
        self._screen.step(6, "move replicas between nodes, throttled, and cancel one of the reassignments")
        between = Between(self._stack, target, self._screen, self._reassigned(target, mover))
        between.run()
        self._screen.step(7, "prove it")
        self._prove(target, mover, between)
        self._screen.step(8, "export the histories and let Spark report on them")
        report = self._report(target)
        self._prove_report(report, mover, between)
        self._prove_tables(mover, between)
        self._screen.step(9, "keep the stack running" if self._keep else "stop everything")
        if not self._keep:
            with uninterrupted():
                self._stack.down()
                folder.remove_bulk(self._data, folder.NODES)
        verdict = "all proofs succeeded" if not self._problems else f"{len(self._problems)} proofs FAILED"
        self._screen.line(f"{verdict}, after {output.duration(self._screen.elapsed)}")
        self._screen.line(f"report: {report}")
        self._screen.line(f"site: {report.parent / 'site' / 'index.html'}")

    def _start(self) -> Target:
        self._screen.step(1, "start Temporal, a controller and three storage nodes with three log directories each")
        java.ensure(self._screen.line)
        if folder.clear(self._data, self._stack):
            self._screen.line("removed the processes and data of an earlier run")
        self._stack.make_folder()
        spec = self._stack.prepare({"nodes": folder.NODES, "dirs": folder.DIRS, **folder.choose_ports()})
        self._stack.up()
        self._screen.line(f"Kafka {spec.bootstrap}   Temporal {spec.temporal_address}   UI {spec.ui_url}")
        return resolve(self._data)

    def _fill(self, target: Target, replication_factor: int = 1) -> None:
        total = choice.PARTITIONS * self.partition_bytes
        self._screen.step(2, f"create the topic {choice.TOPIC} and load it with {output.size(total)}")
        with KafkaAdmin(target.bootstrap) as admin:
            admin.create_topic(choice.TOPIC, choice.PARTITIONS, replication_factor, {})
        self._loaded = traffic.Acknowledged(target.bootstrap, choice.TOPIC, linger_ms=50)
        began = self._screen.elapsed
        with self._screen.progress("loading") as progress:
            done = traffic.load(
                self._loaded,
                choice.PARTITIONS,
                self.partition_bytes,
                choice.RECORD_BYTES,
                lambda count: progress(count, total, output.size(count)),
            )
        seconds = max(0.001, self._screen.elapsed - began)
        self._screen.line(f"{output.size(done)} acknowledged, {output.rate(done / seconds)}")
        self._live = traffic.LiveTraffic(
            target.bootstrap,
            choice.TOPIC,
            choice.PARTITIONS,
            per_second=choice.LIVE_RECORDS_PER_SECOND,
            record_bytes=choice.RECORD_BYTES,
        )
        self._live.start()
        self._screen.line(
            f"an idempotent producer (acks=all, {choice.LIVE_RECORDS_PER_SECOND} records/s) and a consumer are running"
        )

    def _choose(self, target: Target) -> tuple[list[choice.PlannedMove], choice.PlannedMove]:
        with KafkaAdmin(target.bootstrap) as admin:
            views = admin.log_dirs()
        chosen = choice.choose_moves(views, choice.TOPIC)
        return chosen, choice.choose_single(views, choice.TOPIC, chosen)

    def _reassigned(self, target: Target, mover: Mover) -> list[choice.Reassigned]:
        with KafkaAdmin(target.bootstrap) as admin:
            rows = admin.describe([choice.TOPIC])[0]["partitions"]
        return choice.choose_reassigned({row["partition"]: row["leader"] for row in rows}, mover.outcome.moves)

    def _prove(self, target: Target, mover: Mover, between: Between) -> None:
        outcome = mover.outcome
        self._prove_resumed(mover)
        self._prove_records(target)
        with KafkaAdmin(target.bootstrap) as admin:
            problems = choice.misplaced(outcome.moves, outcome.cancelled, admin.log_dirs())
        moved = len(outcome.moves) - 1
        self._print_proof(problems, f"{moved} replicas are in their targets, {outcome.cancelled} is in its source")
        there = [each for each in between.wanted if not each.cancelled]
        back = [each for each in between.wanted if each.cancelled]
        self._print_proof(
            between.problems(),
            " and ".join(f"{each} is on node{'s' * (len(each.replicas) > 1)} {listed(each.replicas)}" for each in there)
            + f", all in sync; {back[0]} is on node {listed(back[0].before)} as before its cancelled reassignment",
        )
        directories = [path for node in self._stack.spec().node_ids for path in self._stack.spec().log_dirs(node)]
        left = disk.wait_until_clean(directories, CLEAN_SECONDS)
        self._print_proof([f"{path} was not removed" for path in left], "no .move or .delete folder is left")

    def _prove_resumed(self, mover: Mover) -> None:
        outcome: Outcome = mover.outcome
        if outcome.victim is None:
            self._print_proof(["no node was killed during a copy"], "")
            return
        row = mover.row_of(outcome.victim)
        resumed = row.bytes_resumed
        problems = [] if resumed > 0 else [f"{outcome.victim} was copied from zero after the kill"]
        self._print_proof(
            problems,
            f"the copy of {outcome.victim} continued after the kill with {output.size(resumed)} valid on disk "
            f"({output.size(outcome.copied_before_kill)} were reported before it)",
        )

    def _prove_records(self, target: Target) -> None:
        if self._live is None or self._loaded is None:
            raise OpsError("the clients were not started")
        self._screen.line("stopping the producer and the consumer")
        self._live.stop()
        with self._screen.progress("reading everything back") as progress:
            read, ends = traffic.read_all(
                target.bootstrap,
                choice.TOPIC,
                choice.PARTITIONS,
                lambda count, total: progress(count, total, f"{count} of {total} records"),
            )
        verdict = proof.judge(
            [*self._loaded.acks, *self._live.producer.acks],
            read,
            self._live.consumed,
            sent=self._loaded.sent | self._live.producer.sent,
            ends=ends,
        )
        failures = [*self._loaded.failures, *self._live.producer.failures]
        problems = [*verdict.problems, *(f"not acknowledged: {failure}" for failure in failures[:3])]
        self._print_proof(
            problems,
            f"{verdict.acknowledged} acknowledged records: none lost, no duplicates, all offsets consistent; "
            f"the consumer received {verdict.consumed} in order while replicas moved",
        )

    def _print_proof(self, problems: list[str], good: str) -> None:
        for problem in problems:
            self._screen.bad(problem)
        if not problems:
            self._screen.good(good)
        self._problems += problems

    def _report(self, target: Target) -> Path:
        result = history.export_now(target, self._stack.spec().exports)
        self._screen.line(f"exported {result.closed} closed and {result.open} open runs: {result.manifest}")
        made = spark.build_report(self._stack.spec().exports, self._data / "report", say=self._screen.line)
        self._screen.plain(made.text)
        return made.page

    def _prove_report(self, page: Path, mover: Mover, between: Between) -> None:
        rows = json.loads(page.with_suffix(".json").read_text())["moves_table"]
        outcome = mover.outcome
        missing = choice.unreported(outcome.moves, outcome.cancelled, outcome.victim, between.wanted, rows)
        self._print_proof(
            missing,
            f"the report has all {len(outcome.moves)} moves between disks and all {len(between.wanted)} reassignments, "
            "with the killed copy and what was cancelled",
        )

    def _prove_tables(self, mover: Mover, between: Between) -> None:
        """Ask the tables as a person does."""
        command = rehome("sql", choice.COUNTS, "--csv", "--data", self._data.absolute())
        self._screen.command(str(command))
        done = subprocess.run(
            command.argv, capture_output=True, text=True, timeout=SQL_SECONDS, cwd=ROOT, stdin=subprocess.DEVNULL
        )
        self._screen.plain(done.stdout if done.returncode == 0 else done.stderr)
        outcome = mover.outcome
        problems = choice.miscounted(outcome.moves, outcome.cancelled, between.wanted, done.stdout)
        self._print_proof(problems, "these are the demo's moves between disks, its reassignments, and its cancels")

    def _print_next_steps(self) -> None:
        current = state.load(self._data)
        if current is None or not self._stack.running():
            return
        spec = current.spec
        where = ("--data", self._data)
        self._screen.line("the stack keeps running:")
        self._screen.line(f"  Kafka bootstrap  {spec.bootstrap}")
        self._screen.line(f"  Temporal UI      {spec.ui_url}")
        self._screen.line("try:")
        some = spec.log_dirs(1)[0]
        move = ("move", f"{choice.TOPIC}-0", "--node", 1, "--to", some, "--throttle", "5MB", "--wait")
        self._screen.line(f"  .venv/bin/{rehome('topic', 'describe', choice.TOPIC, *where)}")
        self._screen.line(f"  .venv/bin/{rehome(*move, *where)}")
        self._screen.line(f"  .venv/bin/{rehome('moves', '--watch', *where)}")
        self._screen.line(f"stop it with: .venv/bin/{rehome('stack', 'down', *where)}")
