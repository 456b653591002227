"""What a run's tests carry and how they ended, also when they were spread over several processes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import pytest

from tests.support.report.tiers import LEFT_OUT

#: How a test ended in a run; "slow": left out by its marker; "left out": deselected otherwise. A test that the run
#: collected and did not come to has no end.
End = Literal["passed", "failed", "skipped", "slow", "left out"]


class Record:
    """A plugin of pytest: the arguments of some markers by node id, and each test's end."""

    def __init__(self, known: dict[str, Collection[Any]]) -> None:
        """`known`: marker -> the arguments that it may have."""
        self._known = known
        #: Marker -> node id -> its arguments; every test that was collected, also those that were deselected.
        self.carried: dict[str, dict[str, list[Any]]] = {marker: {} for marker in known}
        self.ends: dict[str, End] = {}
        self.skips: list[str] = []

    @property
    def passed(self) -> set[str]:
        return {nodeid for nodeid, end in self.ends.items() if end == "passed"}

    @property
    def failed(self) -> set[str]:
        return {nodeid for nodeid, end in self.ends.items() if end == "failed"}

    @pytest.hookimpl(tryfirst=True)  # before others leave tests out
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for marker, known in self._known.items():
                arguments = [each for mark in item.iter_markers(marker) for each in mark.args]
                unknown = [str(each) for each in arguments if each not in known]
                if unknown:
                    raise pytest.UsageError(f"{item.nodeid}: no such {marker}: {', '.join(unknown)}")
                self.carried[marker][item.nodeid] = arguments

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        for item in items:
            self.ends[item.nodeid] = "slow" if any(map(item.get_closest_marker, LEFT_OUT)) else "left out"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.ends[report.nodeid] = "failed"
        elif report.skipped:
            self.ends.setdefault(report.nodeid, "skipped")
            if isinstance(report.longrepr, tuple):
                self.skips.append(report.longrepr[2])
        elif report.when == "call":
            self.ends.setdefault(report.nodeid, "passed")

    # Spread over several processes: these collect and run the tests, and the first process receives what they have.

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["record"] = {
                "carried": self.carried,
                "deselected": {nodeid: end for nodeid, end in self.ends.items() if end in ("slow", "left out")},
            }

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        found = (getattr(node, "workeroutput", None) or {}).get("record")  # none of a process that died
        if found:
            for marker, carried in found["carried"].items():
                self.carried[marker].update(carried)
            self.ends.update(found["deselected"])
