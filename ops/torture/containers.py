"""The roles under torture, each in a container: the Docker engine injects the faults, log directories are its volumes.

A run labels all that it creates in the engine and removes it by this label. Volumes of the engine's local driver are
bind mounts of folders below the run's own, so that the checks read the disks while containers use them and afterwards.
"""

from __future__ import annotations

import contextlib
import os
import string
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import docker
import javaproperties
from docker.types import IPAMConfig, IPAMPool
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.network import Network

from ops.images import base
from ops.images.engine import engine
from ops.stack import health, layout, ports, temporal_server
from ops.stack.errors import OpsError
from ops.stack.interrupts import uninterrupted
from ops.stack.layout import CONTROLLER, NAMESPACE, TEMPORAL, WORKER, node_name
from ops.torture.box import LABEL, ROOMY, Box, Plan, engine_errors
from ops.torture.observers.witness import Witness
from ops.torture.roles import DIRS, NODES, PROPERTIES, FailpointFiles, private_call
from storage_node.directories.formatting import format_directories

KAFKA_PORT, TEMPORAL_PORT, UI_PORT = 9092, 7233, 8233
CLUSTER = "rehome"
#: The folder of a role's files inside its container.
INSIDE = Path("/var/lib/rehome")
#: The last byte of the first address, Temporal's; the engine's gateway has a lower one.
FIRST_ADDRESS = 16
READY_SECONDS = 120.0
ENGINE_SECONDS = 60

Say = Callable[[str], None]


