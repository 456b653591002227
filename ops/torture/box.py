"""A role's container, by testcontainers: start, restart, kill, pause, limit its memory, disconnect its network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker.errors
import requests.exceptions
from docker.types import EndpointConfig
from docker.version import __version__ as CLIENT_VERSION
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from ops.stack.errors import OpsError

# testcontainers' reaper needs an image of its own, which is not available on every machine; the run removes its
# containers, volumes and networks by their label instead.
testcontainers_config.ryuk_disabled = True

#: The label of a run's containers, volumes and networks in the Docker engine; its value is the run's name.
LABEL = "rehome.torture"
#: A container's memory limit (bytes) while no fault lowers it: the engine can change a limit but not remove it.
ROOMY = 2 << 30
#: Seconds within which a killed container must have stopped.
GONE_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """A container's parameters. `volumes` maps the engine's volume names, `folders` host folders (mounted read-only),
    to paths inside the container.
    """

    name: str
    command: Sequence[str]
    address: str
    user: str
    environment: Mapping[str, str]
    volumes: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[Path, str] = field(default_factory=dict)


@contextlib.contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Raise an error or a timeout of the Docker engine as `OpsError`."""
    try:
        yield
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        reason = getattr(error, "explanation", None) or str(error) or type(error).__name__
        raise OpsError(f"the Docker engine: {what}: {str(reason).strip()}") from error


class Box:
    """A container that keeps its address, volumes and log across restarts. Raises `OpsError`."""

    def __init__(self, plan: Plan, image: str, network: Any, run: str) -> None:
        """`network` is the engine's network as docker-py has it."""
        self.plan = plan
        self._network = network
        made = DockerContainer(image).with_name(f"{run}-{plan.name}").with_command(list(plan.command))
        for volume, path in plan.volumes.items():
            made.with_volume_mapping(volume, path, "rw")
        for folder, path in plan.folders.items():
            made.with_volume_mapping(folder, path, "ro")
        self._made = made.with_envs(**plan.environment).with_kwargs(
            # Without the engine's init the role is process 1, which cannot send itself SIGKILL at a failpoint.
            init=True,
            user=plan.user,
            hostname=plan.name,
            labels={LABEL: run},
            network=network.name,
            networking_config={network.name: EndpointConfig(CLIENT_VERSION, ipv4_address=plan.address)},
            mem_limit=ROOMY,
            memswap_limit=ROOMY,
        )
        self._container: Any = None

    def start(self) -> None:
        """Create the container if necessary and start it; do nothing if it is running."""
        with engine_errors(f"cannot start {self.plan.name}"):
            if self._container is None:
                self._made.start()
                self._container = self._made.get_wrapped_container()
            elif not self.alive():
                self._container.start()

    def alive(self) -> bool:
        """Return whether the container is running, also while it is paused."""
        return bool(self._state().get("Running"))

    def kill(self) -> bool:
        """Kill the container with SIGKILL and wait until it has stopped; return False if it was not running."""
        if not self.alive():
            return False
        with engine_errors(f"cannot kill {self.plan.name}"):
            try:
                self._container.kill("SIGKILL")
            except docker.errors.APIError:
                if self.alive():  # otherwise it exited by itself just before
                    raise
                return False
            self._container.wait(timeout=GONE_SECONDS)
        return True

    def end(self) -> bool:
        """Send SIGTERM, then SIGKILL after `GONE_SECONDS`; return False if it was not running."""
        if not self.alive():
            return False
        with engine_errors(f"cannot stop {self.plan.name}"):
            self._container.stop(timeout=GONE_SECONDS)
        return True

    def pause(self) -> None:
        """Freeze the container; do nothing if it is not running or is paused already."""
        if self.alive() and not self._state().get("Paused"):
            with engine_errors(f"cannot pause {self.plan.name}"):
                self._container.pause()

    def unpause(self) -> None:
        if self._state().get("Paused"):
            with engine_errors(f"cannot unpause {self.plan.name}"):
                self._container.unpause()

    def disconnect(self) -> None:
        """Disconnect the container from the network; do nothing if it is disconnected."""
        if self._connected():
            with engine_errors(f"cannot disconnect {self.plan.name} from the network"):
                self._network.disconnect(self._container)

    def connect(self) -> None:
        """Reconnect the container with its address; do nothing if it is connected."""
        if self._container is not None and not self._connected():
            with engine_errors(f"cannot connect {self.plan.name}"):
                self._network.connect(self._container, ipv4_address=self.plan.address)

    def limit(self, size: int) -> None:
        """Set the memory limit to `size` bytes, page cache included, without swap."""
        with engine_errors(f"cannot limit the memory of {self.plan.name}"):
            self._container.update(mem_limit=size, memswap_limit=size)

    def died_of_memory(self) -> bool:
        """Return whether the kernel's OOM killer killed a process of it since its last start."""
        return bool(self._state().get("OOMKilled"))

    def log(self) -> bytes:
        """Return the whole log, of all its starts."""
        if self._container is None:
            return b""
        with engine_errors(f"cannot read the log of {self.plan.name}"):
            return bytes(self._container.logs())

    def remove(self) -> None:
        """Remove the container, running or not, and close its engine client."""
        with engine_errors(f"cannot remove {self.plan.name}"):
            self._made.stop()

    def last_words(self) -> str:
        """Return a clause with the last line of its log."""
        lines = self.log().decode(errors="replace").strip().splitlines()
        return f"its last log line: {lines[-1].strip()}" if lines else "its log is empty"

    def _connected(self) -> bool:
        if self._container is None:
            return False
        return self._network.name in self._inspect()["NetworkSettings"]["Networks"]

    def _state(self) -> dict[str, Any]:
        return dict(self._inspect()["State"]) if self._container is not None else {}

    def _inspect(self) -> dict[str, Any]:
        with engine_errors(f"cannot inspect {self.plan.name}"):
            return dict(self._container.client.api.inspect_container(self._container.id))
