"""What counts as shown in the table of the proposals' features, and what a run knows of its tests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import needs
from tests.support.report.features import features_table
from tests.support.report.record import End, Record
from tests.support.report.tables import ROOT

pytest_plugins = ["pytester"]

FILE = "tests/test_x.py"
ONE = {"1-01": ("one", "")}
SEE = 'see "What the tests need" in ops/docs/testing.md'


def row(carried: list[str], ends: dict[str, End], note: str = "") -> tuple[str, str]:
    """The state of the one feature that all of these tests carry, and its text."""
    table, count = features_table({"1-01": ("one", note)}, {name: ["1-01"] for name in carried}, ends)
    (state,) = [state for state, number in count.items() if number]
    text = table.splitlines()[2].removeprefix("| 1-01 | one | ").removesuffix(" |")
    return state, text


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ({"a[1]": "passed", "a[2]": "passed"}, ("shown", "`a`")),
        ({"a[1]": "passed", "a[2]": "failed"}, ("open", "open; fails: `a`")),
        ({"a[1]": "passed", "a[2]": "skipped"}, ("open", "open; skipped here: `a`")),
        ({"a[1]": "passed", "a[2]": None}, ("open", "open; not run: `a`")),
        ({"a": "passed", "b": "passed"}, ("shown", "`a`, `b`")),
        ({"a": "passed", "b": "skipped"}, ("shown", "`a`")),
        ({"a": "passed", "b": "slow"}, ("shown", "`a`")),
        ({"a[1]": "passed", "a[2]": "slow"}, ("shown", "`a`")),
        ({"a": "passed", "b": "failed"}, ("open", "open; fails: `b`")),
        ({"a": "slow", "b[1]": "slow"}, ("open", "open; slow: not run here (`a`, `b`)")),
        ({"a": "skipped", "b": "slow"}, ("open", "open; skipped here: `a`; slow: not run here (`b`)")),
        ({"a": "left out"}, ("open", "open; not run here: `a`")),
        ({"a[rehome]": "passed", "a[apache]": "failed"}, ("shown", "`a`")),
        ({"a[apache]": "passed"}, ("open", "open")),
        ({}, ("open", "open")),
    ],
)
def test_feature_is_shown_by_tests_that_passed_with_all_their_parameters(
    ends: dict[str, End | None], expected: tuple[str, str]
) -> None:
    assert row(list(ends), {name: end for name, end in ends.items() if end}) == expected


def test_what_is_superseded_is_called_so_unless_a_test_carries_it() -> None:
    assert row([], {}, note="superseded: by x") == ("superseded", "superseded: by x")
    assert row(["a"], {"a": "passed"}, note="superseded: by x") == ("shown", "`a`")
    assert row(["a"], {"a": "failed"}, note="superseded: by x") == ("open", "open; fails: `a`")


def test_what_is_left_of_an_open_feature_is_said_until_a_test_shows_it() -> None:
    assert row([], {}, note="open: one half") == ("open", "open: one half")
    assert row(["a"], {"a": "slow"}, note="open: one half") == ("open", "open: one half; slow: not run here (`a`)")
    assert row(["a"], {"a": "passed"}, note="open: one half") == ("shown", "`a`")


MIXED = """
import pytest

@pytest.mark.feature("1-01")
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a(n):
    if n == 2:
        pytest.skip("needs docker: no engine")
    assert n < 3

@pytest.fixture
def breaks():
    yield
    assert False

@pytest.mark.feature("1-01")
def test_b(breaks): ...

@pytest.mark.feature("1-01")
@pytest.mark.slow_conformance
def test_c(): ...

@pytest.mark.feature("1-01")
def test_d(): ...

def test_e(): ...
"""


@pytest.fixture
def record(pytester: pytest.Pytester) -> Record:
    pytester.makeini(
        "[pytest]\naddopts = -p no:cacheprovider -m 'not slow_conformance'\nmarkers =\n feature\n slow_conformance"
    )
    return Record({"feature": ONE})


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "several"])
def test_run_knows_what_its_tests_carry_and_how_they_ended(
    pytester: pytest.Pytester, record: Record, processes: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_x=MIXED)
    # The processes of a run that is spread over several have records of their own.
    pytester.makeconftest(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.support.report.record import Record\n"
        "def pytest_configure(config):\n"
        "    if hasattr(config, 'workerinput'):\n"
        "        config.pluginmanager.register(Record({'feature': {'1-01'}}))\n"
    )
    pytester.inline_run("--deselect", "test_x.py::test_d", *processes, plugins=[record])
    expected: dict[str, Any] = {
        "test_x.py::test_a[1]": "passed",
        "test_x.py::test_a[2]": "skipped",
        "test_x.py::test_a[3]": "failed",
        "test_x.py::test_a[4]": "failed",
        "test_x.py::test_b": "failed",
        "test_x.py::test_c": "slow",
        "test_x.py::test_d": "left out",
        "test_x.py::test_e": "passed",
    }
    assert record.ends == expected
    assert record.carried["feature"] == {name: [] if name.endswith("e") else ["1-01"] for name in expected}
    assert needs.lacks(record.skips) == f"skipped for lack of: docker (1); {SEE}"


def test_marker_with_an_argument_that_no_table_has_ends_the_run(pytester: pytest.Pytester, record: Record) -> None:
    pytester.makepyfile('import pytest\n\n@pytest.mark.feature("9-99")\ndef test_a(): ...\n')
    assert pytester.inline_run(plugins=[record]).ret == pytest.ExitCode.USAGE_ERROR


def test_what_skipped_tests_lacked_is_one_line() -> None:
    assert needs.lacks([]) == needs.lacks(["Skipped: the kernel has no such thing"]) == ""
    reasons = [
        needs.reason("docker", "no engine: there is no socket"),
        f"Skipped: {needs.reason('mkfs.xfs, xfs_repair', 'not installed')}",
        needs.reason("mkfs.xfs", "the reason has needs of its own: another"),
    ]
    assert needs.lacks(reasons) == (f"skipped for lack of: docker (1), mkfs.xfs (2), xfs_repair (1); {SEE}")


def test_page_has_what_may_be_lacking() -> None:
    page = " ".join((ROOT / "ops" / "docs" / "testing.md").read_text().split())
    said = page.partition("What the tests need")[2][:800]
    for name in (
        "root",
        "docker",
        "strace",
        "mkfs.xfs",
        "fusermount3",
        "/dev/fuse",
        "kcat",
        "chromium",
        "Apache Kafka",
    ):
        assert name in said


def test_nothing_is_skipped_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="CI needs docker: no engine"):
        needs.need("docker", "no engine")
    assert needs.needs("docker", "no engine").args == (False,)
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="needs docker: no engine"):
        needs.need("docker", "no engine")
    assert needs.needs("docker", "no engine").args == (True,)
    assert needs.needs("docker", "").args == (False,)
