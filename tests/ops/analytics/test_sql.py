"""Queries over the tables: what they return, how they are printed, and what is rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ops.analytics import readonly, sql
from ops.analytics.errors import AnalyticsError, BadQuery, NoTables
from ops.analytics.session import spark_session
from ops.docs.queries import QUERIES
from tests.ops.analytics.ingested import SPECS, Made

pytestmark = pytest.mark.spark


def tables(made: Made) -> Path:
    """The folder of the shared tables."""
    return Path(made.lake.root)


@pytest.mark.parametrize("example", QUERIES, ids=[query.question for query in QUERIES])
def test_example_of_the_page_runs(made: Made, example: Any) -> None:
    found = sql.query(made.lake.spark, tables(made), example.text)
    assert found.columns and all(len(row) == len(found.columns) for row in found.rows)
    # Only these two ask for what no run of the sample has, as should be.
    assert found.rows or "open" in example.question


def test_share_of_deadlines_of_fewer_than_twenty_moves_is_too_few_to_say(spark: Any) -> None:
    (example,) = [query for query in QUERIES if "share of the deadlines" in query.question]
    rows = [("2026-11-20", "all", 3, 0, 1.0, 0.4), ("2026-11-21", "all", 19, 1, 0.95, 0.76)]
    rows.append(("2026-11-22", "all", 1999, 1, 0.9995, 0.99))
    columns = "day string, scope string, met long, missed long, attainment double, low double"
    spark.createDataFrame(rows, columns).createOrReplaceTempView("sla_daily")
    try:
        assert [row.percent for row in spark.sql(example.text).collect()] == ["too few to say", "95.0", "99.9"]
    finally:
        spark.catalog.dropTempView("sla_daily")


def test_table_has_its_plain_name_and_that_of_its_layer(made: Made) -> None:
    text = "SELECT count(*) FROM {} WHERE topic LIKE 's_'"
    for name in ("moves", "silver.moves", "SILVER.Moves"):
        assert sql.query(made.lake.spark, tables(made), text.format(name)).rows == ((len(SPECS),),)


def test_values_are_plain_and_times_in_utc(made: Made) -> None:
    columns = "started, day, spent['queued'] AS queued, open, message, array(1, 2) AS list"
    found = sql.query(made.lake.spark, tables(made), f"SELECT {columns} FROM moves WHERE topic = 's0';")
    assert found.columns == ("started", "day", "queued", "open", "message", "list")
    assert found.rows == (("2026-11-20T10:00:00.000000Z", "2026-11-20", 1.5, False, None, [1, 2]),)


def test_table_that_was_never_written_is_empty(made: Made) -> None:
    for name in ("quarantine", "ops.quarantine"):
        assert sql.query(made.lake.spark, tables(made), f"SELECT reason FROM {name}").rows == ()


def test_rows_beyond_the_limit_are_left_out_and_reported(made: Made) -> None:
    found = sql.query(made.lake.spark, tables(made), "SELECT topic FROM moves", limit=2)
    assert (len(found.rows), found.more) == (2, True)
    whole = sql.query(made.lake.spark, tables(made), "SELECT topic FROM moves", limit=0)
    assert len(whole.rows) > 2 and not whole.more


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM moves",
        "DROP TABLE moves",
        "INSERT INTO moves SELECT * FROM moves",
        "WITH a AS (SELECT 1) INSERT INTO moves SELECT * FROM a",
        "FROM moves INSERT INTO runs SELECT 1",
        "INSERT OVERWRITE DIRECTORY '/tmp/x' USING json SELECT 1",
        "CREATE TABLE x AS SELECT 1",
        "SET spark.sql.ansi.enabled = false",
        "MERGE INTO moves USING runs ON true WHEN MATCHED THEN DELETE",
        "ADD JAR '/x.jar'",
        "EXPLAIN DELETE FROM moves",
        "RESTORE TABLE moves TO VERSION AS OF 0",
        "CREATE TABLE x SHALLOW CLONE moves",
        "INSERT INTO IDENTIFIER('mo' || 'ves') SELECT 1",
        "BEGIN SELECT 1; END",
        "EXECUTE IMMEDIATE 'DROP TABLE moves'",
        "DESCRIBE HISTORY moves",
        "SELECT (SELECT max(a) FROM (SELECT TRANSFORM(topic) USING 'cat' AS (a) FROM moves))",
        "WITH a AS (SELECT TRANSFORM(topic) USING 'cat' AS (a) FROM moves) SELECT * FROM a",
    ],
)
def test_query_that_does_more_than_read_is_rejected(made: Made, text: str) -> None:
    with pytest.raises(BadQuery, match="the query is not a SELECT"):
        sql.query(made.lake.spark, tables(made), text)


def test_query_runs_no_program(made: Made, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(BadQuery, match=r"the query is not a SELECT \(TRANSFORM\)"):
        sql.query(made.lake.spark, tables(made), f"SELECT TRANSFORM(topic) USING 'touch {mark}' FROM moves")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        *[
            (f"SELECT {name}('java.lang.System', 'lineSeparator')", f"calls {name}, which runs code")
            for name in ("reflect", "try_reflect", "java_method", "system.builtin.reflect")
        ],
        ("SELECT 1 FROM moves LATERAL VIEW explode(array(reflect('a', 'b'))) AS x", "calls reflect"),
        ("SELECT IDENTIFIER('re' || 'flect')('java.lang.System', 'lineSeparator')", "computes a name"),
        ("SELECT max(1) OVER w FROM moves WINDOW w AS (PARTITION BY reflect('a', 'b'))", "calls reflect"),
        ("SELECT 1 FROM table_changes_by_path('/x', 0)", "the function table_changes_by_path"),
        *[
            (f"SELECT * FROM {kind}.`FILE`", "is not a table that a query can read")
            for kind in ("csv", "text", "delta")
        ],
        ("SELECT 1 WHERE EXISTS (SELECT 1 FROM text.`FILE`)", "is not a table"),
        ("SELECT max(1) OVER w FROM moves WINDOW w AS (ORDER BY (SELECT 1 FROM text.`FILE`))", "is not a table"),
        ("WITH a AS (SELECT * FROM text.`FILE`) SELECT * FROM a", "is not a table"),
        ("DESCRIBE csv.`FILE`", "is not a table"),
    ],
)
def test_query_reads_only_the_tables(made: Made, tmp_path: Path, text: str, part: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a\nb\n")
    with pytest.raises(BadQuery) as error:
        sql.query(made.lake.spark, tables(made), text.replace("FILE", str(secret)))
    assert part.replace("system.builtin.", "") in str(error.value) and "\n" not in str(error.value)


def test_place_that_java_cannot_reach_is_named_in_one_sentence(spark: Any, tmp_path: Path) -> None:
    wanted = '^the Spark job failed: .*No FileSystem for scheme "nofs"$'
    with pytest.raises(AnalyticsError, match=wanted), spark_session(tmp_path):
        sql.query(spark, "nofs://b/tables", "SELECT count(*) FROM moves")


def test_plan_that_reads_a_file_is_rejected_after_its_analysis_as_well(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a\n")
    for text in (f"SELECT * FROM text.`{tmp_path / 'secret'}`", "SELECT reflect('java.lang.System', 'lineSeparator')"):
        with pytest.raises(BadQuery):
            readonly.check_analyzed(spark.sql(text))


@pytest.mark.parametrize(
    "text",
    [
        "SHOW TABLES",
        "DESCRIBE moves",
        "SELECT topic, rank() OVER w FROM moves WINDOW w AS (ORDER BY bytes_total DESC) QUALIFY rank() OVER w < 3",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r",
        "SELECT * FROM (SELECT kind, outcome FROM moves) PIVOT (count(*) FOR kind IN ('disk', 'node'))",
        "SELECT m.topic, one.key FROM silver.moves m LATERAL VIEW explode(map_keys(spent)) one AS key",
        "SELECT kind, outcome, count(*) FROM moves GROUP BY CUBE (kind, outcome) HAVING count(*) > 1 OFFSET 1",
        "SELECT topic FROM moves UNION SELECT workflow_id FROM runs EXCEPT SELECT 'x' INTERSECT VALUES ('y'), ('z')",
        "SELECT a.id FROM moves a, LATERAL (SELECT a.topic AS t) b JOIN range(2) c ON c.id = length(b.t)",
        "FROM moves |> WHERE NOT open |> AGGREGATE count(*) GROUP BY kind",
        "SELECT /*+ BROADCAST(m) */ 1 FROM moves TABLESAMPLE (50 PERCENT) m WHERE topic IN (SELECT chain FROM runs)",
    ],
)
def test_query_that_only_reads_runs(made: Made, text: str) -> None:
    assert sql.query(made.lake.spark, tables(made), text).columns


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "the query is empty"),
        ("SELEC 1", "Syntax error at or near 'SELEC'"),
        ("SELECT nothing FROM moves", "`nothing`"),
        ("SELECT 1 FROM movements", "The tables are ingests, quarantine"),
        ("SELECT 1 / 0", "Division by zero"),
    ],
)
def test_query_that_cannot_run_has_one_sentence(made: Made, text: str, part: str) -> None:
    with pytest.raises(BadQuery) as error:
        sql.query(made.lake.spark, tables(made), text)
    assert part in str(error.value) and "\n" not in str(error.value)


def test_folder_without_tables_is_named(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(NoTables, match="contains no tables: make them with `rehome report`"):
        sql.query(spark, tmp_path, "SELECT 1")


def test_command_prints_a_table_json_and_csv(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    text = "SELECT topic, partition, reason FROM moves WHERE topic IN ('s0', 's1') ORDER BY topic"
    assert sql.main([str(tables(made)), text, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "s0", "partition": 0, "reason": None}, {"topic": "s1", "partition": 0, "reason": None},
    ]  # fmt: skip
    assert sql.main([str(tables(made)), text, "--csv", "--limit", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "topic,partition,reason\ns0,0,\n" and "only the first 1 rows" in shown.err
    assert sql.main([str(tables(made)), text]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["topic", "partition", "reason"], ["s0", "0", "–"], ["s1", "0", "–"],
    ]  # fmt: skip
    assert sql.main([str(tables(made)), "DROP TABLE moves"]) == 2
    assert capsys.readouterr().err.startswith("rehome: the query is not a SELECT")
