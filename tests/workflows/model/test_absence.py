"""Why a node is missed, by what the controller knows."""

from __future__ import annotations

import pytest

from storage_node.model.metadata import NodeImage
from storage_node.model.moves import StallReason
from workflows.model import absence
from workflows.model.absence import Missed, Probe, Probes
from workflows.model.calls import ProbeResult
from workflows.model.metadata.state import ClusterState


def cluster(fenced: bool, incarnation: str = "i1") -> ClusterState:
    """Node 1 is registered."""
    return ClusterState("c", nodes={1: NodeImage(1, incarnation, 7, "localhost", 9092, (), fenced)})


@pytest.mark.parametrize(
    ("result", "fenced", "found"),
    [
        (ProbeResult(reason="refused", refused=True), True, StallReason.DEAD),
        (ProbeResult(reason="timed out"), True, StallReason.CUT_OFF),
        (ProbeResult("i2"), True, StallReason.FENCED),
        (None, True, StallReason.FENCED),
        (ProbeResult("i1"), False, StallReason.CUT_OFF),
        (None, False, StallReason.CUT_OFF),
    ],
)
def test_dead_cut_off_and_fenced_are_distinguished(
    result: ProbeResult | None, fenced: bool, found: StallReason
) -> None:
    probes = Probes()
    if result is not None:
        probes.note(1, "i1", result)
    assert absence.judge(probes.state_of(1, cluster(fenced))) is found


def test_unknown_reason_is_not_reported() -> None:
    assert absence.judge(Probes().state_of(9, cluster(True))) is StallReason.UNAVAILABLE
    assert absence.judge(Probes().state_of(1, None)) is StallReason.UNAVAILABLE


def test_absent_lists_fenced_nodes_alone() -> None:
    probes = Probes()
    probes.note(1, "i1", ProbeResult(refused=True))
    assert probes.absent([9, 1, 1], cluster(True)) == [[1, StallReason.DEAD]]
    assert probes.absent([1], cluster(False)) == probes.absent([1], None) == []


def test_earlier_incarnations_probe_is_ignored() -> None:
    probes = Probes()
    probes.note(1, "i0", ProbeResult(refused=True))
    assert absence.judge(probes.state_of(1, cluster(True))) is StallReason.FENCED


def test_continue_as_new_carries_why_nodes_are_fenced() -> None:
    probes = Probes()
    probes.note(1, "i1", ProbeResult(refused=True))
    assert probes.rows(cluster(True)) == [[1, "i1", Probe.REFUSED]]
    assert Probes(probes.rows(cluster(True))).state_of(1, cluster(True)) == probes.state_of(1, cluster(True))
    assert probes.rows(cluster(False)) == probes.rows(None) == []


def test_time_without_reports_counts_for_the_controllers_reason() -> None:
    missed = Missed()
    missed.learn({"fenced": True, "probe": "refused"})
    assert not missed.now and missed.absence is StallReason.UNAVAILABLE, "nothing is missed yet"
    missed.begin(100.0)
    assert missed.now and not missed.certain
    missed.learn({"fenced": False, "probe": "same"})
    assert missed.absence is StallReason.CUT_OFF and not missed.certain
    missed.learn({"fenced": True, "probe": "refused"})
    assert missed.certain
    assert missed.end(130.5) == {"dead": 30.5}
    assert not missed.now and missed.absence is StallReason.UNAVAILABLE


def test_state_of_a_serving_node_is_the_same_after_a_continue_as_new() -> None:
    probes, state = Probes(), cluster(False)
    probes.note(1, "i1", ProbeResult("i1"))
    assert probes.state_of(1, state) == Probes(probes.rows(state)).state_of(1, state) == {"fenced": False, "probe": ""}
