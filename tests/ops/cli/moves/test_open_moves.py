"""Watching moves and reassignments continues while the node or server that it queries restarts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from ops.cli import main as cli
from ops.cli import nodes
from ops.cli.kafka_admin import KafkaAdmin, NodeAddress, NoResponse
from ops.cli.moves import open_moves
from ops.cli.reassign import reassignments
from ops.cli.target import Target
from ops.stack.errors import OpsError

STATUS = {"topic": "orders", "partition": 0, "directory": "/b", "state": "copying", "bytes_total": 9}
DOWN = NoResponse("no response at 127.0.0.1:1")


def down(*_: Any, **__: Any) -> Any:
    raise DOWN


def test_move_reader_uses_known_addresses_while_the_bootstrap_node_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(nodes, "addresses", lambda *_, **__: [NodeAddress(1, "127.0.0.1", 2)])
    monkeypatch.setattr(nodes, "call", lambda *_, **__: {"moves": [STATUS]})
    with open_moves.MoveReader(Target("127.0.0.1:1", "", "default", "c"), again=True) as reader:
        first = reader.gather()
        monkeypatch.setattr(nodes, "addresses", down)
        clock[0] += 31.0
        then = reader.gather()
    assert (len(first.lines), first.notes) == (1, [])
    assert (then.lines, then.notes) == (first.lines, [str(DOWN)])


class Reader:
    """A reader of which every second read fails, until Ctrl-C."""

    def __init__(self, gathered: Callable[[int, list[str]], Any]) -> None:
        self._gathered, self.reads = gathered, 0

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None: ...

    def gather(self) -> Any:
        self.reads += 1
        if self.reads == 5:
            raise KeyboardInterrupt
        if self.reads % 2 == 0:
            raise OpsError("the bootstrap node restarts")
        return self._gathered(self.reads, [f"read {self.reads}"])


@pytest.mark.parametrize("command", ["moves", "reassignments"])
def test_watch_shows_a_failed_read_as_a_note_and_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    reader = Reader(
        (lambda _, notes: open_moves.Gathered([], [], notes))
        if command == "moves"
        else (lambda at, notes: reassignments.Gathered([], notes, float(at)))
    )
    module, name = (open_moves, "MoveReader") if command == "moves" else (reassignments, "ReassignmentReader")
    monkeypatch.setattr(module, name, lambda *_, **__: reader)
    monkeypatch.setattr(KafkaAdmin, "__enter__", lambda self: self)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert cli.run([command, "--watch", "--bootstrap-server", "127.0.0.1:1"]) == 130
    assert reader.reads == 5
    assert "the bootstrap node restarts" in capsys.readouterr().out
