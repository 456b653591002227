"""The range of an ETA: wider where the rate changed, open where the end is not in sight, unknown without samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.model.pace import COPY, Eta, Pace, Paces, span

MB = 1_000_000


def paced(lefts: list[int], seconds: float = 5.0, pace: Pace = COPY) -> Eta:
    """The ETA after samples of the bytes left, one each `seconds`."""
    paces = Paces()
    for number, left in enumerate(lefts):
        paces.add("a", 100.0 + number * seconds, left, pace)
    return paces.eta("a", lefts[-1], pace)


@pytest.mark.parametrize(
    ("lefts", "expected"),
    [
        ([], Eta()),
        ([400 * MB, 300 * MB, 200 * MB], Eta()),  # two slices are too few
        ([400 * MB, 300 * MB, 200 * MB, 100 * MB], Eta(5.0, 5.0)),  # 20 MB/s
        ([100 * MB, 100 * MB, 100 * MB, 100 * MB], Eta()),  # nothing was copied
        ([100 * MB, 120 * MB, 140 * MB, 160 * MB], Eta()),  # the source grows faster than the copy
        ([100 * MB, 50 * MB, 0, 0], Eta(0.0, 0.0)),
    ],
)
def test_eta_of_steady_copies(lefts: list[int], expected: Eta) -> None:
    assert (paced(lefts) if lefts else Paces().eta("a", 5)) == expected


def test_eta_is_open_when_the_slow_slices_made_no_progress() -> None:
    eta = paced([500 * MB, 400 * MB, 400 * MB, 400 * MB, 300 * MB])
    assert eta.low is not None and eta.high is None


def test_samples_between_two_slices_and_beyond_the_window_do_not_count() -> None:
    paces = Paces()
    for tenth in range(10):  # within one slice
        paces.add("a", tenth / 10, 1000 - tenth)
    assert paces.eta("a", 1000) == Eta()
    for number in range(40):  # slow long ago, fast in the last minute
        paces.add("b", number * 5.0, (4000 - 10 * number if number < 20 else 3800 - 100 * (number - 20)) * MB)
    assert paces.eta("b", 1800 * MB) == Eta(90.0, 90.0)


def test_forgotten_keys_have_no_samples() -> None:
    paces = Paces()
    for number in range(5):
        paces.add("a", number * 5.0, 100 - number)
    paces.keep({"b"})
    assert paces.eta("a", 10) == Eta()


@given(st.lists(st.floats(0.1, 1e9), min_size=1, max_size=30), st.integers(1, 10**15))
def test_range_is_ordered_and_within_the_fastest_and_the_slowest_rate(rates: list[float], left: int) -> None:
    eta = span(rates, left)
    assert eta.low is not None and eta.high is not None
    assert left / max(rates) <= eta.low * (1 + 1e-9)
    assert eta.low <= eta.high * (1 + 1e-9)
    assert eta.high <= left / min(rates) * (1 + 1e-9)
