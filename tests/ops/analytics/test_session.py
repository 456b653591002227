"""Which Spark a report runs on: a cluster where one is given, else the local profile."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from ops.analytics.lake.tables import Lake
from ops.analytics.schema import MOVES
from ops.analytics.session import CORES, SMALL, cluster_given, local_profile, tasks_for

GIVEN = ("SPARK_REMOTE", "MASTER", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that gives no cluster."""
    for name in GIVEN:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_local_profile_is_used_where_no_cluster_is_given(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("SPARK_CONF_DIR", str(tmp_path))
    environment.setenv("PYSPARK_SUBMIT_ARGS", "--name x pyspark-shell")
    (tmp_path / "spark-defaults.conf").write_text("# spark.master spark://other:7077\nspark.driver.memory 1g\n")
    assert not cluster_given()
    settings = dict(local_profile(tmp_path, tmp_path / "log4j2.properties"))
    assert settings["spark.master"].startswith("local[") and settings["spark.sql.session.timeZone"] == "UTC"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPARK_REMOTE", "sc://host"), ("MASTER", "yarn"), ("PYSPARK_GATEWAY_PORT", "1"),
        ("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell"),
    ],
)  # fmt: skip
def test_cluster_of_the_environment_is_used(environment: pytest.MonkeyPatch, name: str, value: str) -> None:
    environment.setenv(name, value)
    assert cluster_given()


def test_cluster_of_sparks_defaults_is_used(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text("spark.master   spark://other:7077\n")
    assert cluster_given()


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("a b", "a%20b"), ("o'ut", "o%27ut"), ('"x"', "%22x%22"), ("(v2)", "%28v2%29"), ("dàta", "d%C3%A0ta"),
        ("a,b", "a%2Cb"), ("50%", "50%25"), ("#1", "%231"), ("\\", "%5C"), ("${HOME}", "%24%7BHOME%7D"),
    ],
)  # fmt: skip
def test_local_profile_takes_folders_of_any_name(name: str, encoded: str) -> None:
    scratch = Path("/reports") / name
    settings = dict(local_profile(scratch, scratch / "log4j2.properties"))
    first, *others = settings["spark.driver.extraJavaOptions"].split()
    assert first == f"-Dlog4j2.configurationFile=file:///reports/{encoded}/log4j2.properties"
    assert all(other.startswith("-XX:") for other in others)
    # Spark's list of folders has one entry.
    assert settings["spark.local.dir"] == (tempfile.gettempdir() if "," in name else f"{scratch}/local")


def test_name_of_a_table_quotes_its_folder() -> None:
    assert Lake(None, "/a `b` 'c'").name(MOVES) == f"delta.`/a ``b`` 'c'/{MOVES.path}`"  # type: ignore[arg-type]


def test_few_bytes_are_computed_by_one_task_at_a_time(tmp_path: Path) -> None:
    tables = tmp_path / "tables" / "silver"
    tables.mkdir(parents=True)
    assert tasks_for(tmp_path, tmp_path / "nowhere") == 1
    for name in ("a", "b"):
        with (tables / name).open("wb") as file:
            file.truncate(SMALL // 2)
    assert tasks_for(tmp_path) == 1
    (tables / "c").write_bytes(b"x")
    assert tasks_for(tmp_path / "nowhere", tmp_path) == CORES
    settings = dict(local_profile(tmp_path, tmp_path / "log4j2.properties", tasks=1))
    assert settings["spark.sql.shuffle.partitions"] == settings["spark.default.parallelism"] == "1"
