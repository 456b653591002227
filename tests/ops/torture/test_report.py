"""A run comes to one verdict, an exit code, and a line that repeats it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from ops.cli import main
from ops.stack.errors import OpsError
from ops.torture import report, run
from ops.torture.checks import CHECKS, check
from ops.torture.facts import TroubleFact
from ops.torture.nemesis import Nemesis
from ops.torture.report import Report
from ops.torture.run import CHECKS_OF, Options, Torture
from tests.ops.torture import forge, forged_failing
from tests.ops.torture.forged_disks import stuck_run
from tests.ops.torture.forged_records import lost_tail


def made(findings: bool) -> Report:
    evidence = stuck_run(lost_tail(forge.sound())) if findings else forge.sound()
    operations, counts = report.count(evidence)
    return Report(
        7, 2.0, 150.0, False, operations, counts, report.moves(evidence), {"node-1": 3},
        check(evidence), ("something was left out",), "/tmp/kept", "rehome torture --minutes 2 --seed 7",
    )  # fmt: skip


def test_operations_are_counted_by_what_became_of_them() -> None:
    counts = made(False).counts
    assert counts["sends acknowledged"] == 80
    assert (counts["sends fail"], counts["sends info"]) == (1, 1)
    assert counts["records polled"] == 100
    assert counts["swaps compared byte by byte"] == 1
    assert made(False).moves == {
        "runs completed": 1, "runs canceled": 1, "runs failed": 1,
        "replicas deleted": 1, "replicas failed (TargetFull)": 1,
    }  # fmt: skip
    assert report.replicas(forge.sound()) == {
        "reassignments taken": 2, "reassignments refused": 1, "cancels taken": 1,
        "runs canceled": 1, "runs completed": 1, "leaders' terms seen": 3,
    }  # fmt: skip


@pytest.mark.parametrize("what", CHECKS_OF)
def test_evidence_that_could_not_be_had_names_its_checks(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "GATHER_SECONDS", -1.0)

    def refused() -> list[str]:
        raise OpsError("node-2 does not answer")

    torture = Torture(Options(2.0, 7, folder=tmp_path / "a"), print, print)
    assert torture._trying(refused, list, what) == []
    assert set(torture._missing) == set(CHECKS_OF[what]) <= {each.id for each in CHECKS}
    lacking = replace(made(False), unchecked=torture._missing)
    ids = ", ".join(CHECKS_OF[what])
    left = len(CHECKS) - len(CHECKS_OF[what])
    assert lacking.verdict.endswith(
        f" operations, {left} checks; not checked: {ids} ({what} could not be read: node-2 does not answer)"
    )
    assert replace(made(True), unchecked=torture._missing).verdict.endswith("does not answer)")
    monkeypatch.setattr(Torture, "run", lambda self: lacking)
    assert main.run(["torture", "--data", str(tmp_path / "b")]) == 1
    assert "not checked" in capsys.readouterr().err


def test_what_a_run_has_not_looked_at_is_told() -> None:
    sound = forged_failing.with_a_failing_disk(forge.sound())
    for blind, check_id in (({"samples": ()}, "C10"), ({"leaders": ()}, "C15"), ({"faults": ()}, "C9")):
        (told,) = report.unseen(replace(sound, **blind))
        assert f": {check_id} saw" in told


@pytest.mark.parametrize(("why", "said"), [("", []), ("needs /dev/fuse", ["no disk is made to fail: needs /dev/fuse"])])
def test_a_run_says_at_its_start_and_in_its_report_that_no_disk_fails(
    why: str, said: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ops.torture.roles.missing", lambda: why)
    lines: list[str] = []
    torture = Torture(Options(1.0, 7, folder=tmp_path / "a"), lines.append, print)
    monkeypatch.setattr(torture, "_workload", SimpleNamespace(start=lambda: None))
    torture._torment(cast(Nemesis, SimpleNamespace(run=lambda *_: None)), [])
    assert lines == [*said, "torturing for 1 minutes with seed 7"]
    assert torture._book.problems == [line.replace("is made", "was made") for line in said]


def test_disks_that_failed_beside_other_trouble_alone_are_told() -> None:
    sound = forged_failing.with_a_failing_disk(forge.sound())
    always = [TroubleFact("node-2", forge.at(0), forge.at(20))]
    (told,) = report.unseen(replace(sound, troubles=always))
    assert "C19 saw only" in told


def test_swaps_of_which_none_could_be_compared_are_told() -> None:
    sound = forged_failing.with_a_failing_disk(forge.sound())
    assert report.unseen(sound) == []
    (told,) = report.unseen(replace(sound, swaps=[]))
    assert told.startswith("1 replicas were swapped, and not one")
    assert report.unseen(replace(sound, swaps=[], runs=[])) == []


def test_the_verdict_is_one_sentence() -> None:
    good = made(False)
    assert good.verdict == f"no violation in {good.operations:,} operations, {len(CHECKS)} checks"
    assert replace(good, interrupted=True).verdict.endswith("interrupted")
    assert made(True).verdict.endswith("(C1, C12)")


@pytest.mark.parametrize(("findings", "code"), [(False, 0), (True, 1)])
def test_the_command_tells_it_and_ends_so(
    findings: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(Torture, "run", lambda self: made(findings))
    assert main.run(["torture", "--minutes", "2", "--seed", "7", "--data", str(tmp_path / "a")]) == code
    told = capsys.readouterr().out
    assert "repeat it with: rehome torture --minutes 2 --seed 7" in told
    assert "note: something was left out" in told
    assert ("VIOLATION C12" in told) == findings
    assert ("no violation in" in told) == (not findings)


def test_the_command_tells_it_to_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(Torture, "run", lambda self: made(True))
    assert main.run(["torture", "--json", "--data", str(tmp_path / "a")]) == 1
    row = json.loads(capsys.readouterr().out)
    assert {finding["check"] for finding in row["findings"]} == {"C1", "C12"}
    assert row["seed"] == 7 and row["checks"]["C1"]


def test_a_folder_that_cannot_be_made_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert main.run(["torture", "--data", str(tmp_path / "file" / "below")]) == 1
    told = capsys.readouterr().err
    assert "error: cannot use the folder" in told and "choose another" in told


def test_a_folder_with_something_in_it_is_left_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    assert main.run(["torture", "--data", str(tmp_path)]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "precious").exists()
