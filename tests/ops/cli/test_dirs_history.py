"""`rehome dirs history`: a node's records of a directory and the runs of its failures, as one timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ops.cli import main as cli
from ops.cli.dirs_history import merge
from ops.stack.errors import ExitCode
from tests.support.nodes.node_harness import running, until


def entry(time: float, event: str = "failed") -> dict[str, Any]:
    return {"time": time, "event": event, "reason": "own", "replicas": [], "count": 0, "became": []}


def run(noticed: float) -> dict[str, Any]:
    return {
        "noticed": noticed,
        "directory": "/b",
        "directory_id": "id-b",
        "reason": "of the run",
        "evidence": None,
        "replicas": [{"topic": "t", "partitions": [0, 2]}],
        "moves": [],
    }


def test_run_belongs_to_the_failure_that_the_node_noted_with_it() -> None:
    found = merge([entry(10.0), entry(20.0, "online"), entry(30.0)], [run(30.004), run(10.002)])
    assert [(event["time"], event["event"], event["run"] is not None) for event in found] == [
        (10.0, "failed", True),
        (20.0, "online", False),
        (30.0, "failed", True),
    ]
    assert [event["reason"] for event in found] == ["own"] * 3


def test_run_that_the_node_knows_no_more_is_an_event_of_its_own() -> None:
    old, new = merge([entry(99.0)], [run(10.5)])
    assert (old["time"], old["event"], old["reason"]) == (10.5, "failed", "of the run")
    assert (old["replicas"], old["count"], old["became"]) == ([["t", 0], ["t", 2]], 2, [])
    assert new["run"] is None


def test_history_is_a_timeline_with_what_became_of_the_replicas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path, dirs=2, extra={"log.dir.health.check.interval.ms": "100"}) as harness:
        harness.create_topic("t", 2)
        harness.settle()
        bad = harness.directory_of("t", 1)

        def shown(*more: str, code: int = ExitCode.PARTIAL) -> tuple[str, str]:
            capsys.readouterr()
            assert cli.run(["dirs", "history", "1", *more, "--bootstrap-server", harness.bootstrap]) == code
            found = capsys.readouterr()
            return found.out, found.err

        out, err = shown(bad)
        assert "online" in out and "nothing is recorded" in out
        assert "no address of Temporal is known" in err, "one source is missing, and the exit code says so as well"
        gone = Path(bad).rename(Path(bad).with_name("pulled-out"))
        until(lambda: not harness.node.dirs.by_path(bad).online)
        out, _ = shown(bad)
        assert "offline (" in out and "t-1 offline, without another in-sync replica" in out and "(disk" in out
        gone.rename(bad)
        harness.node.directory_changes.bring_online(bad)
        found = json.loads(shown(bad, "--json")[0])
        assert (found["node"], found["path"], found["state"], found["signs"]) == (1, bad, "online", {})
        assert [event["event"] for event in found["events"]] == ["failed", "online"]
        failed = found["events"][0]
        assert (failed["replicas"], failed["became"]) == ([["t", 1]], [f"in {bad}"])
        assert failed["evidence"]["verdict"] == "disk" and failed["evidence"]["time"] <= failed["time"]
        _, err = shown("/nowhere", code=ExitCode.REFUSED)
        assert "'/nowhere' is not a log directory of node 1" in err
