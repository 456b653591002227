"""The two tables that the tests fill: the proposals' features (tests/features.tsv) and the conformance cases.

What a test shows stands beside it, as `@pytest.mark.feature("113-02")` or `@pytest.mark.conformance(12, 17)`. A run
writes what passed to build/ (see tests/conftest.py); `python -m tests.support.report.tables` and `python -m
tests.support.report.features` print, without a run, what the tests claim to show, in the sentences that ops/docs has.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FEATURES = ROOT / "tests" / "features.tsv"
CASES = ROOT / "tests" / "conformance" / "cases.tsv"
#: What the conformance tests of all runs so far ended with, by node id.
OUTCOMES = ROOT / "build" / "conformance.json"
#: The state of a case whose tests pass on what our nodes do instead of what Apache Kafka does.
DIFFERS = "passed, differs on purpose"


@dataclass(frozen=True, slots=True)
class Case:
    """A conformance case: what it asks for; where it cannot apply to us why, and which test shows the same outcome;
    where our nodes differ from its outcome on purpose, the id of the row in differences.tsv that its tests hold.
    """

    title: str
    not_applicable: str = ""
    instead: str = ""
    differs: str = ""


def read_features() -> dict[str, tuple[str, str]]:
    """Feature id -> (title, note): what superseded it ("superseded: ..."), what is left of it ("open: ...") or ""."""
    rows = (line.split("\t") for line in FEATURES.read_text().splitlines() if line)
    return {row[0]: (row[1], row[2] if len(row) > 2 else "") for row in rows}


def read_cases() -> dict[int, Case]:
    """Case number -> the case; columns: number, title, why it is not applicable, the test of the same outcome, what
    differs on purpose.
    """
    rows = (line.split("\t") for line in CASES.read_text().splitlines() if line)
    return {int(row[0]): Case(*row[1:5]) for row in rows}


def marks(name: str) -> set[str]:
    """Everything that the sources of the tests carry as arguments of this marker."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for arguments in re.findall(rf"mark\.{name}\(([^)]*)\)", path.read_text()):
            found |= {argument.strip(" \"'\n") for argument in arguments.split(",")}
    return found - {""}


def conformance_sentence() -> str:
    """What ops/docs/differences.md says about the conformance cases, by what the tests carry."""
    cases, carried = read_cases(), {int(n) for n in marks("conformance")}
    shown = carried & cases.keys()
    differ = sum(1 for number in shown if cases[number].differs)
    out = sum(1 for number, case in cases.items() if case.not_applicable and number not in carried)
    left = len(cases) - len(shown) - out
    return (
        f"Of the {len(cases)} cases {len(shown)} have a test, {out} are not applicable and {left} are open; in {differ}"
        " of those with a test our nodes differ on purpose, and the test holds what they do instead"
    )


class Outcomes:
    """How each conformance test ended when it last ran: `make test` and `make conformance` run different ones."""

    def __init__(self, path: Path = OUTCOMES) -> None:
        self.path = path
        self._rows: dict[str, dict[str, object]] = json.loads(path.read_text()) if path.exists() else {}

    def merge(self, carried: dict[str, list[int]], passed: set[str], failed: set[str], *, whole_files: bool) -> None:
        """Take in a run: the cases that each collected test carries, and how those that ran ended.

        What a run did not try keeps its last outcome. Tests that are gone are forgotten: their file is not there any
        more, or (the files collected as a whole) has no test of this name, with these parameters, that has a case. A
        run of one kind of cluster says nothing of the other's.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        files = {nodeid.split("::")[0] for nodeid in carried} if whole_files else set()
        kinds = {"", *map(kind_of, carried)}
        for nodeid in list(self._rows):
            file = nodeid.split("::")[0]
            gone = file in files and not carried.get(nodeid) and kind_of(nodeid) in kinds
            if gone or not (ROOT / file).exists():
                del self._rows[nodeid]
        for nodeid in passed | failed:
            if cases := carried.get(nodeid):
                self._rows[nodeid] = {"cases": cases, "passed": nodeid not in failed, "at": now}
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(json.dumps(self._rows, indent=1, sort_keys=True))

    def shown(self) -> tuple[dict[int, set[str]], dict[int, set[str]]]:
        """Case number -> names of the tests that show it, and of those that carry it and failed.

        What passes on Apache Kafka alone shows nothing of ours.
        """
        passed: dict[int, set[str]] = defaultdict(set)
        failed: dict[int, set[str]] = defaultdict(set)
        for nodeid, row in self._rows.items():
            ours = kind_of(nodeid) != "apache"
            for number in row["cases"] if isinstance(row["cases"], list) else ():
                if not row["passed"]:
                    failed[number].add(bare(nodeid))
                elif ours:
                    passed[number].add(bare(nodeid))
        return passed, failed

    def table(self, cases: dict[int, Case]) -> tuple[str, dict[str, int]]:
        """The table in Markdown, and how many cases are in which state."""
        passed, failed = self.shown()
        count = {"passed": 0, DIFFERS: 0, "not applicable": 0, "open": 0}
        lines = ["| case | what | state |", "|---|---|---|"]
        for number, case in cases.items():
            if number in failed:
                state, text = "open", f"fails: {_named(failed[number])}"
            elif number in passed and case.differs:
                state, text = DIFFERS, f"{DIFFERS}: `{case.differs}`; by {_named(passed[number])}"
            elif number in passed:
                state, text = "passed", f"passed by {_named(passed[number])}"
            elif case.not_applicable:
                outcome = f"; the same outcome: `{case.instead}`" if case.instead else ""
                state, text = "not applicable", f"not applicable because {case.not_applicable}{outcome}"
            else:
                state = text = "open"
            count[state] += 1
            lines.append(f"| {number} | {case.title} | {text} |")
        return "\n".join(lines) + "\n", count


def bare(nodeid: str) -> str:
    """A test's name without its parameters."""
    return nodeid.split("[")[0]


def kind_of(nodeid: str) -> str:
    """The kind of cluster among a test's parameters, "" without one."""
    given = re.split(r"[\[\]-]", nodeid.partition("[")[2])
    return next((kind for kind in ("rehome", "apache") if kind in given), "")


def _named(tests: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(tests))


if __name__ == "__main__":
    print(conformance_sentence())
