"""The table of the proposals' features: shown by the tests of one run, superseded, or open."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from tests.support.record import End
from tests.support.tables import ROOT, bare, kind_of, read_features

STATES = ("shown", "superseded", "open")


def features_table(
    features: Mapping[str, tuple[str, str]], carried: Mapping[str, Iterable[str]], ends: Mapping[str, End]
) -> tuple[str, dict[str, int]]:
    """The table in Markdown, and how many features are in which state.

    A test shows its features when it passed with each of its parameters; what a run skipped, left out or did not come
    to shows nothing in that run, and one failure opens a feature again, whatever else shows it. What passes on Apache
    Kafka alone shows nothing of ours.
    """
    tests: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for nodeid, shown in carried.items():
        if kind_of(nodeid) != "apache":
            for feature in shown:
                tests[feature][bare(nodeid)].add(ends.get(nodeid, "not run"))
    count = dict.fromkeys(STATES, 0)
    lines = ["| feature | what | state |", "|---|---|---|"]
    for feature, (title, note) in features.items():
        state, text = _state(tests[feature], note)
        count[state] += 1
        lines.append(f"| {feature} | {title} | {text} |")
    return "\n".join(lines) + "\n", count


def _state(tests: Mapping[str, set[str]], note: str) -> tuple[str, str]:
    """The state of one feature, and its text.

    `tests`: how each test that carries it ended, with all its parameters. `note`: what superseded it, or what is left.
    """
    by: dict[str, list[str]] = defaultdict(list)
    for name in sorted(tests):
        by[_end(tests[name])].append(f"`{name}`")
    if not by["failed"] and by["passed"]:
        return "shown", ", ".join(by["passed"])
    reasons = {"failed": "fails", "skipped": "skipped here", "not run": "not run", "left out": "not run here"}
    why = [f"{text}: {', '.join(by[end])}" for end, text in reasons.items() if by[end]]
    if by["slow"]:
        why.append(f"slow: not run here ({', '.join(by['slow'])})")
    if note.startswith("superseded: ") and not why:
        return "superseded", note
    return "open", "; ".join([note if note.startswith("open: ") else "open", *why])


def _end(ends: set[str]) -> str:
    """How a test ended as a whole: the worst of what became of its parameters, but for those that were slow."""
    ran = ends - {"slow"}
    return next((end for end in ("failed", "skipped", "not run", "left out", "passed") if end in ran), "slow")


def features_sentence(count: Mapping[str, int]) -> str:
    """What README.md says about the features, and a run at its end."""
    return f"{count['shown']} are shown, {count['superseded']} superseded and {count['open']} open"


def expected_count() -> dict[str, int]:
    """What `make test` counts when nothing is skipped and nothing fails, by the sources of the tests."""
    carried: dict[str, list[str]] = {}
    ends: dict[str, End] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, shown, slow in carriers(path.read_text()):
            nodeid = f"{path.relative_to(ROOT)}::{name}"
            carried[nodeid], ends[nodeid] = shown, "slow" if slow else "passed"
    return features_table(read_features(), carried, ends)[1]


def carriers(source: str) -> Iterator[tuple[str, list[str], bool]]:
    """Each test of a file that carries features: its name, the features, and whether `make test` leaves it out."""
    module = ast.parse(source)
    whole = [
        mark
        for statement in module.body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark"
        for mark in (statement.value.elts if isinstance(statement.value, ast.List) else [statement.value])
    ]
    for test in module.body:
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test_"):
            marks = [*whole, *test.decorator_list]
            calls = [mark for mark in marks if isinstance(mark, ast.Call)]
            shown = [
                str(ast.literal_eval(argument))
                for call in calls
                if ast.unparse(call.func) == "pytest.mark.feature"
                for argument in call.args
            ]
            if shown:
                yield test.name, shown, any(ast.unparse(mark) == "pytest.mark.slow_conformance" for mark in marks)


if __name__ == "__main__":
    print(f"Of the {len(read_features())} features {features_sentence(expected_count())}")
