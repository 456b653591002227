"""Markers, the tables of what the tests show, and what the large sets counted.

A whole run writes build/features.md: each feature of the proposals by its id, shown (by which tests), superseded (by
what) or open (with the tests that failed, were skipped, or are slow and left out). A run of all tests, or of
tests/conformance alone, writes build/conformance.md: each conformance case by its number, passed (by which tests, and
what differs on purpose), not applicable (why) or open. What the other of these runs found last is kept in build/ and
stands in the table too.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings

from tests.support import needs, scale
from tests.support.programs.spark import forget_tables, spark, spark_kafka
from tests.support.report import hung
from tests.support.report.features import features_table
from tests.support.report.groups import Groups
from tests.support.report.imports import Imports
from tests.support.report.record import Record
from tests.support.report.tables import ROOT, Outcomes, read_cases, read_features
from tests.support.report.tiers import Tiers, read_tiers

__all__ = ["forget_tables", "spark", "spark_kafka"]  # fixtures for all tests

CONFORMANCE = ROOT / "build" / "conformance.md"
STACKS = ROOT / "build" / "stacks.txt"

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

_record = Record({"feature": read_features(), "conformance": read_cases()})


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    """What a command in this process sets up logs to the test's standard error, which is closed after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for added in set(root.handlers) - set(handlers):
        root.removeHandler(added)
    root.setLevel(level)


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs in its background with SIGINT ignored, and children inherit that: those to which a test
    # sends Ctrl-C must receive it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(ImportError):
        from xdist.workermanage import NodeManager

        NodeManager.EXIT_TIMEOUT = 60  # seconds to stop what its fixtures started, after Ctrl-C as well
    config.pluginmanager.register(_record, "record")
    config.pluginmanager.register(Groups(), "groups")
    config.pluginmanager.register(Imports(), "imports")
    config.pluginmanager.register(Tiers(read_tiers()), "tiers")
    config.pluginmanager.register(hung.Hung(STACKS), "hung")


def pytest_addoption(parser: pytest.Parser) -> None:
    kinds = "kinds of cluster for tests/conformance: rehome, apache, or both with a comma between"
    parser.addoption("--kinds", default="rehome", help=kinds)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes give no test its name: they carry times, and all processes must name the same tests alike."""
    return argname if isinstance(val, bytes) and len(val) > 16 else None


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        scale.TALLIES.unlink(missing_ok=True)
        STACKS.unlink(missing_ok=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for what, number, seconds in scale.read_tallies():
        took = f" ({seconds:.0f} s)" if seconds >= 0.5 else ""
        terminalreporter.write_line(f"{number:>9,} {what}{took}")
    if lacking := needs.lacks(_record.skips):
        terminalreporter.write_line(lacking)
    if STACKS.exists() and (stacks := STACKS.read_text()):
        terminalreporter.write_line(f"what hung, and what each of its threads did (build/stacks.txt):\n{stacks}")
    if not (_record.passed or _record.failed):
        return
    if config.args == ["tests"] and not config.option.keyword:  # only a whole run says what is open
        _write_features(terminalreporter)
    folders = [argument.rstrip("/") for argument in config.args]
    _write_conformance(terminalreporter if folders in (["tests"], ["tests/conformance"]) else None, config)


def _write_features(terminalreporter: pytest.TerminalReporter) -> None:
    features = read_features()
    table, count = features_table(features, _record.carried["feature"], _record.ends)
    target = ROOT / "build" / "features.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(table)
    states = ", ".join(f"{number} {state}" for state, number in count.items())
    terminalreporter.write_line(f"features by the tests of this run: {states} (build/features.md)")


def _write_conformance(terminalreporter: pytest.TerminalReporter | None, config: pytest.Config) -> None:
    """Keep what this run found; said aloud only by a run that is one of the two."""
    outcomes = Outcomes()
    outcomes.merge(
        _record.carried["conformance"],
        _record.passed,
        _record.failed,
        whole_files=not any("::" in argument for argument in config.args),
    )
    table, count = outcomes.table(read_cases())
    CONFORMANCE.write_text(table)
    if terminalreporter is not None:
        total = "; ".join(f"{n} {state}" for state, n in count.items())
        terminalreporter.write_line(f"conformance: {total} (build/conformance.md)")
