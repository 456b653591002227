"""stack.json and the folder's lock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ops.stack import state
from ops.stack.errors import OpsError
from ops.stack.layout import StackSpec
from ops.stack.state import ProcessRecord, StackState


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    saved = StackState(StackSpec(tmp_path, nodes=2, port=19000), "/bin/temporal", {"node-1": ProcessRecord(12, 3.5)})
    state.save(saved)
    assert state.load(tmp_path) == saved


def test_a_folder_without_a_stack(tmp_path: Path) -> None:
    assert state.load(tmp_path) is None
    with pytest.raises(state.NoStack, match="rehome stack up --data"):
        state.require(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1}', '{"version": 1, "nodes": "x"}'])
def test_a_damaged_state_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / state.STATE).write_text(text)
    with pytest.raises(OpsError, match="is not readable"):
        state.load(tmp_path)


def test_a_second_stack_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from ops.stack import state\n"
        "try:\n"
        "    with state.owning(Path(sys.argv[1])): print('got it')\n"
        "except state.StackLocked as error: print(error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with state.owning(tmp_path):
        told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        assert str(tmp_path) in told
        assert "another `rehome stack up`" in told
    free = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    assert free == "got it\n"
