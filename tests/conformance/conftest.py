"""The clusters and Kafka's tools for the conformance tests; both start with the first test that asks for them."""

from __future__ import annotations

import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ops.kafka.jars import OLDER_VERSION, VERSION
from ops.kafka.tools import Ran, WarmTools, run, start
from ops.stack.errors import OpsError
from tests.conformance.clusters import KINDS, OLDER, REHOME, Apache, Cluster, Rehome
from tests.support.needs import need
from tests.support.programs.kafka import require_kafka

HERE = Path(__file__).parent


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cluster" in metafunc.fixturenames:
        kinds = [kind.strip() for kind in metafunc.config.getoption("--kinds").split(",")]
        known = (*KINDS, OLDER)
        unknown = [kind for kind in kinds if kind not in known]
        if unknown:
            raise pytest.UsageError(f"--kinds: {unknown[0]} is none of {', '.join(known)}")
        plans = metafunc.definition.path.is_relative_to(HERE / "plan_runs")
        kinds = [kind for kind in kinds if kind != OLDER or plans]
        metafunc.parametrize("cluster", kinds, indirect=True, scope="session")


#: What runs for this folder, and ends with its last test: tests that measure come after it.
_started: list[Callable[[], None]] = []


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or not nextitem.path.is_relative_to(HERE):
        while _started:
            _started.pop()()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the three nodes (and a Temporal server with them), or Kafka's tools, by its fixtures."""
    for item in items:
        if item.path.is_relative_to(HERE):
            fixtures = getattr(item, "fixturenames", ())
            if "cluster" in fixtures:
                item.add_marker(pytest.mark.temporal)
            if "warm_tools" in fixtures:
                item.add_marker(pytest.mark.kafka)


@pytest.fixture(scope="session")
def warm_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmTools]:
    """The virtual machine for Kafka's tools."""
    require_kafka()
    with WarmTools(tmp_path_factory.mktemp("tools")) as made:
        _started.append(made.close)
        yield made


@pytest.fixture(scope="session", autouse=True)
def _terminated_in_order() -> Iterator[None]:
    """SIGTERM ends the session as Ctrl-C does, so that no process of a cluster is left behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes of one kind; all tests share them, each with topics of its own."""
    kind = request.param
    folder = tmp_path_factory.mktemp(kind)
    if kind != REHOME:
        require_kafka(OLDER_VERSION if kind == OLDER else VERSION)
        made: Cluster = Apache(folder, request.getfixturevalue("warm_tools").run, kind)
    else:
        try:
            made = Rehome(folder)
        except OpsError as problem:
            need("a stack", str(problem))
    try:
        _started.append(made.down)
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(autouse=True)
def _connections(request: pytest.FixtureRequest) -> Iterator[None]:
    """Connections that a test made end with it."""
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").close_connections()


class Tools:
    """Kafka's command-line tools against one cluster."""

    def __init__(self, warm: WarmTools, bootstrap: str) -> None:
        self._warm = warm
        self.bootstrap = bootstrap

    def run(self, tool: str, *arguments: str, stdin: str = "", timeout: float = 60, own_process: bool = False) -> Ran:
        """Exit code, standard output and standard error; `--bootstrap-server` is added where it is missing."""
        runner = run if own_process else self._warm.run
        return runner(tool, *arguments, bootstrap=self.bootstrap, stdin=stdin, timeout=timeout)

    def out(self, tool: str, *arguments: str, stdin: str = "", timeout: float = 60) -> str:
        """The standard output of a tool that must succeed."""
        code, out, err = self.run(tool, *arguments, stdin=stdin, timeout=timeout)
        assert code == 0, f"{tool} {' '.join(arguments)}: exit {code}\n{out}\n{err}"
        return out

    def start(self, tool: str, *arguments: str) -> subprocess.Popen[str]:
        """A process of its own for a tool that runs on; the test ends it."""
        return start(tool, *arguments, bootstrap=self.bootstrap)


@pytest.fixture(scope="session")
def tools(warm_tools: WarmTools, cluster: Cluster) -> Tools:
    """Kafka's tools, told where the cluster is."""
    return Tools(warm_tools, cluster.bootstrap)


@pytest.fixture
def group() -> str:
    """A name that no group has yet."""
    return f"g{uuid.uuid4().hex[:10]}"


@pytest.fixture
def plans(tmp_path: Path, tools: Tools) -> Any:
    """kafka-reassign-partitions with files of its own."""
    from tests.conformance.plans import Plans  # which imports what is here

    return Plans(tmp_path, tools)
