"""The main job from beginning to end: a live partition moves to another disk, durably, and Spark reports on it."""

from __future__ import annotations

from pathlib import Path

from ops.cli import history, output, spark
from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.reassign_plan import listed
from ops.cli.target import Target, resolve
from ops.demo import disk, folder, plan, proof, traffic
from ops.demo.between import Between
from ops.demo.moving import Mover, Outcome
from ops.demo.screen import Screen
from ops.stack import java, state
from ops.stack.errors import OpsError
from ops.stack.interrupts import interruptible, uninterrupted
from ops.stack.stack import Stack

#: Seconds that deletions may take beyond file.delete.delay.ms (5 s in the dev stack).
CLEAN_SECONDS = 25.0


class NotProved(OpsError):
    """The demo ran, but something that must hold did not."""


class Demo:
    """One run of the demo in one folder."""

    def __init__(self, data: Path, screen: Screen, *, keep: bool) -> None:
        self._data, self._screen, self._keep = data, screen, keep
        self._stack = Stack(data, screen.line)
        self._live: traffic.LiveTraffic | None = None
        self._loaded: traffic.Acknowledged | None = None
        self._problems: list[str] = []

    def run(self) -> None:
        """All nine steps. Whatever happens, what was started is stopped, unless it is to be kept."""
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
                # Wherever the first one hit: those that follow are ignored, so that this is done to its end.
                self._screen.line("interrupted: stopping what was started")
                self._keep = False
                self._end()
                raise
        if self._problems:
            raise NotProved(f"{len(self._problems)} of the proofs failed, the first: {self._problems[0]}")

    def _end(self) -> None:
        """Stop what was started, unless it is to be kept; doing it twice does no harm."""
        if self._live is not None:
            self._live.abandon()
        if self._keep:
            self._tell_how_to_go_on()
            return
        with uninterrupted():
            while self._stack.down():  # a node that was just being started counts too
                pass

    def _steps(self) -> None:
        target = self._start()
        self._fill(target)
        chosen, single = self._choose(target)
        mover = Mover(self._stack, target, self._screen, chosen, single)
        self._screen.step(3, "move replicas to other disks of their nodes, throttled")
        mover.submit()
        self._screen.step(4, f"kill node-{plan.KILLED_NODE} with -9 in the middle of a copy, and start it again")
        mover.kill_in_the_middle()
        self._screen.step(5, "cancel one move through Temporal's command line")
        mover.cancel_one()
        self._screen.line("waiting for the other moves")
        mover.wait_for_all()
        self._screen.step(6, "move replicas between nodes, throttled, and cancel one of them on its way")
        between = Between(self._stack, target, self._screen, self._reassigned(target, mover))
        between.run()
        self._screen.step(7, "prove it")
        self._prove(target, mover, between)
        self._screen.step(8, "export the histories and let Spark report on them")
        report = self._report(target)
        self._screen.step(9, "keep the stack running" if self._keep else "stop everything")
        if not self._keep:
            with uninterrupted():
                self._stack.down()
                folder.remove_bulk(self._data, folder.NODES)
        verdict = "everything held" if not self._problems else f"{len(self._problems)} proofs FAILED"
        self._screen.line(f"{verdict}, after {output.duration(self._screen.elapsed)}")
        self._screen.line(f"report: {report}")

    def _start(self) -> Target:
        self._screen.step(1, "start Temporal, a controller and three storage nodes with three log directories each")
        java.ensure(self._screen.line)
        if folder.clear(self._data, self._stack):
            self._screen.line("removed what an earlier run had left")
        self._stack.make_folder()
        spec = self._stack.prepare({"nodes": folder.NODES, "dirs": folder.DIRS, **folder.choose_ports()})
        self._stack.up()
        self._screen.line(f"Kafka {spec.bootstrap}   Temporal {spec.temporal_address}   UI {spec.ui_url}")
        return resolve(self._data)

    def _fill(self, target: Target) -> None:
        total = plan.PARTITIONS * plan.PARTITION_BYTES
        self._screen.step(2, f"create the topic {plan.TOPIC} and load it with {output.size(total)}")
        with KafkaAdmin(target.bootstrap) as admin:
            admin.create_topic(plan.TOPIC, plan.PARTITIONS, 1, {})
        self._loaded = traffic.Acknowledged(target.bootstrap, plan.TOPIC, linger_ms=50)
        began = self._screen.elapsed
        with self._screen.progress("loading") as progress:
            done = traffic.load(
                self._loaded,
                plan.PARTITIONS,
                plan.PARTITION_BYTES,
                plan.RECORD_BYTES,
                lambda count: progress(count, total, output.size(count)),
            )
        seconds = max(0.001, self._screen.elapsed - began)
        self._screen.line(f"{output.size(done)} acknowledged, {output.rate(done / seconds)}")
        self._live = traffic.LiveTraffic(
            target.bootstrap,
            plan.TOPIC,
            plan.PARTITIONS,
            per_second=plan.LIVE_RECORDS_PER_SECOND,
            record_bytes=plan.RECORD_BYTES,
        )
        self._live.start()
        self._screen.line(
            f"an idempotent producer (acks=all, {plan.LIVE_RECORDS_PER_SECOND} records/s) and a consumer keep running"
        )

    def _choose(self, target: Target) -> tuple[list[plan.PlannedMove], plan.PlannedMove]:
        with KafkaAdmin(target.bootstrap) as admin:
            views = admin.log_dirs()
        chosen = plan.choose_moves(views, plan.TOPIC)
        return chosen, plan.choose_single(views, plan.TOPIC, chosen)

    def _reassigned(self, target: Target, mover: Mover) -> list[plan.Reassigned]:
        with KafkaAdmin(target.bootstrap) as admin:
            rows = admin.describe([plan.TOPIC])[0]["partitions"]
        return plan.choose_reassigned({row["partition"]: row["leader"] for row in rows}, mover.outcome.moves)

    def _prove(self, target: Target, mover: Mover, between: Between) -> None:
        outcome = mover.outcome
        self._prove_resumed(mover)
        self._prove_records(target)
        with KafkaAdmin(target.bootstrap) as admin:
            problems = plan.misplaced(outcome.moves, outcome.cancelled, admin.log_dirs())
        moved = len(outcome.moves) - 1
        self._tell(problems, f"{moved} replicas are in the directory asked for, {outcome.cancelled} is where it was")
        there = [each for each in between.wanted if not each.cancelled]
        back = [each for each in between.wanted if each.cancelled]
        self._tell(
            between.problems(),
            " and ".join(f"{each} is on node{'s' * (len(each.replicas) > 1)} {listed(each.replicas)}" for each in there)
            + f", all in sync; {back[0]} is on node {listed(back[0].before)} as before its cancelled reassignment",
        )
        directories = [path for node in self._stack.spec().node_ids for path in self._stack.spec().log_dirs(node)]
        left = disk.wait_until_clean(directories, CLEAN_SECONDS)
        self._tell([f"{path} is left" for path in left], "nothing named .move or .delete is left on any disk")

    def _prove_resumed(self, mover: Mover) -> None:
        outcome: Outcome = mover.outcome
        if outcome.victim is None:
            self._tell(["no node was killed in the middle of a copy"], "")
            return
        row = mover.row_of(outcome.victim)
        resumed = int(row["bytes_resumed"])
        problems = [] if resumed > 0 else [f"{outcome.victim} was copied from zero after node-{plan.KILLED_NODE} died"]
        self._tell(
            problems,
            f"{outcome.victim} went on after the kill with {output.size(resumed)} that were found valid on disk "
            f"({output.size(outcome.copied_before_kill)} were seen before it)",
        )

    def _prove_records(self, target: Target) -> None:
        if self._live is None or self._loaded is None:
            raise OpsError("no traffic was started")
        self._screen.line("stopping producer and consumer")
        self._live.stop()
        with self._screen.progress("reading everything back") as progress:
            read, ends = traffic.read_all(
                target.bootstrap,
                plan.TOPIC,
                plan.PARTITIONS,
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
        self._tell(
            problems,
            f"{verdict.acknowledged} acknowledged records: none lost, none twice, every offset consistent; "
            f"the consumer saw {verdict.consumed} in order while replicas moved",
        )

    def _tell(self, problems: list[str], good: str) -> None:
        for problem in problems:
            self._screen.bad(problem)
        if not problems:
            self._screen.good(good)
        self._problems += problems

    def _report(self, target: Target) -> Path:
        result = history.export_now(target, self._stack.spec().exports)
        self._screen.line(f"exported {result['closed']} closed and {result['open']} open runs: {result['manifest']}")
        made = spark.build_report(self._stack.spec().exports, self._data / "report", say=self._screen.line)
        self._screen.plain(made.text)
        return made.page

    def _tell_how_to_go_on(self) -> None:
        current = state.load(self._data)
        if current is None or not self._stack.running():
            return
        spec = current.spec
        where = f"--data {self._data}"
        self._screen.line("the stack is left running:")
        self._screen.line(f"  Kafka bootstrap  {spec.bootstrap}")
        self._screen.line(f"  Temporal UI      {spec.ui_url}")
        self._screen.line("worth trying:")
        some = spec.log_dirs(1)[0]
        self._screen.line(f"  .venv/bin/rehome topic describe {plan.TOPIC} {where}")
        self._screen.line(f"  .venv/bin/rehome move {plan.TOPIC}-0 --node 1 --to {some} --throttle 5MB --wait {where}")
        self._screen.line(f"  .venv/bin/rehome moves --watch {where}")
        self._screen.line(f"stop it with: .venv/bin/rehome stack down {where}")
