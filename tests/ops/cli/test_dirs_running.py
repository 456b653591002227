"""`rehome dirs online`, `replace`, `add` and `remove`, on a running node, as an operator calls them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.cli import main as cli
from ops.stack.errors import ExitCode
from storage_node.config.node_config import NodeConfig
from storage_node.model.ids import TopicPartition
from tests.support.nodes.node_harness import CLUSTER_ID, Harness, replaced, running, until

QUICK = {"log.dir.health.check.interval.ms": "100"}


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    with running(tmp_path, dirs=2, extra=QUICK) as made:
        made.create_topic("t", 2)
        made.settle()
        yield made


def run(capsys: pytest.CaptureFixture[str], harness: Harness, *arguments: str, code: int = 0) -> tuple[str, str]:
    """What a command prints, and its error."""
    capsys.readouterr()
    assert cli.run(["dirs", *arguments, "--bootstrap-server", harness.bootstrap]) == code
    shown = capsys.readouterr()
    return shown.out, shown.err


@pytest.mark.feature("18-20")
def test_dirs_online_takes_a_repaired_disk_back(harness: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    bad = Path(harness.paths[0])
    gone = bad.rename(bad.with_name("pulled-out"))
    until(lambda: not harness.node.dirs.by_path(bad).online)
    _, error = run(capsys, harness, "online", "1", str(bad), code=ExitCode.REFUSED)
    assert f"log directory {bad} is not online: the directory does not exist; mount its disk" in error
    gone.rename(bad)
    out, _ = run(capsys, harness, "online", "1", str(bad))
    assert out == f"{bad} is online again on node 1, with 1 replicas\n"
    found = json.loads(run(capsys, harness, "online", "1", str(bad), "--json")[0])
    assert (found["node"], found["outcome"], found["replicas"]) == (1, "online", 1)
    _, error = run(capsys, harness, "online", "1", "/nowhere", code=ExitCode.REFUSED)
    assert "'/nowhere' is not a log directory of node 1" in error


@pytest.mark.feature("113-40", "113-36")
def test_dirs_list_prints_the_document_of_the_proposal(harness: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    """KIP-113, kafka-log-dirs: the keys, in this order, and nothing else; of several nodes, "brokers" around it."""
    harness.create_topic("u", 2)
    harness.produce("t", [b"x" * 1000] * 30, 0)
    harness.controller.hold_moves = True
    source, target = harness.directory_of("t", 0), harness.other_directory("t", 0)
    harness.node.engine.create(TopicPartition("t", 0), target, owner="a-run")

    def document(*arguments: str) -> Any:
        return json.loads(run(capsys, harness, "list", *arguments, "--json")[0])

    found = document("--node", "1")
    assert list(found) == ["version", "log_dirs"] and found["version"] == 1
    assert [list(each) for each in found["log_dirs"]] == [["is_live", "path", "partitions"]] * 2
    rows = {(each["path"], row["topic"], row["partition"], row["is_temporary"]): row
            for each in found["log_dirs"] for row in each["partitions"]}  # fmt: skip
    assert all(list(row) == ["topic", "partition", "size", "offset_lag", "is_temporary"] for row in rows.values())
    replica, copy = rows[source, "t", 0, False], rows[target, "t", 0, True]
    size = harness.node.replicas.served[TopicPartition("t", 0)].log.size
    assert (replica["size"], replica["offset_lag"]) == (size, 0)
    assert (copy["size"], copy["offset_lag"]) == (0, 30), "the copy lacks every record"
    assert document()["brokers"] == [{"broker": 1, "log_dirs": found["log_dirs"]}]

    (only,) = document("--node", "1", "--log-dirs", source, "--topics", "u,none")["log_dirs"]
    assert only["path"] == source and {row["topic"] for row in only["partitions"]} <= {"u"}
    _, error = run(capsys, harness, "list", "--log-dirs", "/nowhere", "--json", code=1)
    assert "no log directory '/nowhere'; the log directories are" in error
    harness.node.dirs.by_path(target).fail("an error")
    offline = {each["path"]: each for each in document("--node", "1")["log_dirs"]}[target]
    assert offline == {"is_live": False, "path": target, "partitions": []}
    out, _ = run(capsys, harness, "list", "--log-dirs", target)
    (line,) = [line.split() for line in out.splitlines() if target in line]
    assert (line[2], line[4:]) == ("offline", ["disk", "an", "error"])
    out, _ = run(capsys, harness, "list", "--log-dirs", source)
    assert target.rsplit("/", 1)[1] not in out.split() and "online" in out


def test_dirs_replace_shows_what_is_lost_and_asks(harness: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    bad = harness.directory_of("t", 1)
    replaced(bad)
    until(lambda: not harness.node.dirs.by_path(bad).online)
    _, error = run(capsys, harness, "replace", "1", bad, code=2)
    assert "so their records are lost: t-1" in error or "t-1; none has another in-sync replica" in error
    assert "--yes is required without a terminal to let node 1 replace" in error
    assert not harness.node.dirs.by_path(bad).online
    out, _ = run(capsys, harness, "replace", "1", bad, "--yes")
    assert out == f"{bad} has a new disk on node 1, with 0 replicas\n"
    assert harness.node.dirs.by_path(bad).online


def test_dirs_add_and_remove_rewrite_the_file(
    harness: Harness, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, file = tmp_path / "dàta (v2)", tmp_path / "server.properties"
    text = f"# the node\nnode.id=1\nlog.dirs={','.join(harness.paths)}\nlisteners=PLAINTEXT://127.0.0.1:0\n"
    file.write_text(text)
    file.chmod(0o600)
    added = ",".join([*harness.paths, str(new).replace("à", "\\u00e0")])
    out, _ = run(capsys, harness, "add", "1", str(new), "--config", str(file))
    assert out.splitlines()[-1] == f"{file} has log.dirs={added}"
    assert file.read_text() == text.replace(",".join(harness.paths), added)
    assert NodeConfig.load(file).log_dirs == (*harness.paths, str(new)) and file.stat().st_mode & 0o777 == 0o600
    run(capsys, harness, "add", "1", str(new), "--config", str(file))
    found = json.loads(run(capsys, harness, "remove", "1", str(new), "--config", str(file), "--json")[0])
    assert (found["outcome"], found["config"]) == ("removed", str(file)) and file.read_text() == text


def test_dirs_list_warns_before_a_disk_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(tmp_path, dirs=2, extra={"log.dir.health.check.interval.ms": "3600000"}) as harness:
        directory = harness.node.dirs.directories[1]
        out, _ = run(capsys, harness, "list")
        assert "fail soon" not in out
        for seconds in [0.01] * 20 + [0.5] * 5:
            directory.latency.add(seconds)
        out, _ = run(capsys, harness, "list")
    (line,) = [line for line in out.splitlines() if line.startswith("1 ") and directory.name in line]
    assert "online, slow" in line
    assert f"{directory.name} of node 1 may fail soon: health checks take" in out


def test_directory_that_no_path_has_is_listed_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty one that was taken out of log.dirs, and one whose disk got another id."""
    with running(tmp_path, dirs=3) as harness:
        harness.settle()
        taken_out, changed = (harness.node.dirs.by_path(path) for path in harness.paths[1:])
        until(lambda: harness.node.metadata.image.nodes)
        harness.stop()
        (changed.path / "meta.properties").write_text(f"version=0\nbroker.id=1\ncluster.id={CLUSTER_ID}\n")
        kept = [harness.paths[0], harness.paths[2]]
        harness.paths = kept
        harness.node = harness._new(0)
        harness.start()
        now = harness.node.dirs.by_path(changed.path)
        assert now.online and now.id not in ("", changed.id)
        out, _ = run(capsys, harness, "list")
        lines = {each.id: next(line for line in out.splitlines() if f"the id {each.id}" in line)
                 for each in (taken_out, changed)}  # fmt: skip
        for line in lines.values():
            assert "put it back into log.dirs, or, if it is lost, stop node 1 and run: rehome dirs forget 1" in line
            assert all(path in line for path in kept) and "since 20" in line
        assert f"(it was '{taken_out.path}')" in lines[taken_out.id]
        assert json.loads(run(capsys, harness, "list", "--node", "1", "--json")[0]).keys() == {"version", "log_dirs"}
        assert cli.run(["node", "status", "1", "--bootstrap-server", harness.bootstrap]) == 0
        shown = capsys.readouterr().out
        assert all(line in shown for line in lines.values())
        first = {row["id"]: row["since"] for row in harness.node.status()["missing"]}
        until(lambda: all((Path(path) / "directory-history").exists() for path in kept))
        harness.restart()
        again = {row["id"]: row["since"] for row in harness.node.status()["missing"]}
        assert again == first, "a later start does not count as the beginning"
        harness.stop()
        harness.paths.append(str(taken_out.path))
        harness.node = harness._new(0)
        harness.start()
        assert [row["id"] for row in harness.node.status()["missing"]] == [changed.id]
        events = [row["event"] for row in harness.node.directory_changes.history(str(taken_out.path))["entries"]]
        assert events == ["missing", "online"]
