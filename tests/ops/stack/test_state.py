"""stack.json and the folder's lock."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.kafka.jars import Runtime
from ops.stack import state
from ops.stack.errors import OpsError
from ops.stack.layout import StackKind, StackSpec
from ops.stack.state import ProcessRecord, StackState


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    saved = StackState(StackSpec(tmp_path, nodes=2, port=19000), "/bin/temporal", {"node-1": ProcessRecord(12, 3.5)})
    state.save(saved)
    assert state.load(tmp_path) == saved


def test_state_on_a_full_disk_is_one_sentence_and_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = StackState(StackSpec(tmp_path), "/bin/temporal")
    state.save(before)

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OpsError, match=r"cannot write the stack's state .*stack\.json: No space left on device"):
        state.save(before.with_record("node-1", ProcessRecord(12, 3.5)))
    assert state.load(tmp_path) == before


def test_kind_of_a_stack_is_read(tmp_path: Path) -> None:
    spec = StackSpec(tmp_path, dirs=2, kind=StackKind.APACHE_KAFKA)
    saved = StackState(spec, "/bin/temporal", {}, Runtime("/bin/java", "/libs/*", "/quiet"))
    state.save(saved)
    assert state.load(tmp_path) == saved


def test_state_without_a_kind_is_of_storage_nodes(tmp_path: Path) -> None:
    saved = StackState(StackSpec(tmp_path), "/bin/temporal")
    older = {key: value for key, value in state.to_json(saved).items() if key not in ("kind", "java")}
    (tmp_path / state.STATE).write_text(json.dumps(older))
    assert state.load(tmp_path) == saved


def test_folder_without_a_stack(tmp_path: Path) -> None:
    assert state.load(tmp_path) is None
    with pytest.raises(state.NoStack, match="rehome stack up --data"):
        state.require(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1}', '{"version": 1, "nodes": "x"}'])
def test_damaged_state_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / state.STATE).write_text(text)
    with pytest.raises(OpsError, match="is not valid"):
        state.load(tmp_path)


def test_unknown_kind_is_one_sentence(tmp_path: Path) -> None:
    values = state.to_json(StackState(StackSpec(tmp_path), "/bin/temporal"))
    (tmp_path / state.STATE).write_text(json.dumps(values | {"kind": "tape"}))
    with pytest.raises(OpsError, match=r"is not valid .*tape"):
        state.load(tmp_path)


def test_second_stack_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from ops.stack import state\n"
        "try:\n"
        "    with state.owning(Path(sys.argv[1])): print('got it')\n"
        "except state.StackLocked as error: print(error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with state.owning(tmp_path):
        printed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        assert str(tmp_path) in printed
        assert "another `rehome stack up`" in printed
    free = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    assert free == "got it\n"
