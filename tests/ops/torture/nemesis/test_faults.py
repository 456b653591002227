"""Faults that only a container engine can inject: the calls to the roles, and the facts recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.torture.nemesis.book import Book
from ops.torture.nemesis.faults import Faults


class Engine:
    """Roles that record all calls. `dies` has, per call of `alive`, whether the squeezed role has exited."""

    nodes = (1, 2, 3)
    by_engine = True

    def __init__(self, dies: list[bool] | None = None) -> None:
        self.did: list[tuple[Any, ...]] = []
        self._dies = dies or []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.did.append((name, *arguments))

    def alive(self, name: str) -> bool:
        return not (self._dies.pop(0) if self._dies else False)

    def starved(self, name: str) -> bool:
        return True


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    made = Book(tmp_path, lambda _line: None)
    yield made
    made.close()


def faults(engine: Engine, book: Book) -> Faults:
    made: Any = Faults
    return made(engine, None, book)


def test_healing_ends_what_an_engine_did(book: Book) -> None:
    engine = Engine()
    faults(engine, book).heal()
    for name in ("temporal", "controller", "node-1", "node-2", "node-3"):
        assert [did[0] for did in engine.did if did[1:2] == (name,)] == ["thaw", "mend", "loosen", "start"]
