"""One container of a torture, by testcontainers: started and started again, killed, paused, squeezed, cut off."""

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

# Its reaper is an image of its own, which cannot be had everywhere; what is made here carries a label by which it is
# removed again.
testcontainers_config.ryuk_disabled = True

#: What marks everything of a run in the engine; the value is the run's name.
LABEL = "rehome.torture"
#: Bytes of memory that a container has as long as nothing squeezes it: the engine lifts no limit, it only moves it.
ROOMY = 2 << 30
#: Seconds that a killed container gets to be gone.
GONE_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What a container is. `volumes` maps names of the engine's volumes, `folders` folders of the host (read-only),
    to paths inside.
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
    """What the engine refuses, or does not answer to, becomes `OpsError`."""
    try:
        yield
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        told = getattr(error, "explanation", None) or str(error) or type(error).__name__
        raise OpsError(f"the Docker engine: {what}: {str(told).strip()}") from error


class Box:
    """A container that keeps its address, its volumes and its log over every restart. Raises `OpsError`."""

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
            # Without an init of the engine's the role would be process 1, which cannot even kill itself.
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
        """Make it the first time, start it; nothing if it runs."""
        with engine_errors(f"cannot start {self.plan.name}"):
            if self._container is None:
                self._made.start()
                self._container = self._made.get_wrapped_container()
            elif not self.alive():
                self._container.start()

    def alive(self) -> bool:
        """Whether it runs, paused or not."""
        return bool(self._state().get("Running"))

    def kill(self) -> bool:
        """SIGKILL to all in it, and wait until it is gone; False if it did not run."""
        if not self.alive():
            return False
        with engine_errors(f"cannot kill {self.plan.name}"):
            try:
                self._container.kill("SIGKILL")
            except docker.errors.APIError:
                if self.alive():  # else it ended by itself just then
                    raise
                return False
            self._container.wait(timeout=GONE_SECONDS)
        return True

    def end(self) -> bool:
        """SIGTERM, and SIGKILL if that does not help; False if it did not run."""
        if not self.alive():
            return False
        with engine_errors(f"cannot stop {self.plan.name}"):
            self._container.stop(timeout=GONE_SECONDS)
        return True

    def pause(self) -> None:
        """Freeze it; nothing if it does not run or is paused already."""
        if self.alive() and not self._state().get("Paused"):
            with engine_errors(f"cannot pause {self.plan.name}"):
                self._container.pause()

    def unpause(self) -> None:
        if self._state().get("Paused"):
            with engine_errors(f"cannot unpause {self.plan.name}"):
                self._container.unpause()

    def disconnect(self) -> None:
        """Take its network away; nothing if it has none."""
        if self._connected():
            with engine_errors(f"cannot cut {self.plan.name} off"):
                self._network.disconnect(self._container)

    def connect(self) -> None:
        """Give it back its network, with the address it had; nothing if it has it."""
        if self._container is not None and not self._connected():
            with engine_errors(f"cannot connect {self.plan.name}"):
                self._network.connect(self._container, ipv4_address=self.plan.address)

    def limit(self, size: int) -> None:
        """Its memory, page cache included and without swap, from now on (bytes)."""
        with engine_errors(f"cannot limit the memory of {self.plan.name}"):
            self._container.update(mem_limit=size, memswap_limit=size)

    def died_of_memory(self) -> bool:
        """Whether the kernel's memory killer struck in it since its last start."""
        return bool(self._state().get("OOMKilled"))

    def log(self) -> bytes:
        """All it ever said."""
        if self._container is None:
            return b""
        with engine_errors(f"cannot read the log of {self.plan.name}"):
            return bytes(self._container.logs())

    def remove(self) -> None:
        """Remove the container, running or not, and let go of the engine."""
        with engine_errors(f"cannot remove {self.plan.name}"):
            self._made.stop()

    def last_words(self) -> str:
        """The last line it said, for a sentence."""
        lines = self.log().decode(errors="replace").strip().splitlines()
        return f"it last said: {lines[-1].strip()}" if lines else "it said nothing"

    def _connected(self) -> bool:
        if self._container is None:
            return False
        return self._network.name in self._inspect()["NetworkSettings"]["Networks"]

    def _state(self) -> dict[str, Any]:
        return dict(self._inspect()["State"]) if self._container is not None else {}

    def _inspect(self) -> dict[str, Any]:
        with engine_errors(f"cannot look at {self.plan.name}"):
            return dict(self._container.client.api.inspect_container(self._container.id))
