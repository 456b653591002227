"""The report of a run: verdict, exit code, and the command that repeats it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ops.cli import main
from ops.stack.errors import OpsError
from ops.torture import report, run
from ops.torture.checks.table import CHECKS, check
from ops.torture.report import Report
from ops.torture.run import CHECKS_OF, Options, Torture
from tests.ops.torture.checks import forge, forged_failing
from tests.ops.torture.checks.forged_disks import stuck_run
from tests.ops.torture.checks.forged_records import lost_tail


def made(findings: bool) -> Report:
    evidence = stuck_run(lost_tail(forge.sound())) if findings else forge.sound()
    operations, counts = report.count(evidence)
    return Report(
        7, 2.0, 150.0, False, operations, counts, report.moves(evidence), {"node-1": 3},
        check(evidence), ("something was left out",), "/tmp/kept", "rehome torture --minutes 2 --seed 7",
    )  # fmt: skip


@pytest.mark.parametrize("what", CHECKS_OF)
def test_missing_evidence_names_its_checks(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "GATHER_SECONDS", -1.0)

    def refused() -> list[str]:
        raise OpsError("node-2 does not respond")

    torture = Torture(Options(2.0, 7, folder=tmp_path / "a"), print, print)
    assert torture._trying(refused, list, what) == []
    assert set(torture._missing) == set(CHECKS_OF[what]) <= {each.id for each in CHECKS}
    lacking = replace(made(False), unchecked=torture._missing)
    ids = ", ".join(CHECKS_OF[what])
    left = len(CHECKS) - len(CHECKS_OF[what])
    assert lacking.verdict.endswith(
        f" operations, {left} checks; not checked: {ids} ({what} could not be read: node-2 does not respond)"
    )
    assert replace(made(True), unchecked=torture._missing).verdict.endswith("does not respond)")
    monkeypatch.setattr(Torture, "run", lambda self: lacking)
    assert main.run(["torture", "--data", str(tmp_path / "b")]) == 1
    assert "not checked" in capsys.readouterr().err


def test_empty_evidence_is_reported() -> None:
    sound = forged_failing.with_a_failing_disk(forge.sound())
    for blind, check_id in (({"samples": ()}, "C10"), ({"leaders": ()}, "C15"), ({"faults": ()}, "C9")):
        (sentence,) = report.unseen(replace(sound, **blind))
        assert f": {check_id} saw" in sentence


def test_verdict_is_one_sentence() -> None:
    good = made(False)
    assert good.verdict == f"no violation in {good.operations:,} operations, {len(CHECKS)} checks"
    assert replace(good, interrupted=True).verdict.endswith("interrupted")
    assert made(True).verdict.endswith("(C1, C12)")


@pytest.mark.parametrize(("findings", "code"), [(False, 0), (True, 1)])
def test_command_prints_the_report_and_exits_by_the_verdict(
    findings: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(Torture, "run", lambda self: made(findings))
    assert main.run(["torture", "--minutes", "2", "--seed", "7", "--data", str(tmp_path / "a")]) == code
    told = capsys.readouterr().out
    assert "repeat it with: rehome torture --minutes 2 --seed 7" in told
    assert "note: something was left out" in told
    assert ("VIOLATION C12" in told) == findings
    assert ("no violation in" in told) == (not findings)


def test_command_prints_the_report_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(Torture, "run", lambda self: made(True))
    assert main.run(["torture", "--json", "--data", str(tmp_path / "a")]) == 1
    row = json.loads(capsys.readouterr().out)
    assert {finding["check"] for finding in row["findings"]} == {"C1", "C12"}
    assert row["seed"] == 7 and row["checks"]["C1"]


def test_folder_that_cannot_be_made_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert main.run(["torture", "--data", str(tmp_path / "file" / "below")]) == 1
    told = capsys.readouterr().err
    assert "error: cannot use the folder" in told and "choose another" in told


def test_folder_with_something_in_it_is_left_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    assert main.run(["torture", "--data", str(tmp_path)]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--every", "disk-replaced"], "--every needs ACTION=SECONDS"),
        (["--every", "kill-node=soon"], "--every needs ACTION=SECONDS"),
        (["--every", "kill-node=0"], "the seconds must be a positive number"),
        (["--every", "kill-node=nan"], "the seconds must be a positive number"),
        (["--every", "explode=5"], "this run has no such action; it has "),
        (["--replication-factor", "1", "--every", "kill-leader=5"], "this run has no such action; it has "),
        (["--containers", "--every", "disk-replaced=20"], "disks do not fail in containers"),
    ],
)
def test_action_that_the_run_does_not_have_is_refused(
    capsys: pytest.CaptureFixture[str], given: list[str], says: str
) -> None:
    assert main.run(["torture", *given]) == 2
    assert says in capsys.readouterr().err
