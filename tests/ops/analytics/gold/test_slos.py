"""The SLOs of a report: what a file may hold, and the package's own."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from ops.analytics.__main__ import main
from ops.analytics.errors import AnalyticsError
from ops.analytics.gold.slos import Event, Slo, Weight, digest, read_slos
from ops.cli import main as cli
from ops.stack.errors import ExitCode
from tests.support.runs.histories import export, moved

SLO = '[[slo]]\nname = "a"\nevent = "placed"\nobjective = 0.9\n'


def test_every_kind_of_event_has_an_slo_in_the_packages_own_file() -> None:
    found = {slo.event: slo for slo in read_slos()}
    assert set(found) == set(Event) and len(read_slos()) == len(Event)
    assert found[Event.SWAP].seconds == 0.05 and {slo.window_days for slo in found.values()} == {30}


def test_slos_are_read_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "slos.toml"
    path.write_text(SLO + '[[slo]]\nname = "b"\nevent = "cancelled"\nobjective = 0.5\nwindow_days = 7\n'
                    'weight = "bytes"\nseconds = 10\n')  # fmt: skip
    first = Slo("a", Event.PLACED, 0.9)
    second = Slo("b", Event.CANCELLED, 0.5, 7, Weight.BYTES, seconds=10.0)
    assert read_slos(path) == (first, second)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert read_slos(path) == (first, second), "the mark that some editors put first"
    assert digest((first, second)) != digest((second, first))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[slo]\n", "line 1"),
        (SLO + "seconds = \n", "line 5"),
        ("", "the file.slo is missing"),
        ("slo = 1\n", "slo must be a list, not a number"),
        ("slo = []\n", "slo has 0 entries, but must have 1 to 50"),
        ("objectives = 1\n" + SLO, "objectives is not known; known are slo"),
        ("slo = [1]\n", r"slo\[0\] must be an object"),
        (SLO.replace("event", "kind"), r"slo\[0\].event is missing"),
        (SLO.replace("placed", "fast"), r"'fast', but must be one of placed, swap, rate, unattended, cancelled"),
        (SLO.replace("0.9", "1"), r"slo\[0\].objective is 1, but must be between 0 and 1"),
        (SLO.replace("0.9", "99.5"), r"slo\[0\].objective is 99.5"),
        (SLO.replace("0.9", "0"), r"slo\[0\].objective is 0"),
        (SLO.replace("0.9", "nan"), r"slo\[0\].objective is nan"),
        (SLO.replace("0.9", '"99 %"'), r"slo\[0\].objective must be a number"),
        (SLO + "window_days = 1\n", r"slo\[0\].window_days is 1, but must be at least 3"),
        (SLO + "window_days = 0.5\n", r"slo\[0\].window_days must be a whole number"),
        (SLO + 'weight = "topics"\n', r"slo\[0\].weight is 'topics', but must be one of moves, bytes"),
        (SLO + "seconds = 1\n", r"slo\[0\].seconds is not a key of the event placed; allowed are name, event, obj"),
        (SLO.replace("placed", "swap") + "seconds = -1\n", r"slo\[0\].seconds is -1"),
        (SLO.replace('"a"', '""'), r"slo\[0\].name is empty"),
        (SLO + SLO, r"slo\[1\].name is 'a', which an earlier SLO has already"),
    ],
)
def test_bad_file_is_rejected_with_its_line_or_key(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "slos.toml"
    path.write_text(text)
    with pytest.raises(AnalyticsError, match=problem) as raised:
        read_slos(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(AnalyticsError, match=r"none\.toml"):
        read_slos(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(AnalyticsError, match=r"bytes\.toml has no valid SLOs"):
        read_slos(tmp_path / "bytes.toml")


def test_bad_file_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder, out = tmp_path / "slos.toml", tmp_path / "export", tmp_path / "out"
    path.write_text(SLO.replace("0.9", "1.5"))
    export(folder, moved("a"))
    wrong = "slo[0].objective is 1.5, but must be between 0 and 1, without both: 0.99 is 99 %"
    assert main([str(folder), str(out), "--slo", str(path)]) == 1
    assert wrong in capsys.readouterr().err and not out.exists()
    # The command rejects it before it exports or starts Spark.
    call = ["report", "--data", str(tmp_path / "none"), "--out", str(out), "--slo", str(path)]
    assert cli.run(call) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --slo: {path} has no valid SLOs") and wrong in line and not out.exists()
