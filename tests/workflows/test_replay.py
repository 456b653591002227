"""Every recorded history replays with the code of today, and ends in what it ended in: runs that are under way survive
an upgrade, and no version of the metadata gets another content.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.workflows import replaying
from tests.workflows.conftest import HISTORIES, read_history
from tests.workflows.replaying import changed, ends, replay
from workflows.model.metadata import rules
from workflows.model.metadata.placement import Room
from workflows.model.metadata.state import ClusterState

RECORDED = sorted(HISTORIES.glob("*.json.gz"))

#: What must be there; more may be.
SCENARIOS = {
    "move-happy",
    "move-cancel-mid-copy",
    "move-cancel-racing-swap",
    "move-cancel-dead-node",
    "move-node-timeout-then-resume",
    "move-lane-mixed",
    "move-pause-resume",
    "move-set-target",
    "move-all-dropped",
    "move-unknown-node",
    "cluster-changes",
    "cluster-continued",
    "cluster-recovered-without",
    "lease",
    "export",
    "directory-failure",
    "directory-failure-waits",
    "reassign-happy",
    "reassign-cancelled-by-api",
    "reassign-cancelled-by-temporal",
    "reassign-superseded",
    "reassign-by-hand",
    "reassign-topic-deleted",
    "reassign-then-moved",
    "reassign-throttled",
    "throttle-lease",
    "throttle-lease-cancelled",
    "reassign-cancel-refused",
    "reassign-directed-beside-deletion",
    "cluster-reassigned",
    "cluster-settled",
    "plan-done",
    "plan-paused",
    "plan-cancelled",
    "plan-cancelled-to-go-back",
    "plan-rolled-back",
    "plan-failed",
    "plan-refused",
    "plan-approved",
    "plan-lane-terminated",
    "plan-lane-directory",
    "plan-lane-brokers",
    "plan-lane-stopped",
    "throttle-keeper",
}


def test_every_scenario_is_recorded() -> None:
    assert {path.name.removesuffix(".json.gz") for path in RECORDED} >= SCENARIOS


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


@pytest.mark.parametrize(
    ("name", "outcome", "plan", "moves"),
    [
        ("plan-done", "completed", "done", {"moved": 2}),
        ("plan-paused", "completed", "done", {"moved": 2}),
        ("plan-approved", "completed", "done", {"moved": 2}),
        ("plan-failed", "completed", "failed", {"moved": 1, "failed": 1}),
        ("plan-lane-terminated", "completed", "done", {"moved": 1, "in_place": 1}),
        ("plan-cancelled-to-go-back", "_ContinueAsNewError", None, {"moved": 1, "cancelled": 1}),
        ("plan-rolled-back", "completed", "rolled_back", {"moved": 1}),
        ("plan-cancelled", "CancelledError", None, {"cancelled": 2}),
        ("plan-refused", "ApplicationError", None, {}),
        ("plan-lane-stopped", "completed", None, {"cancelled": 1}),
    ],
)
def test_recorded_plan_ends_with_its_moves(name: str, outcome: str, plan: str | None, moves: dict[str, int]) -> None:
    end = ends()[name]
    assert (end["outcome"], end.get("plan"), end["moves"]) == (outcome, plan, moves)


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


def test_history_of_a_release_is_not_recorded_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(replaying, "HISTORIES", tmp_path)
    monkeypatch.setattr(replaying, "ENDS", tmp_path / "ends.json")
    (tmp_path / "record.py").touch()
    (tmp_path / "a.json.gz").write_text("by rules 1")
    first, second = ({"rules": 1, "version": 7, "metadata": f"1:0{number}"} for number in (1, 2))
    replaying.keep("a", second, recorded=True)
    replaying.keep("a", first, recorded=False)
    assert ends() == {"a": first}, "before the release"
    monkeypatch.setattr(rules, "RELEASED", 1)
    replaying.keep("a", first, recorded=False)
    with pytest.raises(ValueError, match="raise RULES"):
        replaying.keep("a", second, recorded=True)
    assert ends() == {"a": first}
    replaying.keep("a", second | {"rules": 2}, recorded=True)
    assert ends() == {"a": second | {"rules": 2}, "a-rules-1": first}
    assert (tmp_path / "a-rules-1.json.gz").read_text() == "by rules 1"
