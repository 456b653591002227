"""The nemesis: executes a seed's decisions on moves, topics and limits, and delegates process faults to `Faults`.

Each decision runs on a thread of its own, so that one that blocks (on a frozen node) delays no other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ops.stack.errors import OpsError
from ops.torture import cut
from ops.torture.checks.facts import LimitFact, TopicFact
from ops.torture.history import DELETE, INFO, OK, Event, now
from ops.torture.nemesis.book import Book
from ops.torture.nemesis.decisions import Decision, Every, decisions
from ops.torture.nemesis.failing_disks import FailingDisks
from ops.torture.nemesis.faults import Faults
from ops.torture.nemesis.moving import UNLIMITED, Moving, ReplicaOnDisk
from ops.torture.nemesis.reassigning import Reassigning
from ops.torture.nemesis.replicas import Replicas
from ops.torture.roles import Roles
from ops.torture.topics import MAIN, SHORT, Side
from ops.torture.workload import Workload

WORKERS = 10
SIDE_RECORDS = 300
LOWEST_RATE, HIGHEST_RATE = 200_000, 8_000_000


class Nemesis:
    """Execute the decisions of one run. `run` returns at a deadline; `heal` ends all faults."""

    def __init__(
        self,
        roles: Roles,
        moving: Moving,
        workload: Workload,
        side: Side,
        book: Book,
        seed: int,
        replicas: int = 1,
        every: Mapping[str, float] | None = None,
    ) -> None:
        """`replicas`: the replication factor; `every`: the seconds between two executions of an action."""
        self._every = every or {}
        self._roles, self._moving, self._workload = roles, moving, workload
        self._side, self._book, self._seed = side, book, seed
        self._usual, self._replicated = replicas, replicas > 1
        self.reassigning = Reassigning(roles, moving, book)
        self.reassigning.label = self._label
        self._replicas = Replicas(roles, self.reassigning, usual=replicas)
        self.faults = Faults(roles, moving, book)
        self._disks = FailingDisks(roles, moving, book, self.faults, self._settled)
        self._disks.label = self._label
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="nemesis")
        self._busy = threading.BoundedSemaphore(WORKERS)
        self.last_rates: dict[int, list[int]] = {}
        self._deeds: dict[str, Callable[[Decision], tuple[str, str]]] = {
            "move-by-sdk": self._move_by_sdk,
            "move-by-api": self._move_by_api,
            "move-many": self._move_many,
            "cancel-by-temporal": self._cancel_by_temporal,
            "cancel-by-current-directory": lambda d: self._cancel_by_api(d, any_directory=False),
            "cancel-by-any": lambda d: self._cancel_by_api(d, any_directory=True),
            "retarget-by-api": self._retarget_by_api,
            "retarget-by-update": self._retarget_by_update,
            "pause": lambda d: self._update(d, "pause"),
            "resume": lambda d: self._update(d, "resume"),
            "throttle-run": self._throttle_run,
            "throttle-node": self._throttle_node,
            "stop-moves": lambda d: self._private(d, "stop-moves"),
            "resume-moves": lambda d: self._private(d, "resume-moves"),
            "delete-records": self._delete_records,
            "side-topic": self._side_topic,
            "kill-node": self.faults.kill_node,
            "kill-controller": self.faults.kill_controller,
            "kill-temporal": self.faults.kill_temporal,
            "freeze-node": self.faults.freeze_node,
            "die-at-point": self.faults.die_at_point,
            "cut-role": self.faults.cut_role,
            "freeze-role": self.faults.freeze_role,
            "squeeze-node": self.faults.squeeze_node,
            "kill-leader": self.faults.kill_leader,
            "freeze-past-lease": self.faults.freeze_past_lease,
            "stop-node": self.faults.stop_node,
            **self._replicas.deeds,
            **self._disks.deeds,
        }

    @property
    def actions(self) -> set[str]:
        """The names of the actions that it can execute."""
        return set(self._deeds)

    def run(self, until: float, tick: Callable[[], None]) -> None:
        """Execute decisions until the monotonic time `until`, or `stop`; call `tick` before each."""
        every = Every(self._every, time.monotonic())
        disks = not self._roles.disks_cannot_fail
        for decision in decisions(
            self._seed, by_engine=self._roles.by_engine, replicated=self._replicated, disks=disks
        ):
            if self._stop.wait(min(decision.pause, max(0.0, until - time.monotonic()))) or time.monotonic() >= until:
                return
            tick()
            decision = every.chosen(decision, time.monotonic())
            if not self._busy.acquire(timeout=0.5):
                self._book.note(decision.action, "", "skipped: all threads are busy", decision.number)
                continue
            self._pool.submit(self._carry_out, decision)

    def stop(self) -> None:
        self._stop.set()
        self.faults.stop()

    def heal(self) -> None:
        """Wait for the actions in progress and end all faults: all roles run, no move is paused, stopped or limited."""
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.faults.heal()
        self._disks.heal()
        for node in self._roles.nodes:
            self._patiently(f"resume the moves of node {node}", partial(self._roles.call, node, "resume-moves"))
            self._patiently(f"remove the limit of node {node}", partial(self._limit, node, UNLIMITED))
        self._patiently("look the side topic up", self._side.settle)
        if self._replicated:
            self._patiently("remove the replication throttles", self._replicas.settle)
        self._patiently("resume what is paused", self._resume_runs)

    def _settled(self) -> bool:
        least = max(1, self._usual - 1)
        return all(row.leader >= 0 and len(row.isr) >= least for row in self.reassigning.partitions())

    def _label(self, topic: str) -> str:
        current = self._side.current
        return current.label if current is not None and topic == current.name else topic

    def _resume_runs(self) -> None:
        for run in self._moving.open_runs():
            progress = self._moving.progress(run)
            if progress.throttle is not None:
                self._moving.update(run, "set_throttle", {"rate": None})
            if progress.paused:
                self._moving.update(run, "resume")

    def _patiently(self, what: str, do: Callable[[], object], seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while True:
            try:
                do()
                self._book.note("heal", what, "done")
                return
            except OpsError as error:
                if time.monotonic() > until:
                    self._book.note("heal", what, f"given up: {error}")
                    self._book.problems.append(f"could not {what}: {error}")
                    return
                time.sleep(0.5)

    def _carry_out(self, decision: Decision) -> None:
        try:
            self._book.counted(decision.action)
            what, outcome = self._deeds[decision.action](decision)
            self._book.note(decision.action, what, outcome, decision.number)
        except IndexError:
            self._book.note(decision.action, "", "skipped: nothing to act on", decision.number)
        except OpsError as error:
            self._book.note(decision.action, "", f"failed: {error}", decision.number)
        except Exception as error:
            self._book.note(decision.action, "", f"failed: {error!r}", decision.number)
            self._book.problems.append(f"decision {decision.number} ({decision.action}) failed: {error!r}")
        finally:
            self._busy.release()

    # Moves

    def _elsewhere(self, decision: Decision, replica: ReplicaOnDisk, *, but: str = "") -> str:
        others = [d for d in self._roles.log_dirs(replica.node) if d not in (replica.directory, but)]
        return decision.pick(1, others)

    def _rate(self, decision: Decision, which: int) -> int:
        return int(LOWEST_RATE * (HIGHEST_RATE / LOWEST_RATE) ** decision.picks[which])

    def _move_by_sdk(self, decision: Decision) -> tuple[str, str]:
        replica = decision.pick(0, self._moving.replicas())
        target = self._elsewhere(decision, replica)
        throttle = self._rate(decision, 2) if decision.picks[3] < 0.7 else None
        return f"{replica} to {target} at {throttle}", self._moving.start([replica], target, throttle)

    def _move_by_api(self, decision: Decision) -> tuple[str, str]:
        replica = decision.pick(0, self._moving.replicas())
        target = self._elsewhere(decision, replica)
        codes = self._moving.alter(replica.node, {(replica.topic, replica.partition): target})
        return f"{replica} to {target}", codes

    def _move_many(self, decision: Decision) -> tuple[str, str]:
        """Move all replicas of one directory: by one request, or as one run (a lane)."""
        node = decision.pick(0, self._roles.nodes)
        source = decision.pick(2, self._roles.log_dirs(node))
        some = [r for r in self._moving.replicas() if (r.node, r.directory) == (node, source)]
        target = self._elsewhere(decision, some[0])
        what = f"{', '.join(map(str, some))} to {target}"
        if decision.picks[3] < 0.5:
            return what, self._moving.alter(node, {(r.topic, r.partition): target for r in some})
        return what, self._moving.start(some, target, self._rate(decision, 4))

    def _cancel_by_temporal(self, decision: Decision) -> tuple[str, str]:
        run = decision.pick(0, self._moving.open_runs())
        return run, self._moving.cancel(run)

    def _cancel_by_api(self, decision: Decision, *, any_directory: bool) -> tuple[str, str]:
        copy = decision.pick(0, self._moving.copies())
        directory = "any"
        if not any_directory:
            where = [
                r.directory
                for r in self._moving.replicas()
                if (r.node, r.topic, r.partition) == (copy.node, copy.topic, copy.partition)
            ]
            directory = decision.pick(1, where)
        codes = self._moving.alter(copy.node, {(copy.topic, copy.partition): directory})
        return f"{copy} to {copy.directory} by naming {directory}", codes

    def _retarget_by_api(self, decision: Decision) -> tuple[str, str]:
        copy = decision.pick(0, self._moving.copies())
        target = self._elsewhere(decision, copy)
        codes = self._moving.alter(copy.node, {(copy.topic, copy.partition): target})
        return f"{copy} to {target} instead of {copy.directory}", codes

    def _retarget_by_update(self, decision: Decision) -> tuple[str, str]:
        run = decision.pick(0, self._moving.open_runs())
        progress = self._moving.progress(run)
        row = decision.pick(2, progress.replicas)
        others = [d for d in self._roles.log_dirs(progress.node) if d != row.directory]
        order = {"topic": row.topic, "partition": row.partition, "directory": decision.pick(1, others)}
        return f"{run} {order}", self._moving.update(run, "set_target", order)

    def _update(self, decision: Decision, name: str) -> tuple[str, str]:
        run = decision.pick(0, self._moving.open_runs())
        return run, self._moving.update(run, name)

    # Limits

    def _throttle_run(self, decision: Decision) -> tuple[str, str]:
        run = decision.pick(0, self._moving.open_runs())
        rate = None if decision.picks[1] < 0.3 else self._rate(decision, 2)
        return f"{run} to {rate}", self._moving.update(run, "set_throttle", {"rate": rate})

    def _throttle_node(self, decision: Decision) -> tuple[str, str]:
        node = decision.pick(0, self._roles.nodes)
        rate = self._rate(decision, 1)
        self._limit(node, rate)
        return f"node {node} to {rate}", "set"

    def _limit(self, node: int, rate: int) -> None:
        """Set a node's limit, and record the values that it may have from now on."""
        invoked = now()
        self.last_rates.setdefault(node, []).append(rate)
        try:
            self._moving.limit_node(node, rate)
        except OpsError:
            self._book.limit(LimitFact(node, invoked, now(), rate, certain=False))
            raise
        self._book.limit(LimitFact(node, invoked, now(), rate))
        self.last_rates[node] = [rate]

    def _private(self, decision: Decision, op: str) -> tuple[str, str]:
        node = decision.pick(0, self._roles.nodes)
        self._roles.call(node, op)
        return f"of node {node}", "done"

    # Topics

    def _delete_records(self, decision: Decision) -> tuple[str, str]:
        """Move the log start of a partition to a random offset in the first half of its log."""
        topic = MAIN if decision.picks[0] < 0.8 else SHORT
        number = int(decision.picks[1] * topic.partitions)
        low, high = cut.marks(self._roles.bootstrap, topic.name, number)
        offset = int(low + (high - low) * decision.between(2, 0.0, 0.5))
        if offset <= low:
            raise IndexError
        invoked, wall = now(), time.time_ns()
        error = cut.delete_records(self._roles.bootstrap, topic.name, number, offset)
        kind = INFO if error else OK
        self._book.record(
            Event("nemesis", DELETE, topic.label, number, kind, invoked, now(), wall, offset=offset, error=error)
        )
        return f"below {offset} of {topic.name}-{number} ({low} to {high})", error or "done"

    def _side_topic(self, decision: Decision) -> tuple[str, str]:
        """Create the side topic, delete it, or delete it and create it again at once."""
        if not self._side.guard.acquire(blocking=False):
            return "", "busy"
        try:
            current = self._side.current
            if current is None:
                return self._fill(self._side.create())
            if self._workload.filling(current.label):
                return current.label, "skipped: its records are still being sent"
            gone = self._side.delete()
            if not gone or decision.picks[0] < 0.4:
                return current.label, "deleted" if gone else "not deleted"
            what, outcome = self._fill(self._side.create())
            return f"{current.label} deleted, {what}", outcome
        finally:
            self._side.guard.release()

    def _fill(self, made: TopicFact | None) -> tuple[str, str]:
        if made is None:
            return "", "not created"
        if not self._side.known_everywhere():
            return made.label, "created, left empty: not every node has its metadata"
        self._workload.fill(made, SIDE_RECORDS)
        return made.label, "created"
