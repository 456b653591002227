"""A command imports nothing from the folder that it is run in, nor do the processes that it starts."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from ops.analytics import session
from ops.cli import main as cli
from ops.cli import spark
from ops.stack import java
from tests.support.report.tables import ROOT

#: Functions that start another program than Python, or Python with an environment that is tested here.
OTHERS = {
    "ops/cli/sql.py:sql": "spark.settings",
    "ops/faults/disk.py:close": "another program",
    "ops/stack/temporal_server.py:_output": "another program",
}


@pytest.mark.parametrize("command", [["sql", "SELECT 1", "--report", "{}"], ["report", "--export", "{}"]])
def test_modules_in_the_current_folder_are_not_imported(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    here, made = tmp_path / "here", tmp_path / "made"
    here.mkdir()
    (made / "tables").mkdir(parents=True)
    (made / "export").mkdir()
    for name in ("argparse", "calendar", "json"):
        (here / f"{name}.py").write_text(f"open({str(here / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(tmp_path), ""]))
    # The job ends before it starts Java, once it has imported its modules.
    monkeypatch.setattr(java, "find", lambda: tmp_path / "no-java")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "")
    source = made / "export" if command[0] == "report" else made
    assert cli.run([each.format(source) for each in command]) == 1
    told = capfd.readouterr().err
    assert "cannot be run" in told or "contains no export" in told
    assert not (here / "ran").exists()


def test_spark_and_its_workers_import_nothing_from_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    given = os.pathsep.join(["", "/mine", "", "/yours", ""])
    monkeypatch.setenv("PYTHONPATH", given)
    for name in ("PYTHONSAFEPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(java, "find", lambda: Path("/java"))
    settings = spark.settings()
    session._workers_environment()
    for environment in (settings, os.environ):
        assert environment["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "/mine", "/yours"]
        assert environment["PYTHONSAFEPATH"]


@pytest.mark.parametrize(
    ("given", "wanted"), [("C", "C.UTF-8"), ("POSIX", "C.UTF-8"), ("de_DE.UTF-8", None), ("", None)]
)
def test_java_knows_every_letter_of_a_path(monkeypatch: pytest.MonkeyPatch, given: str, wanted: str | None) -> None:
    monkeypatch.setattr(java, "find", lambda: Path("/java"))
    monkeypatch.setenv("LC_ALL", given)
    assert spark.settings().get("LC_ALL") == wanted


def starts_python(tree: ast.AST) -> bool:
    """Return whether a module has the beginning of a command that imports from its working directory."""
    return any(
        isinstance(node, ast.List | ast.Tuple)
        and any(
            ast.unparse(a) == "sys.executable" and ast.unparse(b) in ("'-m'", "'-c'") for a, b in pairwise(node.elts)
        )
        for node in ast.walk(tree)
    )


def starts_without_a_directory(tree: ast.AST) -> Iterator[str]:
    """Return the functions that start a process in whatever the working directory is."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                started = isinstance(node, ast.Call) and ast.unparse(node.func) in (
                    "subprocess.Popen",
                    "subprocess.run",
                )
                if started and "cwd" not in [each.arg for each in node.keywords]:  # type: ignore[attr-defined]
                    yield function.name


def test_processes_run_in_a_directory_of_ours() -> None:
    found = []
    for folder in ("storage_node", "activities", "workflows", "ops"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            if starts_python(tree) or path.is_relative_to(ROOT / "ops" / "demo"):
                found += [f"{path.relative_to(ROOT)}:{name}" for name in starts_without_a_directory(tree)]
    assert set(found) == set(OTHERS), "`python -m` imports from the current folder: pass cwd=ROOT"


def test_process_without_a_directory_is_found() -> None:
    source = "def it():\n    subprocess.run([sys.executable, '-m', 'x'], {})\n"
    for given, functions in (("", ["it"]), ("cwd=ROOT", [])):
        tree = ast.parse(source.format(given))
        assert starts_python(tree) and list(starts_without_a_directory(tree)) == functions
    assert not starts_python(ast.parse("[sys.executable, '-P', '-m', 'x']"))
