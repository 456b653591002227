"""A disk is slow against its own past only: not against another disk, and not by one slow health check."""

from __future__ import annotations

import pytest

from storage_node.directories.signs.latency import PAST, PRESENT, Latency


def after(*seconds: float) -> Latency:
    latency = Latency()
    for each in seconds:
        latency.add(each)
    return latency


@pytest.mark.parametrize(
    ("past", "present", "slow"),
    [
        ([0.01] * 20, [0.5] * 5, True),
        ([0.01] * 20, [0.5, 0.5, 0.5, 0.01, 0.01], True),
        ([0.01] * 20, [0.5, 0.5, 0.01, 0.01, 0.01], False),  # a moment of it
        ([0.01] * 20, [0.2] * 5, False),  # twenty times as long, and short all the same
        ([0.1] * 20, [0.5] * 5, False),  # always rather slow
        ([0.01] * 19, [0.5] * 5, False),  # too little is known of its past
        ([0.01] * 20, [0.5] * 4, False),
    ],
)
def test_disk_is_slow_against_its_own_past(past: list[float], present: list[float], slow: bool) -> None:
    found = after(*past, *present).slow()
    assert bool(found) is slow, found
    if slow:
        assert found == "health checks take 0.50 s, usually 0.010 s"


def test_what_is_kept_of_the_past_is_bounded() -> None:
    latency = after(*[0.01] * (PAST[1] + 500), *[1.0] * PRESENT)
    assert latency.usual == 0.01 and latency.last == 1.0 and len(latency._past) == PAST[1]
    assert after().usual is None and after().last is None