class ContainerRoles:
    """The containers of one run, on a network of their own."""

    by_engine = True
    disks_cannot_fail = "log directories are volumes of the engine's"

    def __init__(self, data: Path, say: Say, count: int = NODES) -> None:
        """`count`: the number of nodes."""
        self._data, self._say, self._count = data, say, count
        self._run = f"rehome-{uuid4().hex[:8]}"
        self._points = FailpointFiles(data / "failpoints")
        self._boxes: dict[str, Box] = {}
        self._addresses: dict[str, str] = {}
        self._binary = ""
        self._witness: Witness | None = None
        self._cleanup = contextlib.ExitStack()

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(range(1, self._count + 1))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{self._addresses[node_name(node)]}:{KAFKA_PORT}" for node in self.nodes)

    def address(self, node: int) -> tuple[str, int]:
        return self._addresses[node_name(node)], KAFKA_PORT

    @property
    def temporal_address(self) -> str:
        return f"{self._addresses[TEMPORAL]}:{TEMPORAL_PORT}"

    @property
    def cluster(self) -> str:
        return CLUSTER

    # Start and end

    def up(self) -> None:
        """Find or start an engine, create image, network, volumes and containers, and start them. Raises `OpsError`."""
        for path in (self._data, WORKER.parent):
            if ":" in str(path):
                raise OpsError(f"{path} cannot be mounted into a container: its path has a colon; choose another")
        self._binary = temporal_server.ensure(self._say)
        self._cleanup.enter_context(engine())
        image = base.ensure(self._say)
        with engine_errors("it does not respond"):
            client = DockerClient(timeout=ENGINE_SECONDS).client
        self._cleanup.callback(client.close)
        self._cleanup.callback(self._remove_all, client)
        with engine_errors("cannot create a network"):
            network = self._network(client)
        with engine_errors("cannot create volumes"):
            plans = self._plans(client, *base.interpreter(image, WORKER.parent))
        with engine_errors("cannot subscribe to its events"):
            self._witness = Witness(DockerClient(timeout=None).client, self._run, network.name)
            self._cleanup.callback(self._witness.stop)
            self._witness.start()
        with engine_errors("cannot create the containers"):
            self._boxes = {plan.name: Box(plan, image, network, self._run) for plan in plans}
        self._cleanup.callback(self._end)
        self._say(f"starting {len(plans)} containers")
        self.start(TEMPORAL)
        with ThreadPoolExecutor(len(plans)) as pool:
            list(pool.map(self.start, [plan.name for plan in plans if plan.name != TEMPORAL]))

    def down(self) -> None:
        with uninterrupted():
            self._cleanup.close()

    def _network(self, client: Any) -> Any:
        """Create a network with a subnet that the engine found free; static addresses need an explicit subnet."""
        labels = {"labels": {LABEL: self._run}}
        trial = Network(docker_network_kw=dict(labels)).create()
        try:
            config = client.networks.get(trial.id).attrs["IPAM"]["Config"][0]
        finally:
            trial.remove()
        pool = IPAMPool(subnet=config["Subnet"], gateway=config.get("Gateway"))
        made = Network(docker_network_kw={**labels, "ipam": IPAMConfig(pool_configs=[pool])}).create()
        prefix = config["Subnet"].partition("/")[0].rpartition(".")[0]
        names = (TEMPORAL, CONTROLLER, *(node_name(node) for node in self.nodes))
        self._addresses = {name: f"{prefix}.{FIRST_ADDRESS + number}" for number, name in enumerate(names)}
        return client.networks.get(made.id)

    def _volume(self, client: Any, role: str, name: str) -> str:
        """Create a volume for one folder of a role; return its name."""
        folder = self._folder(role, name)
        folder.mkdir(parents=True, exist_ok=True)
        chosen = f"{self._run}-{role}-{name}"
        client.volumes.create(
            chosen,
            driver="local",
            driver_opts={"type": "none", "o": "bind", "device": str(folder)},
            labels={LABEL: self._run},
        )
        return chosen

    def _folder(self, role: str, name: str) -> Path:
        """Return the host folder of a role's volume."""
        return self._data / "volumes" / role / name

    def _plans(self, client: Any, program: str, settings: dict[str, str]) -> list[Plan]:
        """Create the volumes and return the parameters of each container."""
        user = f"{os.getuid()}:{os.getgid()}"
        environment = {
            "TEMPORAL_ADDRESS": self.temporal_address,
            "TEMPORAL_NAMESPACE": NAMESPACE,
            "REHOME_EXPORT_DIR": str(INSIDE / "export"),
            "HOME": "/tmp",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **settings,
        }
        seen = {mount.path: str(mount.path) for mount in base.mounts(WORKER.parent)}
        binary = Path(self._binary).resolve()
        database = INSIDE / "temporal" / "temporal.db"
        command = layout.temporal_command(str(binary), "0.0.0.0", TEMPORAL_PORT, UI_PORT, database)
        plans = [
            Plan(
                TEMPORAL,
                command,
                self._addresses[TEMPORAL],
                user,
                {"HOME": "/tmp"},
                {self._volume(client, TEMPORAL, "database"): str(database.parent)},
                {binary: str(binary)},
            ),
            Plan(
                CONTROLLER,
                (program, str(WORKER), "controller", "--cluster", CLUSTER),
                self._addresses[CONTROLLER],
                user,
                environment,
                {self._volume(client, CONTROLLER, "export"): str(INSIDE / "export")},
                seen,
            ),
        ]
        for node in self.nodes:
            name = node_name(node)
            letters = string.ascii_lowercase[:DIRS]
            volumes = {self._volume(client, name, f"disk-{each}"): str(INSIDE / f"disk-{each}") for each in letters}
            config = self._configure(node)
            plans.append(
                Plan(
                    name,
                    (program, str(WORKER), "node", "--config", str(INSIDE / "config" / config.name)),
                    self._addresses[name],
                    user,
                    {**environment, **self._points.environment(node)},
                    volumes,
                    {**seen, config.parent: str(INSIDE / "config"), self._points.folder: str(self._points.folder)},
                )
            )
        return plans

    def _configure(self, node: int) -> Path:
        """Format a node's log directories and write its server.properties; return the file's path."""
        name = node_name(node)
        format_directories([self.disk(node, directory) for directory in self.log_dirs(node)], CLUSTER, node)
        self._points.arm(node, "")
        values = {
            "node.id": str(node),
            # Bound to every address: a disconnected container, in which the node may start or run, has no address.
            "listeners": f"PLAINTEXT://0.0.0.0:{KAFKA_PORT}",
            "advertised.listeners": f"PLAINTEXT://{self._addresses[name]}:{KAFKA_PORT}",
            "log.dirs": ",".join(self.log_dirs(node)),
            "private.api.remote.enable": "true",
            **PROPERTIES,
        }
        path = self._data / "config" / name / "server.properties"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(javaproperties.dumps(values, timestamp=False))
        return path

    def _remove_all(self, client: Any) -> None:
        """Remove all containers, volumes and networks with this run's label, also those of an interrupted start."""
        ours = {"label": f"{LABEL}={self._run}"}
        for container in client.containers.list(all=True, filters=ours, ignore_removed=True):
            with contextlib.suppress(docker.errors.NotFound):
                container.remove(force=True, v=True)
        for volume in client.volumes.list(filters=ours):
            with contextlib.suppress(docker.errors.NotFound):
                volume.remove(force=True)
        for network in client.networks.list(filters=ours):
            with contextlib.suppress(docker.errors.NotFound):
                network.remove()

    def _end(self) -> None:
        """Write the containers' logs to the run's folder and remove them; `_remove_all` removes what fails here."""
        folder = self._data / "logs"
        folder.mkdir(parents=True, exist_ok=True)

        def end(box: Box) -> None:
            with contextlib.suppress(OpsError):
                (folder / f"{box.plan.name}.log").write_bytes(box.log())
            with contextlib.suppress(OpsError):
                box.remove()

        with ThreadPoolExecutor(len(self._boxes)) as pool:
            list(pool.map(end, self._boxes.values()))

    # Faults

    def kill(self, name: str) -> bool:
        return self._box(name).kill()

    def stop(self, name: str) -> bool:
        return self._box(name).end()

    def start(self, name: str) -> None:
        box = self._box(name)
        if box.alive():
            return
        box.start()
        until = time.monotonic() + READY_SECONDS
        pause = 0.05
        while not self._ready(name):
            if not box.alive():
                raise OpsError(f"{name} exited during its start; {box.last_words()}")
            if time.monotonic() > until:
                raise OpsError(
                    f"{name} was not ready at {self._addresses[name]} within {READY_SECONDS:.0f} s; {box.last_words()} "
                    "(this machine must reach the engine's networks, which an engine in a virtual machine does not "
                    "expose)"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    def freeze(self, name: str) -> None:
        self._box(name).pause()

    def thaw(self, name: str) -> None:
        self._box(name).unpause()

    def cut(self, name: str) -> None:
        self._box(name).disconnect()

    def mend(self, name: str) -> None:
        self._box(name).connect()

    def squeeze(self, name: str, size: int) -> None:
        box = self._box(name)
        box.kill()
        box.limit(size)
        box.start()

    def starved(self, name: str) -> bool:
        return self._box(name).died_of_memory()

    def loosen(self, name: str) -> None:
        self._box(name).limit(ROOMY)

    def alive(self, name: str) -> bool:
        return self._box(name).alive()

    def witnessed(self) -> dict[str, int]:
        return self._witness.counts if self._witness is not None else {}

    def _ready(self, name: str) -> bool:
        host = self._addresses[name]
        if name == TEMPORAL:
            return ports.accepts(TEMPORAL_PORT, host) and health.temporal_works(self.temporal_address, self._binary)
        if name == CONTROLLER:
            return health.controller_works(self.temporal_address, CLUSTER, self._binary)
        return ports.accepts(KAFKA_PORT, host) and health.registered(KAFKA_PORT, host)

    def _box(self, name: str) -> Box:
        try:
            return self._boxes[name]
        except KeyError:
            raise OpsError(f"the container of {name} does not exist") from None

    # Disks and requests

    def log_dirs(self, node: int) -> tuple[str, ...]:
        return tuple(str(INSIDE / f"disk-{letter}") for letter in string.ascii_lowercase[:DIRS])

    def disk(self, node: int, directory: str) -> Path:
        return self._folder(node_name(node), Path(directory).name)

    def fail_disk(self, node: int, *rules: Mapping[str, Any]) -> None:
        raise OpsError(f"the disks of node {node} cannot be made to fail: {self.disks_cannot_fail}")

    def disk_hits(self, node: int) -> int:
        raise OpsError(f"the disks of node {node} were not made to fail")

    def mend_disk(self, node: int) -> None:
        """Do nothing: `fail_disk` is not supported."""

    def call(self, node: int, op: str, timeout: float = 3.0, **fields: Any) -> dict[str, Any]:
        return private_call(*self.address(node), node, op, timeout, **fields)

    def arm(self, node: int, points: str) -> None:
        self._points.arm(node, points)
