"""Faults that only a container engine can inject: the calls to the roles, and the facts recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.torture.nemesis.book import Book
from ops.torture.nemesis.decisions import Decision
from ops.torture.nemesis.faults import LEAST_MEMORY, Faults


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


def at(*picks: float) -> Decision:
    return Decision(1, "", 0.0, (*picks, *[0.0] * (6 - len(picks))))


def test_cut_is_mended_and_counted(book: Book) -> None:
    engine = Engine()
    assert faults(engine, book).cut_role(at(0.0)) == ("node-1", "was disconnected for 0.5 s")
    assert engine.did == [("cut", "node-1"), ("mend", "node-1")]
    assert book.kills == {"node-1 disconnected": 1}


@pytest.mark.parametrize(("pick", "name"), [(0.8, "controller"), (0.99, "temporal")])
def test_everything_can_be_cut_off(book: Book, pick: float, name: str) -> None:
    assert faults(Engine(), book).cut_role(at(pick))[0] == name


def test_squeezed_node_is_started_again_and_gets_its_memory_back(book: Book) -> None:
    engine = Engine(dies=[True, False])
    name, outcome = faults(engine, book).squeeze_node(at(0.5, 0.0, 0.0))
    assert (name, outcome) == ("node-2", "had 44 MiB for 4.0 s, 1 OOM kills")
    assert engine.did[0] == engine.did[1] == ("squeeze", "node-2", LEAST_MEMORY)
    assert engine.did[-2:] == [("loosen", "node-2"), ("start", "node-2")]
    assert book.kills == {"node-2 restarted under a memory limit": 1, "node-2 killed by the OOM killer": 1}


def test_healing_ends_what_an_engine_did(book: Book) -> None:
    engine = Engine()
    faults(engine, book).heal()
    for name in ("temporal", "controller", "node-1", "node-2", "node-3"):
        assert [did[0] for did in engine.did if did[1:2] == (name,)] == ["thaw", "mend", "loosen", "start"]
