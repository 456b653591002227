"""Watching moves and reassignments goes on while the node or the server that it asks restarts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from ops.cli import main as cli
from ops.cli import moves, nodes, reassignments
from ops.cli.kafka_admin import KafkaAdmin, NoAnswer, NodeAddress
from ops.cli.target import Target
from ops.stack.errors import OpsError

STATUS = {"topic": "orders", "partition": 0, "directory": "/b", "state": "copying", "bytes_total": 9}
DOWN = NoAnswer("no answer at 127.0.0.1:1")


def down(*_: Any, **__: Any) -> Any:
    raise DOWN


def test_look_at_moves_goes_on_by_the_addresses_it_knows_while_the_bootstrap_node_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(nodes, "addresses", lambda *_, **__: [NodeAddress(1, "127.0.0.1", 2)])
    monkeypatch.setattr(nodes, "call", lambda *_, **__: {"moves": [STATUS]})
    with moves.Looking(Target("127.0.0.1:1", "", "default", "c"), again=True) as looking:
        first = looking.gather()
        monkeypatch.setattr(nodes, "addresses", down)
        clock[0] += 31.0
        then = looking.gather()
    assert (len(first.lines), first.notes) == (1, [])
    assert (then.lines, then.notes) == (first.lines, [str(DOWN)])


class Looking:
    """Looks of which each second one fails, until Ctrl-C."""

    def __init__(self, gathered: Callable[[int, list[str]], Any]) -> None:
        self._gathered, self.looks = gathered, 0

    def __enter__(self) -> Looking:
        return self

    def __exit__(self, *_: object) -> None: ...

    def gather(self) -> Any:
        self.looks += 1
        if self.looks == 5:
            raise KeyboardInterrupt
        if self.looks % 2 == 0:
            raise OpsError("the bootstrap node restarts")
        return self._gathered(self.looks, [f"look {self.looks}"])


@pytest.mark.parametrize("command", ["moves", "reassignments"])
def test_watch_shows_a_look_that_fails_as_a_note_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    looking = Looking(
        (lambda _, notes: moves.Gathered([], [], notes))
        if command == "moves"
        else (lambda at, notes: reassignments.Gathered([], notes, float(at)))
    )
    monkeypatch.setattr(moves if command == "moves" else reassignments, "Looking", lambda *_, **__: looking)
    monkeypatch.setattr(KafkaAdmin, "__enter__", lambda self: self)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert cli.run([command, "--watch", "--bootstrap-server", "127.0.0.1:1"]) == 130
    assert looking.looks == 5
    assert "the bootstrap node restarts" in capsys.readouterr().out
