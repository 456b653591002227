"""The kernel needs the standard library and itself, so that every part may import it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import storage_node
import storage_node.model

FOLDER = Path(storage_node.model.__file__).parent
SOURCES = sorted(FOLDER.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_module_imports_the_standard_library_and_the_kernel_only(path: Path) -> None:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            found.add(node.module or "")
    ours = {each for each in found if each.split(".")[0] not in sys.stdlib_module_names}
    assert {
        each for each in ours if each != "storage_node.model" and not each.startswith("storage_node.model.")
    } == set()


def test_importing_it_imports_nothing_else_of_the_project() -> None:
    names = ", ".join(f"storage_node.model.{path.stem}" for path in SOURCES if path.stem != "__init__")
    program = f"import sys, {names}; print(*sorted(n for n in sys.modules if n.startswith(('storage', 'work', 'act'))))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert {each for each in done.stdout.split() if not each.startswith("storage_node.model")} == {"storage_node"}
