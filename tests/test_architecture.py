"""The import arrows between the parts hold, and the tree holds only what belongs there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOP_LEVEL = {
    "pyproject.toml",
    "workflows",
    "activities",
    "storage_node",
    "worker.py",
    "tests",
    "ops",
    "README.md",
    "ARCHITECTURE.md",
    "Makefile",
    "LICENSE",
}


def test_imports_go_one_way() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([str(lint)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_top_level_holds_what_belongs_there() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    ).stdout.splitlines()
    top = {name.split("/")[0] for name in tracked}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL


def test_files_have_one_purpose_each() -> None:
    sources = [p for part in ("storage_node", "activities", "workflows", "ops") for p in (ROOT / part).rglob("*.py")]
    long = {str(p.relative_to(ROOT)): n for p in sources if (n := len(p.read_text().splitlines())) > 450}
    assert not long
