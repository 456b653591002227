"""A run of the torture, from an empty folder to the verdict."""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from ops.cli.kafka_admin import KafkaAdmin
from ops.stack.errors import OpsError
from ops.stack.interrupts import interruptible, uninterrupted
from ops.torture import cut, ending, history, report
from ops.torture.checks import table
from ops.torture.checks.facts import (
    Boot,
    DirectoryFact,
    Evidence,
    FinalRead,
    Home,
    Place,
    ReassignRunFact,
    RunFact,
    ThrottleFact,
    TopicFact,
)
from ops.torture.nemesis.book import Book
from ops.torture.nemesis.moving import Moving
from ops.torture.nemesis.nemesis import Nemesis
from ops.torture.observers.epochs import LeaderWatch, WriteWatch
from ops.torture.observers.swaps import RateWatch, SwapWatch
from ops.torture.observers.watching import Observers
from ops.torture.roles import NODES, LocalRoles, Roles
from ops.torture.topics import MAIN, SHORT, Side, configs, idle
from ops.torture.workload import Workload, read_all

T = TypeVar("T")

#: Seconds after the healing within which every move and reassignment must have ended (C12).
QUIET_SECONDS = 150.0
GATHER_SECONDS = 60.0
#: Seconds between two progress messages.
SIGN_SECONDS = 20.0
EVIDENCE = "evidence.pickle"

#: Evidence gathered at the end -> the checks that need it.
CHECKS_OF = {
    "log directories": ("C8", "C9"),
    "replicas' places": ("C8", "C16", "C17", "C18"),
    "throttles": ("C11",),
    "runs": ("C8", "C12", "C19"),
    "reassignments": ("C17",),
    "starts": ("C14",),
    "records": ("C1", "C2", "C3", "C4", "C7", "C16"),
}


@dataclass(frozen=True, slots=True)
class Options:
    """The run's options. `folder` None: a temporary one, removed at the end unless `keep` or there are findings."""

    minutes: float
    seed: int
    keep: bool = False
    folder: Path | None = None
    roles: Callable[[Path, Callable[[str], None], int], Roles] = LocalRoles
    replicas: int = 3
    idle_partitions: int = 0
    every: Mapping[str, float] = field(default_factory=dict)
    """The seconds between two executions of an action, by its name in `decisions.weights_of`."""
    nodes: int | None = None
    """None: one node more than replicas, as a target of reassignments, and at least three."""
    more: str = field(default="")
    """Further options for the command that repeats the run."""


@dataclass(frozen=True, slots=True)
class Watches:
    """The watches of one run."""

    swaps: SwapWatch
    rates: RateWatch
    leaders: LeaderWatch
    writes: WriteWatch

    @property
    def all(self) -> list[Observers]:
        return [self.swaps, self.rates, self.leaders, self.writes]

    @staticmethod
    def of(roles: Roles, folder: Path) -> Watches:
        return Watches(SwapWatch(roles, folder / "differing"), RateWatch(roles), LeaderWatch(roles), WriteWatch(roles))


