"""Every recorded history replays with the code of today, and ends in what it ended in: runs that are under way survive
an upgrade, and no version of the metadata gets another content.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.workflows.conftest import HISTORIES, read_history
from tests.workflows.replaying import changed, ends, replay
from workflows.model.metadata import rules
from workflows.model.metadata.placement import Room
from workflows.model.metadata.state import ClusterState

RECORDED = sorted(HISTORIES.glob("*.json.gz"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_recorded_history_carries_the_flag_that_every_worker_sets(path: Path) -> None:
    """Flag 2 of the SDK: what a task brings is one batch; see tests/workflows/test_sdk_hooks.py."""
    events = read_history(path).events
    first = next(event for event in events if event.HasField("workflow_task_completed_event_attributes"))
    flags = first.workflow_task_completed_event_attributes.sdk_metadata.lang_used_flags
    assert list(flags) == [2], "record it again: python -m tests.golden.histories.record"


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_recorded_history_replays_and_ends_as_recorded(path: Path) -> None:
    name = path.name.removesuffix(".json.gz")
    assert name in ends(), f"{name} has no end recorded: python -m tests.golden.histories.record --ends"
    problem = changed(name, ends()[name], asyncio.run(replay(read_history(path))))
    assert not problem, problem


def test_recorded_ends_are_those_of_histories() -> None:
    assert set(ends()) == {path.name.removesuffix(".json.gz") for path in RECORDED}


def test_every_version_of_the_rules_has_a_recorded_controller() -> None:
    shown = {end["rules"] for end in ends().values() if "metadata" in end}
    assert shown == set(range(rules.OLDEST, rules.RULES + 1)), "record one by the rules that are missing"


CONTINUED = HISTORIES / "cluster-continued.json.gz"


def reverse(monkeypatch: pytest.MonkeyPatch, oldest: int) -> None:
    """Place replicas in the reverse order, where the rules are of this version or newer."""
    forwards, init = Room._in_turn, Room.__init__
    by: dict[int, int] = {}

    def remember(room: Room, state: ClusterState) -> None:
        by[id(room)] = state.rules
        init(room, state)

    def in_turn(room: Room) -> list[int]:
        order = forwards(room)
        return order[::-1] if by[id(room)] >= oldest else order

    monkeypatch.setattr(Room, "__init__", remember)
    monkeypatch.setattr(Room, "_in_turn", in_turn)


def test_changed_rule_of_an_open_run_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = ends()["cluster-continued"]
    reverse(monkeypatch, rules.OLDEST)
    end = asyncio.run(replay(read_history(CONTINUED)))  # not a word: the commands are the same
    assert (end["generation"], end["version"]) == (recorded["generation"], recorded["version"])
    assert end["metadata"] != recorded["metadata"]
    assert "record --ends" in changed("cluster-continued", recorded, end)
    monkeypatch.setattr(rules, "RELEASED", rules.RULES)
    assert "raise RULES" in changed("cluster-continued", recorded, end)


def test_newer_rule_does_not_change_earlier_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "RULES", rules.RULES + 1)
    reverse(monkeypatch, rules.RULES)
    end = asyncio.run(replay(read_history(CONTINUED)))
    assert not changed("cluster-continued", ends()["cluster-continued"], end)
