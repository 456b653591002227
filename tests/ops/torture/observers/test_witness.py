"""The engine's events: faults are distinguished from the events of each container's start and end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ops.torture.box import LABEL
from ops.torture.observers.witness import CUT, Witness


def container(action: str, run: str = "mine", number: str = "c1") -> dict[str, Any]:
    return {"Type": "container", "Action": action, "Actor": {"ID": number, "Attributes": {LABEL: run}}}


def network(action: str, name: str = "net", number: str = "c1") -> dict[str, Any]:
    return {
        "Type": "network",
        "Action": action,
        "Actor": {"ID": "n1", "Attributes": {"name": name, "container": number}},
    }


def counted(*events: dict[str, Any]) -> dict[str, int]:
    witness = Witness(SimpleNamespace(), "mine", "net")
    for event in events:
        witness.note(event)
    return witness.counts


START = (network("connect"), container("start"))
END = (container("kill"), container("die"), network("disconnect"))


def test_starts_and_ends_cut_nothing() -> None:
    assert counted(*START, *END, *START) == {"started": 2, "killed": 1}
    early = (container("kill"), network("disconnect"), container("die"))  # the engine sends them in either order
    assert counted(*START, *early, *START) == {"started": 2, "killed": 1}


def test_cut_is_a_disconnect_of_one_that_runs() -> None:
    found = counted(*START, network("disconnect"), network("connect"), *END)
    assert found[CUT] == 1


def test_every_other_fault_is_counted() -> None:
    found = counted(*START, container("pause"), container("unpause"), container("oom"), container("exec_start"))
    assert found == {"started": 1, "paused": 1, "unpaused": 1, "out of memory": 1}


def test_what_others_do_is_not_counted() -> None:
    assert counted(container("start", "theirs"), container("kill", "theirs"), network("disconnect", "other")) == {}