class Torture:
    """One run. `say` receives progress messages, `tell` every event."""

    def __init__(self, options: Options, say: Callable[[str], None], tell: Callable[[str], None]) -> None:
        self._options, self._say = options, say
        self._folder = options.folder or Path(tempfile.mkdtemp(prefix="rehome-torture-"))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            empty = not any(self._folder.iterdir())
        except OSError as error:
            raise OpsError(f"cannot use the folder {self._folder}: {error.strerror}; choose another") from error
        if not empty:
            raise OpsError(f"{self._folder} is not empty; choose an empty folder")
        self._roles = options.roles(self._folder, say, options.nodes or max(NODES, options.replicas + 1))
        self._book = Book(self._folder, tell)
        self._moving = Moving(self._roles)
        self._topics = [replace(topic, replicas=options.replicas) for topic in (MAIN, SHORT)]
        self._idle = idle(options.idle_partitions, options.replicas)
        self._workload = Workload(self._roles, self._folder, options.seed, self._topics)
        self._side = Side(self._roles, options.replicas)
        self._initial: dict[Place, tuple[int, ...]] = {}
        self._interrupted = False
        self._missing: dict[str, str] = {}

    def run(self) -> report.Report:
        """Torture, heal, gather the evidence, and check it.

        Ctrl-C ends the torture early, with a verdict on what was done so far; a second one ends the run at once.
        """
        began = time.monotonic()
        try:
            evidence = self._everything()
            # Before the checks: an error in a check must not lose evidence that took so long to gather.
            (self._folder / EVIDENCE).write_bytes(pickle.dumps(evidence))
            self._say("checking")
            findings = table.check(evidence)
        except BaseException:
            self._clean(keep=self._options.keep or self._options.folder is not None)
            raise
        operations, counts = report.count(evidence)
        keep = self._options.keep or bool(findings or evidence.missing) or self._options.folder is not None
        again = f"rehome torture --minutes {self._options.minutes:g} --seed {self._options.seed}{self._options.more}"
        made = report.Report(
            self._options.seed,
            self._options.minutes,
            round(time.monotonic() - began, 1),
            self._interrupted,
            operations,
            counts,
            report.moves(evidence),
            dict(self._book.kills),
            findings,
            (*self._book.problems, *report.unseen(evidence)),
            str(self._folder) if keep else "",
            again,
            self._roles.witnessed(),
            report.replicas(evidence),
            evidence.missing,
            report.disks(evidence),
        )
        if keep:
            (self._folder / "report.json").write_text(json.dumps(made.as_json(), indent=2) + "\n")
        self._clean(keep=keep)
        return made

    def _everything(self) -> Evidence:
        watches: list[Observers] = []
        try:
            with interruptible():
                try:
                    self._start()
                    seen = Watches.of(self._roles, self._folder)
                    watches = seen.all
                    nemesis = Nemesis(
                        self._roles,
                        self._moving,
                        self._workload,
                        self._side,
                        self._book,
                        self._options.seed,
                        self._options.replicas,
                        self._options.every,
                    )
                except KeyboardInterrupt as error:
                    raise OpsError("interrupted during the start: there is nothing to check yet") from error
                try:
                    self._torment(nemesis, watches)
                except KeyboardInterrupt:
                    self._interrupted = True
                    self._say(
                        "interrupted: checking what was done so far (Ctrl-C again ends it at once, without a verdict)"
                    )
            # A second interrupt ends the run without a verdict.
            with interruptible():
                return self._gather(nemesis, seen)
        finally:
            with uninterrupted():
                for watch in watches:
                    watch.stop()
                self._workload.abandon()
                self._roles.down()

    def _start(self) -> None:
        self._say(f"starting a stack in {self._folder}")
        self._roles.up()
        with KafkaAdmin(self._roles.bootstrap) as admin:
            for topic in self._topics:
                admin.create_topic(topic.name, topic.partitions, topic.replicas, configs(topic))
            for made in admin.describe([topic.name for topic in self._topics]):
                for row in made["partitions"]:
                    self._initial[made["name"], row["partition"]] = tuple(row["replicas"])
            if self._idle:
                self._say(f"creating {self._options.idle_partitions:,} idle partitions")
            for topic in self._idle:
                admin.create_topic(topic.name, topic.partitions, topic.replicas, {})
        self._say("producing the initial records")
        self._workload.load()

    def _torment(self, nemesis: Nemesis, watches: list[Observers]) -> None:
        for watch in watches:
            watch.start()
        self._workload.start()
        if why := self._roles.disks_cannot_fail:
            self._say(f"no disk fault is injected: {why}")
            self._book.problems.append(f"no disk fault was injected: {why}")
        self._say(f"torturing for {self._options.minutes:g} minutes with seed {self._options.seed}")
        began = reported = time.monotonic()

        def tick() -> None:
            nonlocal reported
            if time.monotonic() - reported >= SIGN_SECONDS:
                reported = time.monotonic()
                done, faults = self._book.done()
                minutes = (reported - began) / 60
                self._say(f"{minutes:.1f} of {self._options.minutes:g} minutes: {done} actions, {faults} faults")

        nemesis.run(began + self._options.minutes * 60, tick)

    def _gather(self, nemesis: Nemesis, seen: Watches) -> Evidence:
        swaps, replicated = seen.swaps, self._options.replicas > 1
        self._say("healing")
        nemesis.heal()
        self._book.note("quiet", "waiting until all moves have ended")
        reassigning = nemesis.reassigning if replicated else None
        left = ending.wait_quiet(self._roles, self._moving, reassigning, QUIET_SECONDS, self._say)
        self._book.note("quiet", left or "all moves have ended", "timed out" if left else "reached")
        seen.rates.stop()
        swaps.stop()
        if swaps.missed:
            for folder in swaps.missed:
                self._book.note("missed", folder, "deleted before the comparison")
            self._book.problems.append(f"{len(swaps.missed)} sources were deleted before they could be compared")
        self._say("stopping the clients")
        self._trying(self._workload.stop_producers, _nothing)
        self._trying(self._stop_consumers, _nothing)
        lives = [*self._topics, *self._side.lives]
        used = [topic for topic in lives if not topic.deleted]
        present = [*used, *self._idle]
        # Before the restarts, whose recovery could hide a violation.
        roles, moving = self._roles, self._moving
        directories: list[DirectoryFact] = self._trying(
            lambda: ending.directories(roles, present), list, "log directories"
        )
        homes: dict[Place, Home] = self._trying(lambda: ending.homes(roles, moving, present), dict, "replicas' places")
        throttles: list[ThrottleFact] = self._trying(
            lambda: ending.throttles(roles, nemesis.last_rates), list, "throttles"
        )
        runs: list[RunFact] = self._trying(moving.all_runs, list, "runs")
        reassignments: list[ReassignRunFact] = []
        listed: dict[Place, tuple[int, ...]] = {}
        if replicated:
            reassignments = self._trying(nemesis.reassigning.all_runs, list, "reassignments")
            listed = self._trying(nemesis.reassigning.running, dict, "reassignments")
        self._say("killing and starting every node twice")
        boots: list[Boot] = []
        for _ in range(2):
            boots += self._trying(lambda: [ending.boot(self._roles)], list, "starts")
        working = ending.roles_at_end(self._roles)
        self._say("reading everything back")
        final: dict[Place, FinalRead] = self._trying(lambda: self._read(used), dict, "records")
        seen.leaders.stop()
        seen.writes.stop()
        self._book.problems += [problem for watch in seen.all for problem in watch.problems]
        return Evidence(
            history=list(history.read(self._workload.histories)),
            topics={topic.label: topic for topic in (*lives, *self._idle)},
            final=final,
            scans=ending.scans(self._roles, used),
            swaps=swaps.swaps,
            runs=runs,
            directories=directories,
            homes=homes,
            samples=seen.rates.samples,
            limits=self._book.limits,
            throttles=throttles,
            faults=self._book.faults,
            troubles=self._book.troubles,
            roles=working,
            boots=boots,
            leaders=seen.leaders.leaders,
            clashes=seen.writes.clashes,
            batches=seen.writes.batches,
            initial=self._initial,
            asked=self._book.asked,
            reassignments=reassignments,
            listed=list(listed),
            missing=self._missing,
        )

    def _stop_consumers(self) -> None:
        ends = {
            topic.name: [cut.marks(self._roles.bootstrap, topic.name, n)[1] for n in range(topic.partitions)]
            for topic in self._topics
        }
        self._workload.stop_consumers(ends)

    def _read(self, topics: list[TopicFact]) -> dict[Place, FinalRead]:
        final, problems = read_all(self._roles.bootstrap, topics)
        self._book.problems += problems
        return final

    def _trying(self, do: Callable[[], T], otherwise: Callable[[], T], what: str = "") -> T:
        """Return `do()`, retried for `GATHER_SECONDS`; after that record the error and return `otherwise()`.

        If `what` names evidence (see `CHECKS_OF`), the verdict lists the checks that lack it.
        """
        until = time.monotonic() + GATHER_SECONDS
        while True:
            try:
                return do()
            except OpsError as error:
                if time.monotonic() > until:
                    self._book.problems.append(str(error))
                    for check in CHECKS_OF.get(what, ()):
                        self._missing.setdefault(check, f"{what} could not be read: {error}")
                    return otherwise()
                time.sleep(1.0)

    def _clean(self, *, keep: bool) -> None:
        self._book.close()
        if not keep:
            shutil.rmtree(self._folder, ignore_errors=True)


def _nothing() -> None:
    """Do nothing: the fallback of a step without a result."""
