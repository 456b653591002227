"""What is done to processes: killed, frozen, cut off, made to die at a named step; and all of it healed again.

A role has one trouble at a time, and at most two roles have trouble at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import storage_node.node  # noqa: F401  (declares every failpoint)
from ops.stack.errors import OpsError
from ops.stack.layout import CONTROLLER, TEMPORAL, node_name
from ops.torture import ask
from ops.torture.book import Book
from ops.torture.checks_disks import RECOVERY_SECONDS
from ops.torture.decisions import Decision
from ops.torture.facts import TroubleFact
from ops.torture.history import now
from ops.torture.moving import Moving
from ops.torture.roles import Roles, all_names
from storage_node import failpoints

AT_ONCE = 2
#: Seconds that a start may be tried for before it is a problem of the run.
START_SECONDS = 180.0
#: Seconds that an armed node gets to reach its point.
POINT_SECONDS = 8.0
#: Seconds for which a deed waits until no process has trouble.
ALONE_SECONDS = 30.0
#: Bytes that a squeezed node may have: from too little to start with to enough for a while.
LEAST_MEMORY, MOST_MEMORY = 44 << 20, 112 << 20

#: Seconds for which a leader stands still: longer than it takes to fence it.
PAST_LEASE = (9.0, 18.0)

MOVE_PREFIXES = ("create.", "copy.", "swap.", "delete.", "undo.")
CANCEL_PREFIXES = ("cancel.", "discard.")
OTHER_PREFIXES = ("boot.", "atomic.", "checkpoint.", "cluster_image.", "partition_metadata.", "log.")


class Busy(OpsError):
    """The role has trouble already, or enough others have."""


def points(prefixes: tuple[str, ...]) -> list[str]:
    """The failpoints of these families, sorted."""
    return sorted(name for prefix in prefixes for name in failpoints.registered(prefix))


class Faults:
    """Trouble with processes."""

    def __init__(self, roles: Roles, moving: Moving, book: Book) -> None:
        self._roles, self._moving, self._book = roles, moving, book
        self._stop = threading.Event()
        self._troubled = threading.BoundedSemaphore(AT_ONCE)
        self._calm_since = time.monotonic()
        self._alone = threading.Lock()
        self._locks = {name: threading.Lock() for name in all_names(roles)}

    def stop(self) -> None:
        """Nothing waits any longer than it must."""
        self._stop.set()

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until `stop`; return whether it was the latter."""
        return self._stop.wait(seconds)

    def heal(self) -> None:
        """Disarm, thaw and mend everything, and start what does not run. What does not start is a problem."""
        for node in self._roles.nodes:
            self._roles.arm(node, "")
        for name in all_names(self._roles):
            self._roles.thaw(name)
            if self._roles.by_engine:
                self._roles.mend(name)
                self._roles.loosen(name)
            try:
                self.start(name)
            except OpsError as error:
                self._book.problems.append(f"{name} does not start: {error}")

    # Each answers what was done and what came of it

    def kill_node(self, decision: Decision) -> tuple[str, str]:
        return self._kill(node_name(decision.pick(0, self._roles.nodes)), decision.between(1, 0, 4))

    def kill_leader(self, decision: Decision) -> tuple[str, str]:
        """Kill whoever leads a partition, for as long as it takes until others lead in its place, or less."""
        leader = decision.pick(0, self._leaders())
        return self._kill(node_name(leader), decision.between(1, 0, 12))

    def freeze_past_lease(self, decision: Decision) -> tuple[str, str]:
        """Let a leader stand still until others have taken its place, and then go on as if nothing had been."""
        leader = decision.pick(0, self._leaders())
        return self._freeze(node_name(leader), decision.between(1, *PAST_LEASE))

    def stop_node(self, decision: Decision) -> tuple[str, str]:
        """Let a node end by itself, and start it again."""
        name, seconds = node_name(decision.pick(0, self._roles.nodes)), decision.between(1, 0, 6)
        with self._trouble(name):
            began = time.monotonic()
            if not self._roles.stop(name):
                return name, "did not run"
            stopped = time.monotonic() - began
            self._book.killed(f"{name} stopped")
            self._stop.wait(seconds)
            took = self.start(name)
        return name, f"ended within {stopped:.1f} s, away for {seconds + took:.1f} s more"

    def _leaders(self) -> list[int]:
        """Who leads, partition by partition, by the first node that answers."""
        for node in self._roles.nodes:
            with contextlib.suppress(OpsError):
                led = ask.metadata(*self._roles.address(node), timeout=1.0)
                return [row.leader for row in led if row.leader in self._roles.nodes]
        return []

    def kill_controller(self, decision: Decision) -> tuple[str, str]:
        return self._kill(CONTROLLER, decision.between(1, 0, 4))

    def kill_temporal(self, decision: Decision) -> tuple[str, str]:
        return self._kill(TEMPORAL, decision.between(1, 0, 3))

    def freeze_node(self, decision: Decision) -> tuple[str, str]:
        return self._freeze(node_name(decision.pick(0, self._roles.nodes)), decision.between(1, 0.3, 8))

    def freeze_role(self, decision: Decision) -> tuple[str, str]:
        return self._freeze(decision.pick(0, (CONTROLLER, TEMPORAL)), decision.between(1, 0.3, 8))

    def cut_role(self, decision: Decision) -> tuple[str, str]:
        name, seconds = decision.pick(0, self._mostly_nodes()), decision.between(1, 0.5, 8)
        with self._trouble(name):
            self._roles.cut(name)
            self._stop.wait(seconds)
            self._roles.mend(name)
        self._book.killed(f"{name} cut off")
        return name, f"was cut off for {seconds:.1f} s"

    def squeeze_node(self, decision: Decision) -> tuple[str, str]:
        """Restart a node with little memory: it may do its work, or be killed for it once or again."""
        name, seconds = node_name(decision.pick(0, self._roles.nodes)), decision.between(1, 4, 15)
        size = int(decision.between(2, LEAST_MEMORY, MOST_MEMORY))
        struck = ended = 0
        with self._trouble(name):
            self._roles.squeeze(name, size)
            until = time.monotonic() + seconds
            while time.monotonic() < until and not self._stop.wait(0.2):
                if not self._roles.alive(name):
                    starved = self._roles.starved(name)
                    struck, ended = struck + starved, ended + (not starved)
                    self._roles.squeeze(name, size)
            self._roles.loosen(name)
            self.start(name)
        self._book.killed(f"{name} restarted under a memory limit")
        if struck:
            self._book.killed(f"{name} killed for memory", struck)
        word = f"killed for it {struck} times" if struck else "it was enough"
        word += f", ended {ended} times by itself" if ended else ""
        return name, f"had {size / 2**20:.0f} MiB for {seconds:.1f} s, {word}"

    def _mostly_nodes(self) -> tuple[str, ...]:
        nodes = tuple(node_name(node) for node in self._roles.nodes)
        return (*nodes, *nodes, CONTROLLER, TEMPORAL)

    def die_at_point(self, decision: Decision) -> tuple[str, str]:
        """Arm one failpoint of a node and give it something to pass it with; start it again once it has died."""
        node = decision.pick(0, self._roles.nodes)
        name = node_name(node)
        share = decision.picks[1]
        family = MOVE_PREFIXES if share < 0.65 else CANCEL_PREFIXES if share < 0.85 else OTHER_PREFIXES
        point = decision.pick(2, points(family))
        with self._trouble(name):
            if not self._roles.alive(name):
                return f"{name} at {point}", "does not run"
            self._roles.arm(node, f"{point}=kill\n")
            self._provoke(decision, node, cancel=family is CANCEL_PREFIXES)
            until = time.monotonic() + POINT_SECONDS
            while self._roles.alive(name) and time.monotonic() < until and not self._stop.wait(0.1):
                pass
            died = not self._roles.alive(name)
            twice = died and decision.picks[5] < 0.2
            self._roles.arm(node, "boot.after_marker=kill\n" if twice else "")
            if died:
                self._book.killed(f"{name} at a failpoint")
                if twice:
                    with contextlib.suppress(OpsError):
                        self._roles.start(name)
                    self._roles.arm(node, "")
                self.start(name)
        return f"{name} at {point}", "died there" if died else "did not pass it"

    def _provoke(self, decision: Decision, node: int, *, cancel: bool) -> None:
        with contextlib.suppress(OpsError, IndexError):
            replica = decision.pick(3, [r for r in self._moving.replicas() if r.node == node])
            target = decision.pick(4, [d for d in self._roles.log_dirs(node) if d != replica.directory])
            self._moving.alter(node, {(replica.topic, replica.partition): target})
            if cancel:
                self._moving.alter(node, {(replica.topic, replica.partition): "any"})

    def _kill(self, name: str, seconds: float) -> tuple[str, str]:
        with self._trouble(name):
            if not self._roles.kill(name):
                return name, "did not run"
            self._book.note("killed", name, "SIGKILL")
            self._book.killed(name)
            self._stop.wait(seconds)
            took = self.start(name)
        return name, f"back {took:.1f} s after its start, away for {seconds + took:.1f} s"

    def _freeze(self, name: str, seconds: float) -> tuple[str, str]:
        with self._trouble(name):
            self._roles.freeze(name)
            self._stop.wait(seconds)
            self._roles.thaw(name)
        self._book.killed(f"{name} frozen")
        return name, f"stood still for {seconds:.1f} s"

    def start(self, name: str) -> float:
        """Start it, again if it does not come up at once; the seconds it took."""
        began = time.monotonic()
        while True:
            try:
                self._roles.start(name)
                return time.monotonic() - began
            except OpsError:
                if time.monotonic() - began > START_SECONDS:
                    raise
                time.sleep(0.5)

    @contextlib.contextmanager
    def _trouble(self, name: str) -> Iterator[None]:
        with self.held(name), self.noted(name):
            yield

    @contextlib.contextmanager
    def noted(self, name: str) -> Iterator[None]:
        """Note that the process, which is held, has trouble while the block runs."""
        since = now()
        try:
            yield
        finally:
            self._calm_since = time.monotonic()
            self._book.troubled(TroubleFact(name, since, now()))

    @property
    def one_is_alone(self) -> bool:
        """Whether a deed is, or waits to be, `alone`."""
        return self._alone.locked()

    @contextlib.contextmanager
    def alone(self, name: str, settled: Callable[[], bool]) -> Iterator[None]:
        """Hold a role while no role has trouble, nor had any in the last `RECOVERY_SECONDS`, from a moment on when the
        cluster has `settled`. Raises `Busy`.
        """
        with contextlib.ExitStack() as kept:
            if not self._alone.acquire(blocking=False):
                raise Busy("another deed is to be alone")
            kept.callback(self._alone.release)
            until = time.monotonic() + ALONE_SECONDS
            for _ in range(AT_ONCE):
                if not self._troubled.acquire(timeout=max(0.0, until - time.monotonic())):
                    raise Busy("others have had trouble for too long")
                kept.callback(self._troubled.release)
            kept.enter_context(self.locked(name))
            while (left := self._calm_since + RECOVERY_SECONDS - time.monotonic()) > 0 or not settled():
                if time.monotonic() > until or self._stop.wait(max(0.2, left)):
                    raise Busy("the cluster did not settle in time")
            yield

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Keep other trouble off a role while the block runs; it counts as one that has trouble. Raises `Busy`."""
        if not self._troubled.acquire(blocking=False):
            raise Busy("enough others have trouble")
        try:
            with self.locked(name):
                yield
        finally:
            self._troubled.release()

    @contextlib.contextmanager
    def locked(self, name: str, seconds: float = 0.0) -> Iterator[None]:
        """Keep other trouble off a role, however many others have any. Raises `Busy` where it has some for so long."""
        if not self._locks[name].acquire(timeout=seconds):
            raise Busy(f"{name} has trouble already")
        try:
            yield
        finally:
            self._locks[name].release()
