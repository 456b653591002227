"""The processes under torture, behind one small protocol: local processes here, anything else by another class."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from ops.faults.disk import Disk, missing
from ops.stack import ports, processes, temporal_server
from ops.stack.errors import OpsError
from ops.stack.interrupts import uninterrupted
from ops.stack.layout import CONTROLLER, TEMPORAL, node_name
from ops.stack.stack import Stack
from storage_node.protocol import private_client

NODES, DIRS = 3, 3

#: What a node's server.properties has beside the stack's own lines: short delays, so that much happens in a minute.
PROPERTIES = {
    "file.delete.delay.ms": "5000",
    "log.retention.check.interval.ms": "2000",
    "log.flush.offset.checkpoint.interval.ms": "3000",
    "log.flush.start.offset.checkpoint.interval.ms": "3000",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
    "replica.lag.time.max.ms": "5000",
}
#: What it has besides where its last disk can be made to fail: a disk that hangs is soon known.
FAILURE_SECONDS = 10
ON_FAULTY_DISKS = {
    "log.dir.failure.timeout.ms": str(FAILURE_SECONDS * 1000),
    "log.dir.health.check.interval.ms": "1000",
}


class Roles(Protocol):
    """What the torture needs of a cluster: its addresses and folders, and power over its processes.

    Roles are named `temporal`, `controller`, `node-1`, ...; directories are named as on their node. Every method may
    be called from any thread, of one role from one thread at a time. What cannot be done raises `OpsError`.
    """

    @property
    def nodes(self) -> tuple[int, ...]: ...

    @property
    def bootstrap(self) -> str:
        """Kafka bootstrap servers, as clients outside the cluster reach them."""

    def address(self, node: int) -> tuple[str, int]:
        """Host and port of a node's listener, as it is reached from here."""

    @property
    def temporal_address(self) -> str: ...

    @property
    def cluster(self) -> str: ...

    @property
    def by_engine(self) -> bool:
        """Whether a container engine holds the processes: whether `cut`, `mend`, `squeeze` and `loosen` work here."""

    def up(self) -> None:
        """Make and start everything; returns when it works."""

    def down(self) -> None:
        """Stop everything and leave the data; doing it twice does no harm. Never interrupted half-way."""

    def kill(self, name: str) -> bool:
        """SIGKILL; False if it did not run."""

    def stop(self, name: str) -> bool:
        """Let it end by itself (SIGTERM); False if it did not run."""

    def start(self, name: str) -> None:
        """Start a role that does not run, and wait until it works; nothing if it runs."""

    def freeze(self, name: str) -> None:
        """Let it stand still (SIGSTOP) until `thaw`."""

    def thaw(self, name: str) -> None: ...

    def cut(self, name: str) -> None:
        """Cut a role off the network until `mend`."""

    def mend(self, name: str) -> None: ...

    def squeeze(self, name: str, size: int) -> None:
        """Kill a role and start it again with so many bytes of memory, without waiting until it works."""

    def starved(self, name: str) -> bool:
        """Whether the kernel killed something in it for want of memory since its last start."""

    def loosen(self, name: str) -> None:
        """Give a role back its memory; it need not run any more."""

    def witnessed(self) -> dict[str, int]:
        """What the engine itself counted of all this, by event; empty where there is none."""

    def alive(self, name: str) -> bool:
        """Whether its process is there, frozen or not."""

    def log_dirs(self, node: int) -> tuple[str, ...]:
        """The node's log directories as it names them itself."""

    def disk(self, node: int, directory: str) -> Path:
        """Where a log directory of a node can be read from here."""

    @property
    def disks_cannot_fail(self) -> str:
        """Why no disk can be made to fail here; "" where the last log directory of each node can be."""

    def fail_disk(self, node: int, *rules: Mapping[str, Any]) -> None:
        """Let the node's last log directory fail by these rules (see `ops.faults.rules.Rule`) until `mend_disk`."""

    def disk_hits(self, node: int) -> int:
        """How many operations the rules in force have hit."""

    def mend_disk(self, node: int) -> None:
        """Let it work again; what hung in it goes on."""

    def call(self, node: int, op: str, timeout: float = 3.0, **fields: Any) -> dict[str, Any]:
        """The node's private API. Raises `OpsError`."""

    def arm(self, node: int, points: str) -> None:
        """Arm failpoints of a running node (`name=action`, see storage_node.failpoints); "" disarms."""


