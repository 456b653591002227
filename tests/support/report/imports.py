"""Each of xdist's processes imports its share of the test modules first.

In a fresh clone pytest rewrites the asserts of every test module and compiles it, which takes several times as long as
the import of what it has cached. All processes collect all tests, in one order: without this each of them would
rewrite every module, since none is ahead of the others.

What the collection makes lives until the end: the garbage collector does not look at it meanwhile, nor afterwards.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest


def modules_under(root: Path, arguments: Sequence[str]) -> list[str]:
    """The names of the test modules in the folders that a run was given (`tests`, `tests/ops`), in order."""
    folders = [root / argument for argument in arguments if "::" not in argument]
    files = {file for folder in folders if folder.is_relative_to(root) for file in folder.rglob("test_*.py")}
    return [".".join(file.relative_to(root).with_suffix("").parts) for file in sorted(files)]


class Imports:
    """A plugin of pytest. What cannot be imported is left to the collection, which says why."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        if session.config.pluginmanager.hasplugin("dsession"):
            return  # the processes collect
        gc.disable()
        worker = getattr(session.config, "workerinput", None)
        if worker is None:
            return
        number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
        for name in modules_under(session.config.rootpath, session.config.args)[number::count]:
            with suppress(Exception, pytest.skip.Exception):
                import_module(name)

    def pytest_collection_finish(self) -> None:
        gc.freeze()
        gc.enable()
