"""Why a node is missed, by what the controller knows."""

from __future__ import annotations

import pytest

from workflows.model import absence
from workflows.model.absence import Absence, Missed, Probe, Probes
from workflows.model.calls import ProbeResult
from workflows.model.state import ClusterState, Node


def cluster(fenced: bool, incarnation: str = "i1") -> ClusterState:
    """Node 1 is registered."""
    return ClusterState("c", nodes={1: Node(1, incarnation, 7, "localhost", 9092, (), fenced)})


@pytest.mark.parametrize(
    ("result", "fenced", "found"),
    [
        (ProbeResult(reason="refused", refused=True), True, Absence.DEAD),
        (ProbeResult(reason="timed out"), True, Absence.CUT_OFF),
        (ProbeResult("i2"), True, Absence.FENCED),
        (None, True, Absence.FENCED),
        (ProbeResult("i1"), False, Absence.CUT_OFF),
        (None, False, Absence.CUT_OFF),
    ],
)
def test_dead_cut_off_and_fenced_are_distinguished(result: ProbeResult | None, fenced: bool, found: Absence) -> None:
    probes = Probes()
    if result is not None:
        probes.note(1, "i1", result)
    assert absence.judge(probes.answer(1, cluster(fenced))) is found


def test_an_unknown_reason_is_not_reported() -> None:
    assert absence.judge(Probes().answer(9, cluster(True))) is Absence.AWAY
    assert absence.judge(Probes().answer(1, None)) is Absence.AWAY


def test_absent_lists_fenced_nodes_alone() -> None:
    probes = Probes()
    probes.note(1, "i1", ProbeResult(refused=True))
    assert probes.absent([9, 1, 1], cluster(True)) == [[1, Absence.DEAD]]
    assert probes.absent([1], cluster(False)) == probes.absent([1], None) == []


def test_an_earlier_incarnations_probe_is_ignored() -> None:
    probes = Probes()
    probes.note(1, "i0", ProbeResult(refused=True))
    assert absence.judge(probes.answer(1, cluster(True))) is Absence.FENCED


def test_continue_as_new_carries_why_nodes_are_fenced() -> None:
    probes = Probes()
    probes.note(1, "i1", ProbeResult(refused=True))
    assert probes.rows(cluster(True)) == [[1, "i1", Probe.REFUSED]]
    assert Probes(probes.rows(cluster(True))).answer(1, cluster(True)) == probes.answer(1, cluster(True))
    assert probes.rows(cluster(False)) == probes.rows(None) == []


def test_time_without_a_node_counts_as_what_the_controller_called_it() -> None:
    missed = Missed()
    missed.learn({"fenced": True, "probe": "refused"})
    assert not missed.now and missed.absence is Absence.AWAY, "nothing is missed yet"
    missed.begin(100.0)
    assert missed.now and not missed.certain
    missed.learn({"fenced": False, "probe": "same"})
    assert missed.absence is Absence.CUT_OFF and not missed.certain
    missed.learn({"fenced": True, "probe": "refused"})
    assert missed.certain
    assert missed.end(130.5) == {"dead": 30.5}
    assert not missed.now and missed.absence is Absence.AWAY


def test_a_node_that_serves_is_told_of_alike_before_and_after_a_continue_as_new() -> None:
    probes, state = Probes(), cluster(False)
    probes.note(1, "i1", ProbeResult("i1"))
    assert probes.answer(1, state) == Probes(probes.rows(state)).answer(1, state) == {"fenced": False, "probe": ""}