class FailpointFiles:
    """The files by which running nodes are armed (see storage_node.failpoints), one per node in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def environment(self, node: int) -> dict[str, str]:
        """What a node's process must be started with."""
        return {"REHOME_FAILPOINTS": f"@{self._file(node)}"}

    def arm(self, node: int, points: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self._file(node).with_suffix(".tmp")
        temporary.write_text(points)
        temporary.replace(self._file(node))

    def _file(self, node: int) -> Path:
        return self.folder / node_name(node)


@contextlib.contextmanager
def _asking(node: int) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise OpsError(f"the faulty disk of node {node} does not respond: {error}") from error


def private_call(host: str, port: int, node: int, op: str, timeout: float, **fields: Any) -> dict[str, Any]:
    """A node's private API. Raises `OpsError`."""
    try:
        return private_client.call(host, port, op, timeout=timeout, **fields)
    except (OSError, ValueError, private_client.PrivateCallFailed) as error:
        raise OpsError(f"node {node} does not answer {op}: {error or type(error).__name__}") from error


class LocalRoles:
    """Processes of this machine, by the dev stack."""

    by_engine = False

    def __init__(self, data: Path, say: Callable[[str], None], count: int = NODES) -> None:
        """`count`: how many nodes."""
        self._say, self._count = say, count
        self._points = FailpointFiles(data / "failpoints")
        environment = {node_name(node): self._points.environment(node) for node in range(1, count + 1)}
        self._stack = Stack(data / "stack", environment=environment)  # every restart would be told, too
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
        """The dev stack that these processes are."""
        return self._stack

    def up(self) -> None:
        temporal_server.ensure(self._say)
        self._stack.make_folder()
        for node in range(1, self._count + 1):
            self._points.arm(node, "")
        block = ports.free_block(self._count + 1, start=27000)
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
            path.write_text("\n".join([*kept, *(f"{key}={value}" for key, value in ours.items())]) + "\n")
            if not self.disks_cannot_fail:
                last = spec.log_dirs(node)[-1]
                last.rename(last.with_name(f"{last.name}.backing"))  # what was formatted goes onto the disk
                self._faulty[node] = Disk(last.parent, last.name)
        self._stack.up()

    def down(self) -> None:
        with uninterrupted():
            for name in tuple(self._frozen):
                self.thaw(name)
            for node in tuple(self._faulty):
                with contextlib.suppress(OpsError):  # a node cannot end while its disk hangs
                    self.mend_disk(node)
            while self._stack.down():  # a node that was just being started counts too
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
        raise OpsError(f"the network of {name} cannot be cut: it is a process of this machine")

    def mend(self, name: str) -> None:
        raise OpsError(f"the network of {name} was not cut")

    def squeeze(self, name: str, size: int) -> None:
        raise OpsError(f"the memory of {name} cannot be limited: it is a process of this machine")

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
        with _asking(node):
            self._disk(node).rules(*rules)

    def disk_hits(self, node: int) -> int:
        with _asking(node):
            return self._disk(node).hits

    def mend_disk(self, node: int) -> None:
        with _asking(node):
            self._disk(node).heal()

    def _disk(self, node: int) -> Disk:
        if node not in self._faulty:
            raise OpsError(
                f"the disks of node {node} cannot be made to fail: {self.disks_cannot_fail or 'it has none yet'}"
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
    """Every role, in the order in which they are started."""
    return (TEMPORAL, CONTROLLER, *(node_name(node) for node in roles.nodes))
