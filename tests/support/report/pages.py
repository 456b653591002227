"""Write the pages of the tests' tables: `python -m tests.support.report.pages`.

`ops/docs/features.md`, `conformance.md` and `known-bugs.md` show the rows of the tables with the tests that carry them,
by the marks in the sources: no test is run for them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.support.report.tables import ROOT, conformance_sentence, read_cases, read_features

DOCS = ROOT / "ops" / "docs"
BUGS = ROOT / "tests" / "storage_node" / "move" / "known_bugs.tsv"

_WRITTEN = "The page is written from `{table}` by `make docs`, without a run of the tests."
_FEATURES = """# The features of the proposals

Each feature of KIP-113, KIP-455, KIP-858 and KIP-18 with the tests that show it, or what superseded it, or what is
left of it. `make test-all` writes which of these tests passed to build/features.md.
{written}
"""
_CONFORMANCE = """# The conformance cases

Each case of Apache Kafka's behaviour in this field with the tests that show it on our nodes and on Apache Kafka. A case
that differs on purpose names its row of `tests/conformance/differences.tsv` ([differences](differences.md)).
`make conformance` writes which of these tests passed to build/conformance.md.
{written}

{sentence}.
"""
_BUGS = """# The known bugs of Apache Kafka in this field

Issues of Apache Kafka (KAFKA-), pull requests without one (PR-), issues of other tools, and weaknesses without a number
(4.3-), each with what happens here and the tests that show it.
{written}
"""


@cache
def carriers(name: str) -> dict[str, list[str]]:
    """Return the tests that carry each argument of this marker: a function, or the file where the mark is elsewhere."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if f"mark.{name}(" in text:
            for argument, test in _marks(ast.parse(text), name):
                found[argument].add(f"{path.relative_to(ROOT)}{test}")
    return {argument: sorted(tests) for argument, tests in found.items()}


def _marks(tree: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    for top in tree.body:
        test = f"::{top.name}" if isinstance(top, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else ""
        for node in ast.walk(top):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(f"mark.{name}"):
                for argument in node.args:
                    if isinstance(argument, ast.Constant):
                        yield str(argument.value), test


def features() -> str:
    """Return the page of the features."""
    shown = carriers("feature")
    lines = [_FEATURES.format(written=_written("tests/features.tsv")), "| feature | what | state |", "|---|---|---|"]
    for feature, (title, note) in read_features().items():
        lines.append(f"| {feature} | {_cell(title)} | {_state(note, shown.get(feature, ()))} |")
    return "\n".join(lines) + "\n"


def conformance() -> str:
    """Return the page of the conformance cases."""
    shown = carriers("conformance")
    head = _CONFORMANCE.format(written=_written("tests/conformance/cases.tsv"), sentence=conformance_sentence())
    lines = [head, "| case | what | state |", "|---|---|---|"]
    for number, case in read_cases().items():
        tests = shown.get(str(number), ())
        note = f"differs on purpose: `{case.differs}`" if case.differs else ""
        if case.not_applicable and not tests:
            note, tests = f"not applicable: {case.not_applicable}", (case.instead,) if case.instead else ()
        lines.append(f"| {number} | {_cell(case.title)} | {_state(note, tests)} |")
    return "\n".join(lines) + "\n"


def known_bugs() -> str:
    """Return the page of the known bugs."""
    rows = [line.split("\t") for line in BUGS.read_text().splitlines()[1:]]
    head = _BUGS.format(written=_written("tests/storage_node/move/known_bugs.tsv"))
    lines = [head, "| bug | in Apache Kafka | here | shown by |", "|---|---|---|---|"]
    lines += [f"| {one} | {_cell(there)} | {_cell(here)} | {_named(by.split(' '))} |" for one, there, here, by in rows]
    return "\n".join(lines) + "\n"


#: The pages by their names.
PAGES: Mapping[str, Callable[[], str]] = {
    "features.md": features,
    "conformance.md": conformance,
    "known-bugs.md": known_bugs,
}


def _written(table: str) -> str:
    return _WRITTEN.format(table=table)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _named(tests: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in tests)


def _state(note: str, tests: Iterable[str]) -> str:
    return "; ".join(filter(None, [_cell(note), _named(tests)])) or "open"


def write(folder: Path = DOCS) -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (folder / name).write_text(page())


if __name__ == "__main__":
    write()
