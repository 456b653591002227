"""The table of the proposals' features: shown by the tests of one run, superseded, or open."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tests.support.report.record import End
from tests.support.report.tables import bare, kind_of

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
