"""The delays and failed moves that a failing disk excuses, and those that it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ops.torture import report
from ops.torture.checks.beside_disks import judged
from ops.torture.checks.facts import Evidence, FaultFact, TopicFact, TroubleFact
from ops.torture.checks.index import Index
from ops.torture.checks.table import check
from ops.torture.history import SEND
from tests.ops.torture.checks import forge, forged_failing
from tests.ops.torture.checks.forge import ORDERS, OTHER, SECOND, A, B, at, with_events
from tests.ops.torture.checks.forged_failing import BEATS, CLIENT, FAILING

Forger = Callable[[Evidence], Evidence]
STALLS = [forged_failing.sends_stall, forged_failing.sends_are_given_up, forged_failing.reads_stall]


def ids(evidence: Evidence) -> list[str]:
    return [finding.check for finding in check(evidence)]


def test_client_that_makes_progress_beside_a_failing_disk_is_no_finding() -> None:
    sound = forged_failing.with_a_failing_disk(forge.sound())
    assert ids(sound) == []
    assert judged(Index(sound)) == 15  # two a second, except in the last five seconds
    assert report.count(sound)[1]["sends judged beside a failing disk"] == 15


@pytest.mark.parametrize("stall", STALLS)
def test_client_of_a_replica_in_the_failing_directory_may_stall(stall: Forger) -> None:
    stalled = stall(forge.sound())
    assert ids(replace(stalled, faults=[replace(FAILING, places=(*FAILING.places, BEATS))])) == []


@pytest.mark.parametrize("stall", STALLS)
@pytest.mark.parametrize(
    ("trouble", "excused"),
    [
        pytest.param((at(8), at(9)), True, id="meanwhile"),
        pytest.param((at(0), at(3)), True, id="just before"),
        pytest.param((at(-20), at(-19)), False, id="long before"),
        pytest.param((at(16), at(18)), False, id="after it"),
    ],
)
def test_process_fault_excuses_delays_that_it_may_cause(stall: Forger, trouble: tuple[int, int], excused: bool) -> None:
    evidence = replace(stall(forge.sound()), troubles=[TroubleFact("node-2", *trouble)])
    assert ids(evidence) == ([] if excused else ["C19"])


@pytest.mark.parametrize("stall", STALLS)
def test_another_failing_disk_excuses_the_partitions_in_it_alone(stall: Forger) -> None:
    other = FaultFact(2, "/n2/disk-b", at(4), at(16), places=(BEATS,), back=at(17))
    assert ids(replace(stall(forge.sound()), faults=[FAILING, other])) == []
    assert set(ids(replace(stall(forge.sound()), faults=[FAILING, replace(other, places=())]))) == {"C19"}


def test_client_of_several_partitions_may_wait_for_the_one_in_the_directory() -> None:
    stalled = forged_failing.sends_stall(forge.sound())
    shared = with_events(stalled, lambda x: replace(x, process="sure") if x.process == CLIENT and x.op == SEND else x)
    shared = replace(shared, faults=[replace(FAILING, places=())])
    assert judged(Index(shared)) == 0
    assert "C19" not in ids(shared)


@pytest.mark.parametrize("directories", [(A, B), (B, A)], ids=["target", "source"])
@pytest.mark.parametrize(
    "times", [(at(3), at(5)), (at(16), at(18)), (0, 0)], ids=["failing", "not back yet", "unknown"]
)
def test_move_from_or_to_the_directory_may_fail(directories: tuple[str, str], times: tuple[int, int]) -> None:
    since, until = times
    assert ids(forged_failing.with_move(forge.sound(), *directories, since=since, until=until)) == []


@pytest.mark.parametrize(
    ("places", "findings"), [((OTHER,), []), ((("other lives of orders", 1),), []), ((ORDERS,), ["C19"])]
)
def test_move_that_never_knew_its_source_may_fail_where_the_partition_was(
    places: tuple[tuple[str, int], ...], findings: list[str]
) -> None:
    unknown = forged_failing.with_move(forge.sound(), "", A)
    topics = {**unknown.topics, "other lives of orders": TopicFact("other lives of orders", "orders", 0, deleted=True)}
    assert ids(replace(unknown, topics=topics, faults=[replace(FAILING, places=places)])) == findings


def test_findings_name_directory_partition_and_times() -> None:
    (finding,) = check(forged_failing.sends_stall(forge.sound()))
    for word in (B, "node 1", "disk-errors", "14.000 s", "beats-0", f"{CLIENT}-14", "17.000 s", "6.0 s later"):
        assert word in finding.sentence
    (finding,) = check(forged_failing.reads_stall(forge.sound()))
    assert f"{CLIENT}-14" in finding.sentence and "17.100 s" in finding.sentence


def test_delay_below_the_patience_is_no_stall() -> None:
    def change(x: forge.Event) -> forge.Event:
        return replace(x, completed=x.completed + 4 * SECOND) if forged_failing.late(x, SEND) else x

    assert ids(with_events(forged_failing.with_a_failing_disk(forge.sound()), change)) == []


def test_disk_faults_are_counted_by_outcome() -> None:
    faults = [FAILING, FAILING, replace(FAILING, kind="disk-full"), replace(FAILING, hits=0)]
    assert report.disks(replace(forge.sound(), faults=faults)) == {
        "disk-errors: served on": 2, "disk-full: served on": 1, "disk-errors: no operation failed": 1,
    }  # fmt: skip
