"""Process faults: kill, freeze, disconnect, die at a failpoint; and their healing.

A role has one fault at a time, and at most two roles have faults at once.
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
from ops.torture.checks.beside_disks import RECOVERY_SECONDS
from ops.torture.checks.facts import TroubleFact
from ops.torture.history import now
from ops.torture.nemesis.book import Book
from ops.torture.nemesis.decisions import Decision
from ops.torture.nemesis.moving import Moving
from ops.torture.roles import Roles, all_names
from storage_node import failpoints

AT_ONCE = 2
#: Seconds for which a start is retried before it is a problem of the run.
START_SECONDS = 180.0
#: Seconds within which an armed node must reach its failpoint.
POINT_SECONDS = 8.0
#: Seconds that an action waits for all process faults to end.
ALONE_SECONDS = 30.0
#: Bounds of a squeezed node's memory limit (bytes): from too little for a start to enough for some work.
LEAST_MEMORY, MOST_MEMORY = 44 << 20, 112 << 20

#: Seconds for which a leader is frozen: longer than its lease, so the controller fences it.
PAST_LEASE = (9.0, 18.0)

MOVE_PREFIXES = ("create.", "copy.", "swap.", "delete.", "undo.")
CANCEL_PREFIXES = ("cancel.", "discard.")
OTHER_PREFIXES = ("boot.", "atomic.", "checkpoint.", "cluster_image.", "partition_metadata.", "log.")


class Busy(OpsError):
    """The role has a fault already, or the limit of concurrent faults is reached."""


def points(prefixes: tuple[str, ...]) -> list[str]:
    """Return the failpoints with these prefixes, sorted."""
    return sorted(name for prefix in prefixes for name in failpoints.registered(prefix))


class Faults:
    """Inject faults into processes."""

    def __init__(self, roles: Roles, moving: Moving, book: Book) -> None:
        self._roles, self._moving, self._book = roles, moving, book
        self._stop = threading.Event()
        self._troubled = threading.BoundedSemaphore(AT_ONCE)
        self._calm_since = time.monotonic()
        self._alone = threading.Lock()
        self._locks = {name: threading.Lock() for name in all_names(roles)}

    def stop(self) -> None:
        """End the waits of all actions."""
        self._stop.set()

    def wait(self, seconds: float) -> bool:
        """Wait for `seconds` or until `stop`; return whether `stop` was called."""
        return self._stop.wait(seconds)

    def heal(self) -> None:
        """End all faults and start the roles that are not running. A failed start is a problem of the run."""
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

    # Each action returns its object and its outcome

    def kill_node(self, decision: Decision) -> tuple[str, str]:
        return self._kill(node_name(decision.pick(0, self._roles.nodes)), decision.between(1, 0, 4))

    def kill_leader(self, decision: Decision) -> tuple[str, str]:
        """Kill a partition's leader, for less or more time than the election of the next one takes."""
        leader = decision.pick(0, self._leaders())
        return self._kill(node_name(leader), decision.between(1, 0, 12))

    def freeze_past_lease(self, decision: Decision) -> tuple[str, str]:
        """Freeze a leader until the controller has fenced it and elected others, then thaw it."""
        leader = decision.pick(0, self._leaders())
        return self._freeze(node_name(leader), decision.between(1, *PAST_LEASE))

    def stop_node(self, decision: Decision) -> tuple[str, str]:
        """Shut a node down cleanly (SIGTERM) and start it again."""
        name, seconds = node_name(decision.pick(0, self._roles.nodes)), decision.between(1, 0, 6)
        with self._trouble(name):
            began = time.monotonic()
            if not self._roles.stop(name):
                return name, "was not running"
            stopped = time.monotonic() - began
            self._book.killed(f"{name} stopped")
            self._stop.wait(seconds)
            took = self.start(name)
        return name, f"shut down within {stopped:.1f} s, back {seconds + took:.1f} s later"

    def _leaders(self) -> list[int]:
        """Return the leader of each partition, in the metadata of the first node that responds."""
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
        self._book.killed(f"{name} disconnected")
        return name, f"was disconnected for {seconds:.1f} s"

    def squeeze_node(self, decision: Decision) -> tuple[str, str]:
        """Restart a node under a memory limit, and again each time it exits, by the OOM killer or by itself."""
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
            self._book.killed(f"{name} killed by the OOM killer", struck)
        outcome = f"{struck} OOM kills" if struck else "no OOM kill"
        outcome += f", {ended} other exits" if ended else ""
        return name, f"had {size / 2**20:.0f} MiB for {seconds:.1f} s, {outcome}"

    def _mostly_nodes(self) -> tuple[str, ...]:
        nodes = tuple(node_name(node) for node in self._roles.nodes)
        return (*nodes, *nodes, CONTROLLER, TEMPORAL)

    def die_at_point(self, decision: Decision) -> tuple[str, str]:
        """Arm a failpoint of a node and request a move that may reach it; restart the node once it has died there."""
        node = decision.pick(0, self._roles.nodes)
        name = node_name(node)
        share = decision.picks[1]
        family = MOVE_PREFIXES if share < 0.65 else CANCEL_PREFIXES if share < 0.85 else OTHER_PREFIXES
        point = decision.pick(2, points(family))
        with self._trouble(name):
            if not self._roles.alive(name):
                return f"{name} at {point}", "is not running"
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
        return f"{name} at {point}", "died there" if died else "did not reach it"

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
                return name, "was not running"
            self._book.note("killed", name, "SIGKILL")
            self._book.killed(name)
            self._stop.wait(seconds)
            took = self.start(name)
        return name, f"worked {took:.1f} s after its start, down for {seconds + took:.1f} s"

    def _freeze(self, name: str, seconds: float) -> tuple[str, str]:
        with self._trouble(name):
            self._roles.freeze(name)
            self._stop.wait(seconds)
            self._roles.thaw(name)
        self._book.killed(f"{name} frozen")
        return name, f"was frozen for {seconds:.1f} s"

    def start(self, name: str) -> float:
        """Start a role, retrying for `START_SECONDS`; return the seconds it took. Raises `OpsError`."""
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
        """Record that the held role has a fault while the block runs."""
        since = now()
        try:
            yield
        finally:
            self._calm_since = time.monotonic()
            self._book.troubled(TroubleFact(name, since, now()))

    @property
    def one_is_alone(self) -> bool:
        """Whether an action is, or waits to be, `alone`."""
        return self._alone.locked()

    @contextlib.contextmanager
    def alone(self, name: str, settled: Callable[[], bool]) -> Iterator[None]:
        """Hold a role while no role has a fault, `RECOVERY_SECONDS` after the last one and once the cluster has
        `settled`. Raises `Busy`.
        """
        with contextlib.ExitStack() as kept:
            if not self._alone.acquire(blocking=False):
                raise Busy("another action must be alone")
            kept.callback(self._alone.release)
            until = time.monotonic() + ALONE_SECONDS
            for _ in range(AT_ONCE):
                if not self._troubled.acquire(timeout=max(0.0, until - time.monotonic())):
                    raise Busy("other faults did not end in time")
                kept.callback(self._troubled.release)
            kept.enter_context(self.locked(name))
            while (left := self._calm_since + RECOVERY_SECONDS - time.monotonic()) > 0 or not settled():
                if time.monotonic() > until or self._stop.wait(max(0.2, left)):
                    raise Busy("the cluster did not settle in time")
            yield

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Exclude other faults of a role while the block runs; it counts as a role with a fault. Raises `Busy`."""
        if not self._troubled.acquire(blocking=False):
            raise Busy(f"{AT_ONCE} roles have faults already")
        try:
            with self.locked(name):
                yield
        finally:
            self._troubled.release()

    @contextlib.contextmanager
    def locked(self, name: str, seconds: float = 0.0) -> Iterator[None]:
        """Exclude other faults of a role, regardless of other roles. Raises `Busy` after `seconds` if it has one."""
        if not self._locks[name].acquire(timeout=seconds):
            raise Busy(f"{name} has a fault already")
        try:
            yield
        finally:
            self._locks[name].release()
