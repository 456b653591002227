"""The page about failpoints has every point of the storage node, under the module that declares it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ops.docs import failpoints

PAGE = Path(failpoints.__file__).with_name("failpoints.md")

#: In a process of its own: tests register points, too.
REGISTERED = """
import importlib, pkgutil, storage_node
from storage_node import failpoints
for module in pkgutil.walk_packages(storage_node.__path__, "storage_node."):
    importlib.import_module(module.name)
print(*failpoints.registered())
"""


def test_page_is_what_the_command_prints() -> None:
    assert PAGE.read_text() == failpoints.page(), (
        "print it again: python -m ops.docs.failpoints > ops/docs/failpoints.md"
    )


def test_page_has_each_point_that_the_modules_register() -> None:
    done = subprocess.run([sys.executable, "-c", REGISTERED], capture_output=True, text=True, timeout=60, check=True)
    assert failpoints.names() == set(done.stdout.split())
