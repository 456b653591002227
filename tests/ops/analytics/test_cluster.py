"""The report on a Spark cluster: the command line that spark-submit gets, and the job on a master and two workers."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ops.analytics import submit
from ops.analytics.__main__ import main
from ops.analytics.errors import NoTables
from ops.analytics.job import run
from ops.analytics.lake.tables import Lake
from ops.analytics.schema import TABLES
from ops.analytics.sql import query
from ops.cli import main as cli
from ops.cli import spark as jobs
from ops.stack import java
from ops.stack.errors import ExitCode
from tests.support.runs.histories import export, moved
from tests.support.runs.sample_runs import lane, under_way

#: Settings of a small cluster for few rows, as the local profile has them.
CONF = (
    *("executor.memory=512m", "ui.enabled=false", "driver.host=127.0.0.1", "default.parallelism=2"),
    *("sql.shuffle.partitions=2", "sql.adaptive.enabled=false", "databricks.delta.snapshotPartitions=1"),
    *("sql.codegen.wholeStage=false", "sql.codegen.factoryMode=NO_CODEGEN"),
    "driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m",
    "executor.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m",
)
#: Seconds for a process of Spark to start beside others.
START = 60.0


@pytest.fixture
def call(tmp_path: Path) -> list[str]:
    """A submission of a folder of exports, printed."""
    (tmp_path / "exports").mkdir()
    where = ["--export", str(tmp_path / "exports"), "--out", str(tmp_path / "out"), "--tables", "hdfs://n/rehome"]
    return ["analytics", "submit", "--master", "spark://host:7077", *where, "--print"]


def test_printed_command_line_has_all_that_the_cluster_needs(
    call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "settings", dict)
    assert (
        cli.run([*call, "--conf", "spark.executor.memory=8g", "--packages", "org.apache.hadoop:hadoop-aws:3.4.2"]) == 0
    )
    words = shlex.split(capsys.readouterr().out)
    scratch = tmp_path / "out" / ".spark"
    assert words[:3] == ["cd", str(scratch), "&&"] and Path(words[3]).name == "spark-submit"
    options = {words[at]: words[at + 1] for at in range(4, len(words)) if words[at].startswith("--")}
    assert (options["--master"], options["--deploy-mode"]) == ("spark://host:7077", "client")
    packages = options["--packages"].split(",")
    assert {"io.delta:delta-spark_4.2_2.13:4.4.0", "io.delta:delta-storage:4.4.0"} < set(packages)
    assert packages[-1] == "org.apache.hadoop:hadoop-aws:3.4.2"
    assert options["--conf"] == "spark.executor.memory=8g"  # the last one, so that it overrides
    assert "--archives" not in options and f"spark.pyspark.python={sys.executable}" in words
    assert words[-4:] == [str(tmp_path / "exports"), str(tmp_path / "out"), "--tables", "hdfs://n/rehome"]
    assert {"ops/analytics/lake/source.py", "activities/history/manifest.py", "storage_node/model/sla.py"} <= set(
        zipfile.ZipFile(options["--py-files"]).namelist()
    )
    assert cli.run(call) == 0
    words = shlex.split(capsys.readouterr().out)
    assert cli.run([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(scratch), "command": words[3:]}


def test_packed_environment_is_the_python_of_the_workers_only(
    call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "settings", dict)
    (tmp_path / "env.tar.gz").touch()
    assert cli.run([*call, "--archives", str(tmp_path / "env.tar.gz")]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert words[words.index("--archives") + 1] == f"{tmp_path / 'env.tar.gz'}#environment"
    assert "spark.pyspark.python=./environment/bin/python" in words
    assert f"spark.pyspark.driver.python={sys.executable}" in words


def test_same_sources_are_packed_into_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        submit.prepare(tmp_path / name)
    one, other = ((tmp_path / name / submit.SOURCES).read_bytes() for name in ("a", "b"))
    assert one == other


def test_submission_without_java_or_spark_fails_with_one_sentence(
    call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setattr(java, "find", lambda: Path("/usr"))
    assert cli.run(call) == ExitCode.FAILED
    missing = tmp_path / "nowhere" / "bin" / "spark-submit"
    expected = f"error: spark-submit was not found: {missing} is not a program; set SPARK_HOME to a Spark's folder\n"
    assert capsys.readouterr().err == expected
    monkeypatch.setattr(java, "find", lambda: None)
    assert cli.run(call) == ExitCode.FAILED
    assert re.fullmatch(r"error: Spark needs Java 17 or later and none was found; .*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("option", "value", "part"),
    [
        ("--export", "nowhere", "--export nowhere is not a folder"),
        ("--export", "s3a://b/exports", "exports are read from a path that all of Spark's workers have"),
        ("--archives", "nowhere.tar.gz", "--archives nowhere.tar.gz is not a file"),
        ("--out", "a,b", "must not contain a comma"),
    ],
)
def test_submission_of_what_spark_cannot_read_is_wrong_usage(
    call: list[str], capsys: pytest.CaptureFixture[str], option: str, value: str, part: str
) -> None:
    assert cli.run([*call, option, value]) == ExitCode.USAGE
    assert part in capsys.readouterr().err


def test_submission_is_not_combined_with_a_spark_connect_server(
    call: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    assert cli.run(call) == ExitCode.USAGE
    assert "unset it" in capsys.readouterr().err


def test_job_refuses_exports_at_a_uri_of_another_file_system(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hdfs://n/exports", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("rehome: hdfs://n/exports is not a folder: ")


@pytest.mark.parametrize(
    ("log", "printed", "why"),
    [
        ("26/11/29 01:44:13 INFO A: ended\n", "rehome: no export: why\n26/11/29 01:44:14 WARN B\n", "no export: why"),
        ("Using a profile\n", "Traceback:\n  File x\na.b.SomeError: what\n  left\n", "a.b.SomeError: what"),
        ("26/11/29 01:44:13 ERROR A$B: Reason: no master\n", "a.b.SomeError: None.\n", "Reason: no master"),
        ("Exception in thread main: no\n\tat a.b(C.scala:1)\nUsing a profile\n", "", "Exception in thread main: no"),
        ('Exception in thread "main" org.a.SparkException: which master\n\tat a.b(C:1)\n', "", "which master"),
        ("26/11/29 01:44:13 INFO A: ended\n", "", "no output"),
    ],
)  # fmt: skip
def test_failure_of_a_job_has_its_own_reason_and_not_sparks_log(log: str, printed: str, why: str) -> None:
    assert jobs.reason(log, printed) == why


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_report_of_a_cluster_equals_the_local_one(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exports, here, there = tmp_path / "exports", tmp_path / "here", tmp_path / "there"
    runs = moved("a", sla=30.0), lane(), under_way()
    tables = (tmp_path / "lake").as_uri()
    # A local Spark makes the tables, and the cluster adds to them what is new.
    export(exports, runs[0], runs[2], at=100)
    run(exports, there, tables=tables)
    export(exports, *runs, at=200)
    with cluster(tmp_path / "cluster") as (master, workers):
        code = cli.run(
            [
                *("analytics", "submit", "--master", master, "--export", exports.as_uri(), "--out", str(there)),
                *("--tables", tables, "--json", "--archives", str(environment_of(tmp_path))),
                *(word for setting in CONF for word in ("--conf", f"spark.{setting}")),
            ]
        )
    shown = capfd.readouterr()
    assert code == 0, f"{shown.err}\n{(there / 'spark.log').read_text()[-8000:]}"
    local = run(exports, here)
    summary = json.loads(shown.out)["summary"]
    of_place = {name: summary.pop(name) for name in ("page", "site", "tables")}
    assert of_place["tables"] == tables
    assert summary == {name: value for name, value in local.to_json().items() if name not in of_place}
    ran = [sorted(path.parent.name for path in one.glob("app-*/*/stderr")) for one in workers]
    assert all(ran), "each worker ran an executor"
    assert (there / "site" / "index.html").is_file()
    for table in TABLES:
        if table.layer in ("silver", "gold"):
            found, expected = (Lake(spark, root).read(table).toPandas() for root in (tables, local.tables))
            assert sorted(map(repr, found.values.tolist())) == sorted(map(repr, expected.values.tolist())), table.name
    with pytest.raises(NoTables):
        query(spark, f"{tables}/none", "SELECT count(*) FROM moves")
    counted = query(spark, tables, "SELECT count(*) FROM moves WHERE outcome = 'moved'")
    assert counted.rows == query(spark, local.tables, "SELECT count(*) FROM moves WHERE outcome = 'moved'").rows


def environment_of(folder: Path) -> Path:
    """An archive in which `bin/python` is this process's Python, with its packages and without this one: a packed
    environment that is small.
    """
    program = folder / "packed" / "bin" / "python"
    program.parent.mkdir(parents=True)
    # Without `site` the links to sources that are installed for editing do not count.
    path = f'PYTHONPATH="$PYTHONPATH":{shlex.quote(sysconfig.get_path("purelib"))}'
    program.write_text(f'#!/bin/sh\n{path} exec {shlex.quote(sys.executable)} -S "$@"\n')
    program.chmod(0o755)
    archive = folder / "environment.tar.gz"
    subprocess.run(["tar", "-C", str(folder / "packed"), "-czf", str(archive), "."], check=True)
    return archive


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[Path]]]:
    """A standalone cluster of a master and two workers of one core; yields its URL and the workers' folders."""
    program = submit.find_spark_submit().with_name("spark-class")
    environment = {
        **os.environ,
        **jobs.settings(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false -XX:+UseSerialGC",
    }
    environment.pop("PYTHONPATH", None)  # a worker of a real cluster does not have it
    folder.mkdir()
    with ExitStack() as stack:

        def start(name: str, main_class: str, *arguments: str) -> Callable[[str], re.Match[str]]:
            log = folder / f"{name}.log"
            command = [
                *(str(program), f"org.apache.spark.deploy.{main_class}", "--host", "127.0.0.1", "--port", "0"),
                *("--webui-port", "0", *arguments),
            ]
            with log.open("wb") as noise:
                process = subprocess.Popen(command, stdout=noise, stderr=noise, env=environment, cwd=folder)

            def stop() -> None:
                process.terminate()
                process.wait(timeout=START)

            stack.callback(stop)

            def logged(pattern: str) -> re.Match[str]:
                deadline = time.monotonic() + START
                while not (found := re.search(pattern, log.read_text())):
                    assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                    time.sleep(0.05)
                return found

            return logged

        master = start("master", "master.Master")(r"Starting Spark master at (spark://\S+)")[1]
        workers = [folder / "worker-1", folder / "worker-2"]
        resources = ("--cores", "1", "--memory", "600m")
        ready = [start(one.name, "worker.Worker", *resources, "--work-dir", str(one), master) for one in workers]
        for logged in ready:
            logged("Successfully registered with master")
        yield master, workers
