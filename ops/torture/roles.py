"""The processes under torture behind one protocol, and its implementation by local processes."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import javaproperties

from ops.faults.disk import Disk, missing
from ops.stack import ports, processes, temporal_server
from ops.stack.errors import OpsError
from ops.stack.interrupts import uninterrupted
from ops.stack.layout import CONTROLLER, TEMPORAL, node_name
from ops.stack.stack import Stack
from storage_node.wire.client import private_client

NODES, DIRS = 3, 3

#: Further lines of a node's server.properties: short delays, so that each minute has many events.
PROPERTIES = {
    "file.delete.delay.ms": "5000",
    "log.retention.check.interval.ms": "2000",
    "log.flush.offset.checkpoint.interval.ms": "3000",
    "log.flush.start.offset.checkpoint.interval.ms": "3000",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
    "replica.lag.time.max.ms": "5000",
}
#: Further lines of nodes with disk faults: a node detects a hanging disk soon, and makes the replicas of a failed one
#: again in its other log directories while some of them are still away.
FAILURE_SECONDS = 10
ON_FAULTY_DISKS = {
    "log.dir.failure.timeout.ms": str(FAILURE_SECONDS * 1000),
    "log.dir.health.check.interval.ms": "1000",
    "log.dir.heal.delay.ms": "2000",
}


class Roles(Protocol):
    """A cluster under torture: its addresses, folders and processes, and the faults that can be injected into them.

    Roles are named `temporal`, `controller`, `node-1`, ...; directories are the paths on their node. Methods are
    thread-safe, for one role by one thread at a time. Failures raise `OpsError`.
    """

    @property
    def nodes(self) -> tuple[int, ...]: ...

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers for clients outside the cluster."""

    def address(self, node: int) -> tuple[str, int]:
        """Return host and port of a node's listener, for this process."""

    @property
    def temporal_address(self) -> str: ...

    @property
    def cluster(self) -> str: ...

    @property
    def by_engine(self) -> bool:
        """Whether the roles run in containers: whether `cut`, `mend`, `squeeze` and `loosen` are supported."""

    def up(self) -> None:
        """Create and start all roles; return when they work."""

    def down(self) -> None:
        """Stop all roles and keep the data. Idempotent; not interruptible by Ctrl-C."""

    def kill(self, name: str) -> bool:
        """Send SIGKILL; return False if the role was not running."""

    def stop(self, name: str) -> bool:
        """Shut the role down cleanly (SIGTERM); return False if it was not running."""

    def start(self, name: str) -> None:
        """Start the role and wait until it works; do nothing if it is running."""

    def freeze(self, name: str) -> None:
        """Freeze the role (SIGSTOP) until `thaw`."""

    def thaw(self, name: str) -> None: ...

    def cut(self, name: str) -> None:
        """Disconnect the role from the network until `mend`."""

    def mend(self, name: str) -> None: ...

    def squeeze(self, name: str, size: int) -> None:
        """Kill the role and start it with a memory limit of `size` bytes, without waiting until it works."""

    def starved(self, name: str) -> bool:
        """Return whether the OOM killer killed a process of the role since its last start."""

    def loosen(self, name: str) -> None:
        """Remove the role's memory limit, whether it is running or not."""

    def witnessed(self) -> dict[str, int]:
        """Return the faults by the container engine's own count; empty without an engine."""

    def alive(self, name: str) -> bool:
        """Return whether the role's process exists, frozen or not."""

    def log_dirs(self, node: int) -> tuple[str, ...]:
        """Return the node's log.dirs."""

    def disk(self, node: int, directory: str) -> Path:
        """Return the path at which this process can read a log directory of a node."""

    @property
    def disks_cannot_fail(self) -> str:
        """Why disk faults are not supported; "" if the last log directory of each node supports them."""

    def fail_disk(self, node: int, *rules: Mapping[str, Any]) -> None:
        """Apply these rules (see `ops.faults.rules.Rule`) to the node's last log directory until `mend_disk`."""

    def disk_hits(self, node: int) -> int:
        """Return how many operations the current rules have affected."""

    def mend_disk(self, node: int) -> None:
        """Remove the rules; operations that hang continue."""

    def call(self, node: int, op: str, timeout: float = 3.0, **fields: Any) -> dict[str, Any]:
        """Send a request to the node's private API and return the response. Raises `OpsError`."""

    def arm(self, node: int, points: str) -> None:
        """Arm failpoints of a running node (`name=action`, see storage_node.failpoints); "" disarms."""


