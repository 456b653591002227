"""The table of attacks, and the verdict on an attack's cost."""

from __future__ import annotations

import dataclasses

import pytest

from ops.bench.hostile.attack import Attack, allowed
from ops.bench.hostile.siege import MIB, Cost, Limits

ATTACK = Attack("a", "attacks", lambda field: None, allowed("INVALID_RECORD"))
HARMLESS = Cost(ATTACK, {"INVALID_RECORD": 7}, p99=0.1, worst=0.2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outcomes": {"NONE": 1, "INVALID_RECORD": 1}}, "ended with NONE instead of INVALID_RECORD"),
        ({"outcomes": {}}, "no request of the attack ended"),
        ({"p99": 0.3}, "p99 is 300 ms"),
        ({"failed": {"produce: REQUEST_TIMED_OUT": 2}}, "got 2 produce: REQUEST_TIMED_OUT"),
        ({"grown": 65 * MIB}, "memory grew by 65 MiB"),
        ({"descriptors": 501}, "501 descriptors more are open"),
        ({"logged": 3 * MIB}, "its log grew by 3.0 MiB"),
        ({"escapes": True}, "control characters"),
        ({"broken": "the process has exited"}, "the process has exited"),
    ],
)
def test_each_cost_beyond_its_limit_is_a_problem(changes: dict[str, object], words: str) -> None:
    (found,) = dataclasses.replace(HARMLESS, **changes).problems(Limits())  # type: ignore[arg-type]
    assert words in found
