"""A sound history passes; each forged anomaly is found by its check and by no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.torture.checks.facts import Batch, Evidence, LeaderFact
from ops.torture.checks.moves import compare
from ops.torture.checks.table import CHECKS, Finding, check
from ops.torture.history import INFO, MARKS, OK, POLL, SEND, SESSION, Event
from tests.ops.torture.checks import (
    forge,
    forged_disks,
    forged_failing,
    forged_readings,
    forged_records,
    forged_replicas,
)
from tests.ops.torture.checks.forge import (
    COUNT,
    ORDERS,
    OTHER,
    SECOND,
    TICKS,
    at,
    value,
    with_events,
    with_final,
)

ANOMALIES = {
    **forged_records.ANOMALIES,
    **forged_readings.ANOMALIES,
    **forged_disks.ANOMALIES,
    **forged_replicas.ANOMALIES,
    **forged_failing.ANOMALIES,
}


def found(evidence: Evidence) -> list[Finding]:
    return check(evidence)


def test_sound_history_passes() -> None:
    assert [str(finding) for finding in found(forge.sound())] == []


def test_every_check_has_forged_anomalies() -> None:
    assert ANOMALIES.keys() == {each.id for each in CHECKS}


@pytest.mark.parametrize(
    ("expected", "anomaly"),
    [pytest.param(c, f, id=f"{c}-{f.__name__}") for c, forgers in ANOMALIES.items() for f in forgers],
)
def test_forged_anomaly_is_found_by_its_check_alone(expected: str, anomaly: Callable[[Evidence], Evidence]) -> None:
    findings = found(anomaly(forge.sound()))
    assert {finding.check for finding in findings} == {expected}, [str(finding) for finding in findings]


def test_value_in_two_partitions_is_a_duplicate() -> None:
    findings = found(forged_records.idempotent_record_in_two_partitions(forge.sound()))
    assert [f.check for f in findings] == ["C3"]
    assert "0:20" in findings[0].sentence and "1:6" in findings[0].sentence


@pytest.mark.parametrize(
    ("process", "moment", "finding"),
    [
        pytest.param("sure", at(6), False, id="outstanding then"),
        pytest.param("sure", at(6) + 30 * SECOND, True, id="acknowledged before"),
        pytest.param("sure", at(6) - 30 * SECOND, True, id="sent after it"),
        pytest.param("plain", at(6), True, id="another producer's"),
    ],
)
def test_record_resent_after_an_epoch_bump_is_no_duplicate(process: str, moment: int, finding: bool) -> None:
    session = Event(process, SESSION, "", -1, INFO, moment, moment, error="an epoch bump")
    twice = with_events(forged_records.idempotent_record_twice(forge.sound()), lambda event: event, session)
    assert [each.check for each in found(twice)] == (["C3"] if finding else [])


# Any single change


@settings(deadline=None)
@given(st.sampled_from([ORDERS, OTHER, TICKS]), st.integers(0, COUNT - 1), st.sampled_from(["gone", "other", "twice"]))
def test_any_single_change_of_what_is_read_at_the_end_is_found(place: forge.Place, offset: int, how: str) -> None:
    sound = forge.sound()
    low = sound.final[place].low
    offset = max(offset, low)
    if how == "gone":
        changed = with_final(sound, place, lambda read: forge.without(read, offset))
    elif how == "other":
        changed = with_final(sound, place, lambda read: forge.renamed(read, offset, f"forged-{offset}"))
    else:
        even = max(low, offset - offset % 2)
        even += even % 2
        changed = with_final(sound, place, lambda read: forge.appended(read, value(place, even)))
    assert found(changed)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(-3, 3).filter(bool))
def test_any_wrong_acknowledged_offset_is_found(which: int, by: int) -> None:
    sound = forge.sound()
    acks = [x for x in sound.history if x.op == SEND and x.type == OK and x.offset >= forge.RETAINED]
    victim = acks[which % len(acks)]
    changed = with_events(sound, lambda x: replace(x, offset=x.offset + by) if x is victim else x)
    assert found(changed)


@settings(deadline=None)
@given(st.data())
def test_any_single_change_of_a_poll_is_found(data: st.DataObject) -> None:
    sound = forge.sound()
    polls = [x for x in sound.history if x.op == POLL and x.type == OK]
    victim = data.draw(st.sampled_from(polls))
    number = data.draw(st.integers(0, len(victim.records) - 1))
    offset, what = victim.records[number]
    last = number == len(victim.records) - 1
    new = data.draw(st.sampled_from(["value", "offset"] if last else ["value", "offset", "gone"]))
    records = list(victim.records)
    if new == "gone":
        del records[number]
    else:
        records[number] = (offset, f"{what}x") if new == "value" else (offset + data.draw(st.integers(1, 9)), what)
    assert found(with_events(sound, lambda x: replace(x, records=tuple(records)) if x is victim else x))


@settings(deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["low", "high"]), st.integers(1, 5))
def test_mark_that_is_too_low_is_found(which: int, field: str, by: int) -> None:
    sound = replace(forge.sound(), leaders=[])
    marks = [x for x in sound.history if x.op == MARKS and (field == "high" or (x.place == ORDERS and x.low))]
    victim = marks[which % len(marks)] if field == "high" else marks[-1]
    changed = {"high": victim.high - by} if field == "high" else {"low": max(0, victim.low - by)}
    assert {f.check for f in found(with_events(sound, lambda x: replace(x, **changed) if x is victim else x))} == {"C7"}


@pytest.mark.parametrize(("elected", "findings"), [(12, set()), (-20, {"C7"}), (40, {"C7"})])
def test_just_deposed_leader_may_respond_with_old_offsets(elected: int, findings: set[str]) -> None:
    sound = replace(forge.sound(), leaders=[LeaderFact(forge.PAYS, "id", 3, 2, "node 1", at(elected))])
    victim = next(x for x in sound.history if x.op == MARKS and x.place == forge.PAYS and x.high >= 15)
    lower = with_events(sound, lambda x: replace(x, high=x.high - 1) if x is victim else x)
    assert {each.check for each in found(lower)} == findings
    # A leader elected meanwhile has all records acknowledged before.
    early = with_events(sound, lambda x: replace(x, high=3) if x is victim else x)
    assert {each.check for each in found(early)} == {"C7"}


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=3, max_size=30), st.data())
def test_any_single_change_of_a_copy_is_found(sizes: list[int], data: st.DataObject) -> None:
    batches, base = [], 0
    for number, size in enumerate(sizes):
        batches.append(Batch(base, base + size - 1, number))
        base += size
    assert compare(batches, batches, 0, base) == (len(batches), ())
    victim = data.draw(st.integers(0, len(batches) - 1))
    copy = list(batches)
    how = data.draw(st.sampled_from(["gone", "bytes", "split"]))
    if how == "gone":
        del copy[victim]
    elif how == "bytes":
        copy[victim] = replace(copy[victim], digest=-1)
    else:
        copy[victim] = replace(copy[victim], last=copy[victim].last + 1)
    _, differences = compare(batches, copy, 0, base)
    assert differences and differences[0][0] == batches[victim].base