class FailpointFiles:
    """The files that arm failpoints of running nodes (see storage_node.failpoints), one per node in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def environment(self, node: int) -> dict[str, str]:
        """Return the environment variables that a node's process needs."""
        return {"REHOME_FAILPOINTS": f"@{self._file(node)}"}

    def arm(self, node: int, points: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self._file(node).with_suffix(".tmp")
        temporary.write_text(points)
        temporary.replace(self._file(node))

    def _file(self, node: int) -> Path:
        return self.folder / node_name(node)


@contextlib.contextmanager
def _disk_errors(node: int) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise OpsError(f"the faulty disk of node {node} does not respond: {error}") from error


def private_call(host: str, port: int, node: int, op: str, timeout: float, **fields: Any) -> dict[str, Any]:
    """Send a request to a node's private API and return the response. Raises `OpsError`."""
    try:
        return private_client.call(host, port, op, timeout=timeout, **fields)
    except (OSError, ValueError, private_client.PrivateCallFailed) as error:
        raise OpsError(f"the request {op} to node {node} failed: {error or type(error).__name__}") from error


class LocalRoles:
    """Local processes, started by the dev stack."""

    by_engine = False

    def __init__(self, data: Path, say: Callable[[str], None], count: int = NODES) -> None:
        """`count`: the number of nodes."""
        self._say, self._count = say, count
        self._points = FailpointFiles(data / "failpoints")
        environment = {node_name(node): self._points.environment(node) for node in range(1, count + 1)}
        self._stack = Stack(data / "stack", environment=environment)  # not `say`, for each restart
        self._frozen: set[str] = set()
        self.disks_cannot_fail = missing()
        self._faulty: dict[int, Disk] = {}
        self._guard = threading.Lock()

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(self._stack.spec().node_ids)

    @property
    def bootstrap(self) -> str:
        return self._stack.spec().bootstrap

    def address(self, node: int) -> tuple[str, int]:
        host, _, port = self._stack.spec().node_address(node).partition(":")
        return host, int(port)

    @property
    def temporal_address(self) -> str:
        return self._stack.spec().temporal_address

    @property
    def cluster(self) -> str:
        return self._stack.spec().cluster

    @property
    def stack(self) -> Stack:
        """The dev stack of these processes."""
        return self._stack

    def up(self) -> None:
        temporal_server.ensure(self._say)
        self._stack.make_folder()
        for node in range(1, self._count + 1):
            self._points.arm(node, "")
        block = ports.some_block(self._count + 1)
        spec = self._stack.prepare(
            {
                "nodes": self._count,
                "dirs": DIRS + (0 if self.disks_cannot_fail else 1),
                "port": block,
                "temporal_port": block + self._count,
            }
        )
        for node in spec.node_ids:
            path = spec.node_home(node) / "server.properties"
            ours = PROPERTIES if self.disks_cannot_fail else PROPERTIES | ON_FAULTY_DISKS
            kept = [line for line in path.read_text().splitlines() if line.partition("=")[0] not in ours]
            path.write_text("\n".join([*kept, *itertools.starmap(javaproperties.join_key_value, ours.items())]) + "\n")
            if not self.disks_cannot_fail:
                last = spec.log_dirs(node)[-1]
                last.rename(last.with_name(f"{last.name}.backing"))  # the faulty disk stores its files there
                self._faulty[node] = Disk(last.parent, last.name)
        self._stack.up()

    def down(self) -> None:
        with uninterrupted():
            for name in tuple(self._frozen):
                self.thaw(name)
            for node in tuple(self._faulty):
                with contextlib.suppress(OpsError):  # a node cannot exit while its disk hangs
                    self.mend_disk(node)
            while self._stack.down():  # again, for a node whose start was in progress
                pass
            for node in tuple(self._faulty):
                self._faulty.pop(node).close()

    def kill(self, name: str) -> bool:
        done = self._stack.kill(name)
        with self._guard:
            self._frozen.discard(name)
        return done

    def stop(self, name: str) -> bool:
        return self._stack.stop(name)

    def start(self, name: str) -> None:
        self._stack.start(name)

    def freeze(self, name: str) -> None:
        with self._guard:
            self._frozen.add(name)
        self._signal(name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)
        with self._guard:
            self._frozen.discard(name)

    def cut(self, name: str) -> None:
        raise OpsError(f"{name} cannot be disconnected: it is a local process")

    def mend(self, name: str) -> None:
        raise OpsError(f"{name} was not disconnected")

    def squeeze(self, name: str, size: int) -> None:
        raise OpsError(f"the memory of {name} cannot be limited: it is a local process")

    def starved(self, name: str) -> bool:
        return False

    def loosen(self, name: str) -> None:
        raise OpsError(f"the memory of {name} was not limited")

    def witnessed(self) -> dict[str, int]:
        return {}

    def alive(self, name: str) -> bool:
        return name in self._stack.running()

    def log_dirs(self, node: int) -> tuple[str, ...]:
        return tuple(str(path) for path in self._stack.spec().log_dirs(node))

    def disk(self, node: int, directory: str) -> Path:
        faulty = self._faulty.get(node)
        return faulty.backing if faulty is not None and directory == str(faulty.path) else Path(directory)

    def fail_disk(self, node: int, *rules: Mapping[str, Any]) -> None:
        with _disk_errors(node):
            self._disk(node).rules(*rules)

    def disk_hits(self, node: int) -> int:
        with _disk_errors(node):
            return self._disk(node).hits

    def mend_disk(self, node: int) -> None:
        with _disk_errors(node):
            self._disk(node).heal()

    def _disk(self, node: int) -> Disk:
        if node not in self._faulty:
            raise OpsError(
                f"the disks of node {node} cannot be made to fail: {self.disks_cannot_fail or 'it was not started'}"
            )
        return self._faulty[node]

    def call(self, node: int, op: str, timeout: float = 3.0, **fields: Any) -> dict[str, Any]:
        return private_call(*self.address(node), node, op, timeout, **fields)

    def arm(self, node: int, points: str) -> None:
        self._points.arm(node, points)

    def _signal(self, name: str, number: signal.Signals) -> None:
        record = self._stack.running().get(name)
        if record is not None:
            processes.send(record, number)


def all_names(roles: Roles) -> tuple[str, ...]:
    """Return the names of all roles, in starting order."""
    return (TEMPORAL, CONTROLLER, *(node_name(node) for node in roles.nodes))
