"""rehome plan generate: exactly one kind of plan, where the plan is written, and what people read about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.cli import main as cli
from ops.cli.plan import generate
from ops.stack.errors import ExitCode
from tests.workflows.model.plans.support import cluster
from workflows.model.plans import document

NOWHERE = ["--bootstrap-server", "127.0.0.1:1"]
#: Broker 1 has everything on one of its two disks, broker 2 nothing.
UNEVEN = cluster(
    {f"t-{number}": ["1:/a"] for number in range(4)},
    sizes={f"t-{number}": 100 for number in range(4)},
    disks=["1:/a", "1:/b", "2:/a", "2:/b"],
    total=1000,
)


@pytest.fixture
def uneven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generate, "view_of", lambda _: UNEVEN)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "pass exactly one of --balance-disks, --balance-brokers"),
        (["--balance-disks", "--drain", "1"], "not --balance-disks and --drain together"),
        (["--balance-brokers", "1"], "--balance-brokers takes no further brokers, but 1 was given"),
        (["--drain", "1:relative"], "'1:relative' is not a valid BROKER[:DIR]"),
        (["--drain", "one"], "'one' is not a valid BROKER[:DIR]"),
        (["--drain", "²"], "is not a valid BROKER[:DIR]"),
        (["--remove-broker", "-1"], "-1 is not a valid broker id"),
        (["--balance-disks", "--output", "/nowhere/at/all.json"], "cannot write the plan to /nowhere/at/all.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_is_one_sentence(
    uneven: None, capsys: pytest.CaptureFixture[str], arguments: list[str], part: str
) -> None:
    assert cli.run(["plan", "generate", *arguments, *NOWHERE]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ") and part in shown.err and shown.err.count("\n") == 1


def test_plan_goes_to_standard_output_and_its_meaning_to_standard_error(
    uneven: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["plan", "generate", "--balance-disks", *NOWHERE]) == 0
    shown = capsys.readouterr()
    assert [each.log_dirs for each in document.parse(shown.out).partitions] == [("/b",), ("/b",)]
    assert "imbalance: 50.0% of the bytes before, 0.0% after the plan" in shown.err
    assert "skipped: broker 2 has no data" in shown.err
    assert "2 partitions, 200 B to copy" in shown.err


def test_plan_goes_to_the_file_and_its_meaning_to_standard_output(
    uneven: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["plan", "generate", "--drain", "1:/a", "--output", "p.json", *NOWHERE]) == 0
    shown = capsys.readouterr()
    assert len(document.parse(Path("p.json").read_text()).partitions) == 4
    assert "check it with: rehome plan check p.json" in shown.out and shown.err == ""


@pytest.mark.parametrize(
    ("arguments", "kind", "nodes"),
    [
        (["--balance-disks", "1"], "balance-disks", {1}),
        (["--balance-brokers"], "balance-brokers", {1, 2}),
        (["--drain", "1"], "drain", {2}),
        (["--add-broker", "2"], "add-broker", {1, 2}),
        (["--remove-broker", "1"], "remove-broker", {2}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_report_as_json_has_the_plan(
    uneven: None, capsys: pytest.CaptureFixture[str], arguments: list[str], kind: str, nodes: set[int]
) -> None:
    assert cli.run(["plan", "generate", *arguments, "--json", *NOWHERE]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], found["kind"], found["cluster_id"]) == (1, kind, UNEVEN.cluster_id)
    planned = document.read(found["plan"]).partitions
    assert {*(node for each in planned for node in each.replicas), *({1} & nodes)} == nodes
    assert found["bytes"] == 100 * found["partitions"] > 0


def test_add_broker_takes_several(uneven: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", "generate", "--add-broker", "2", "7", *NOWHERE]) == ExitCode.REFUSED
    assert capsys.readouterr().err == (
        "error: no plan was made: broker 7 is not registered in the cluster, which has 1, 2\n"
    )


def test_nothing_to_move_writes_no_plan(uneven: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", "generate", "--drain", "2", "--output", "p.json", *NOWHERE]) == 0
    assert "nothing to move: no plan was made" in capsys.readouterr().out
    assert not Path("p.json").exists()
