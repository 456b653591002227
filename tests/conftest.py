"""Markers, the tables of what the tests show, and what the large sets counted.

A whole run writes build/features.md: each feature of the proposals by its id, shown (by which tests), superseded (by
what) or open. A run of all tests, or of tests/conformance alone, writes build/conformance.md: each conformance case by
its number, passed (by which tests, and what differs on purpose), not applicable (why) or open. What the other of these
runs found last is kept in build/ and stands in the table too.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import scale
from tests.support.spark import spark, spark_kafka
from tests.support.tables import ROOT, Outcomes, read_cases, read_features

if TYPE_CHECKING:
    from tests.support.parallel import Spread

__all__ = ["spark", "spark_kafka"]  # fixtures for all tests

CONFORMANCE = ROOT / "build" / "conformance.md"

# Properties are about what comes out. How long one example took says how busy the machine was: 200 ms, which is what
# Hypothesis allows by itself, is less than a pause of the machine. What a run draws is what the next one draws; other
# examples are looked for by the full sets.
settings.register_profile(
    "rehome",
    settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not scale.FULL,
    database=None,
)
settings.load_profile("rehome")

_features: dict[str, list[str]] = {}
_cases: dict[str, list[int]] = {}
_passed: set[str] = set()
_failed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    kinds = "kinds of cluster for tests/conformance: rehome, apache, or both with a comma between"
    parser.addoption("--kinds", default="rehome", help=kinds)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes give no test its name: they carry times, and all processes must name the same tests alike."""
    return argname if isinstance(val, bytes) and len(val) > 16 else None


@pytest.hookimpl(tryfirst=True)  # before others leave tests out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    features, cases = read_features(), read_cases()
    for item in items:
        shown = [str(i) for mark in item.iter_markers("feature") for i in mark.args]
        numbers = [i for mark in item.iter_markers("conformance") for i in mark.args]
        unknown = [str(i) for i in shown if i not in features]
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: no such feature: {', '.join(unknown)}")
        unknown = [str(i) for i in numbers if i not in cases]
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: no such conformance case: {', '.join(unknown)}")
        _features[item.nodeid], _cases[item.nodeid] = shown, numbers


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)
    elif report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        scale.TALLIES.unlink(missing_ok=True)


# Spread over several processes: these collect and run the tests, and the one that was started hears of it.


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Spread:
    from xdist.workermanage import NodeManager

    from tests.support.parallel import Spread

    NodeManager.EXIT_TIMEOUT = 60  # seconds to take down what runs, after Ctrl-C as well
    return Spread(config, log)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput.update(features=_features, cases=_cases)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", None) or {}  # none of a process that died
    _features.update(output.get("features", {}))
    _cases.update(output.get("cases", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for what, number, seconds in scale.read_tallies():
        took = f" ({seconds:.0f} s)" if seconds >= 0.5 else ""
        terminalreporter.write_line(f"{number:>9,} {what}{took}")
    if not (_passed or _failed):
        return
    if config.args == ["tests"]:  # only a whole run says what is open
        _write_features(terminalreporter)
    folders = [argument.rstrip("/") for argument in config.args]
    _write_conformance(terminalreporter if folders in (["tests"], ["tests/conformance"]) else None, config)


def _write_features(terminalreporter: pytest.TerminalReporter) -> None:
    shown: dict[str, set[str]] = defaultdict(set)
    for nodeid in _passed - _failed:
        for feature in _features.get(nodeid, ()):
            shown[feature].add(nodeid.split("[")[0])
    lines = ["| feature | what | state |", "|---|---|---|"]
    count = {"shown": 0, "superseded": 0, "open": 0}
    for feature, (title, superseded) in read_features().items():
        state = "shown" if feature in shown else "superseded" if superseded else "open"
        count[state] += 1
        by = ", ".join(f"`{n}`" for n in sorted(shown[feature])) if state == "shown" else superseded or "open"
        lines.append(f"| {feature} | {title} | {by} |")
    target = ROOT / "build" / "features.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(lines) + "\n")
    total = ", ".join(f"{n} {state}" for state, n in count.items())
    terminalreporter.write_line(f"features of the proposals: {total} (build/features.md)")


def _write_conformance(terminalreporter: pytest.TerminalReporter | None, config: pytest.Config) -> None:
    """Keep what this run found; said aloud only by a run that is one of the two."""
    outcomes = Outcomes()
    outcomes.merge(_cases, _passed, _failed, whole_files=not any("::" in argument for argument in config.args))
    table, count = outcomes.table(read_cases())
    CONFORMANCE.write_text(table)
    if terminalreporter is not None:
        total = "; ".join(f"{n} {state}" for state, n in count.items())
        terminalreporter.write_line(f"conformance: {total} (build/conformance.md)")
