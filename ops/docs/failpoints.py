"""Print the failpoints by module as a page: `python -m ops.docs.failpoints > ops/docs/failpoints.md`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

from storage_node.directories.atomic import WritePoints

ROOT = Path(__file__).parents[2]

_HEAD = """# Failpoints

Named places in the code, beside each durable step, where a process can be killed, held or given an error:
`REHOME_FAILPOINTS="swap.after_seal=kill"` for a process, `failpoints.active` in a test. Actions and counts are in the
docstring of `storage_node/failpoints.py`. The page is printed from the sources by
`python -m ops.docs.failpoints > ops/docs/failpoints.md`.

A name that ends in `.*` stands for the five points of a file that is replaced durably: {points}.
"""


def by_module(root: Path = ROOT) -> Mapping[str, tuple[str, ...]]:
    """Return the points that each module of the storage node declares, in its order; a `.*` for those of a file."""
    files = sorted((root / "storage_node").rglob("*.py"))
    found = {str(file.relative_to(root)): tuple(_declared(file)) for file in files}
    return {module: declared for module, declared in found.items() if declared}


def names(root: Path = ROOT) -> frozenset[str]:
    """Return all points, those of files by their own names."""
    points = [field.name for field in fields(WritePoints)]
    return frozenset(
        full
        for declared in by_module(root).values()
        for name in declared
        for full in ([f"{name[:-1]}{point}" for point in points] if name.endswith(".*") else [name])
    )


def _declared(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text())
    calls = sorted((each for each in ast.walk(tree) if isinstance(each, ast.Call)), key=lambda each: each.lineno)
    for call in calls:
        called = ast.unparse(call.func)
        match call.args:
            case [ast.Constant(value=str(name)), *_] if called == "failpoints.register":
                yield name
            case [ast.Constant(value=str(name)), *_] if called in ("points", "atomic.points"):
                yield f"{name}.*"


def _meaning(module: str) -> str:
    """Return the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse((ROOT / module).read_text())) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return first.split(". ")[0].removesuffix(".").replace("|", "\\|")


def page() -> str:
    """Return the whole page."""
    points = ", ".join(f"`{field.name}`" for field in fields(WritePoints))
    lines = ["| module | what it does | failpoints |", "|---|---|---|"]
    for module, declared in by_module().items():
        lines.append(f"| `{module}` | {_meaning(module)} | {', '.join(f'`{name}`' for name in declared)} |")
    return "\n".join([_HEAD.format(points=points), *lines]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
