"""Find what makes a test depend on the machine's speed: long sleeps, and asserts that something was fast.

A line that needs one gives the reason in a comment that begins with `# time: `.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

#: Seconds of a pause between two looks at something that another thread or process does.
LONGEST_SLEEP = 0.05
CLOCKS = frozenset({"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time"})
ESCAPE = "# time: "


def findings(source: str, within: frozenset[str] | None = None) -> Iterator[tuple[int, str]]:
    """Yield the line and the kind of each finding in a source; `within`: in these of its tests, and in helpers."""
    lines = source.splitlines()
    for function in ast.parse(source).body:
        name = getattr(function, "name", "")
        if within is not None and name.startswith("test_") and name not in within:
            continue
        timed = _names_of_times(function)
        for node in ast.walk(function):
            found = _finding(node, timed)
            if found and not any(ESCAPE in line for line in lines[node.lineno - 1 : node.end_lineno]):
                yield node.lineno, found


def _finding(node: ast.AST, timed: frozenset[str]) -> str:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep":
        (argument,) = node.args
        if not (isinstance(argument, ast.Constant) and argument.value <= LONGEST_SLEEP):
            return f"sleeps {ast.unparse(argument)} s"
    if isinstance(node, ast.Assert) and any(_bounds_a_time(each, timed) for each in ast.walk(node.test)):
        return f"asserts that something was fast: {ast.unparse(node.test)}"
    return ""


def _bounds_a_time(node: ast.AST, timed: frozenset[str]) -> bool:
    """Return whether a comparison fails when more time passes. That a wait is over, by a deadline, is none."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
        small, large = (right, left) if isinstance(operator, ast.Gt | ast.GtE) else (left, right)
        if isinstance(small, ast.Call) and isinstance(large, ast.Name):
            continue
        if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and _reads_a_clock(small, timed):
            return True
    return False


def _names_of_times(function: ast.AST) -> frozenset[str]:
    """Return the variables that hold an elapsed time: of an assignment with a difference of clocks."""
    found: set[str] = set()
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.BinOp)
            and _reads_a_clock(node.value, frozenset())
        ):
            found |= {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return frozenset(found)


def _reads_a_clock(expression: ast.AST, timed: frozenset[str]) -> bool:
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in CLOCKS:
            return True
        if isinstance(node, ast.Name) and node.id in timed:
            return True
    return False
