"""The code blocks of the README and of ops/docs that a test runs: each has a comment above it that names the test."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
CLIENTS = ROOT / "ops" / "docs" / "clients.md"
PAGES = (README, *sorted((ROOT / "ops" / "docs").glob("*.md")))


def block(language: str, test: str) -> str:
    """The one code block of that language that a page says is run by `test`, a path from the root."""
    marked = rf"run by {re.escape(test)} -->\n```{language}\n(.*?)```"
    found = [text for page in PAGES for text in re.findall(marked, page.read_text(), re.DOTALL)]
    assert len(found) == 1, f"README.md and ops/docs have {len(found)} marked blocks of {language} for {test}"
    return str(found[0])


def commands(test: str) -> list[str]:
    """The shell block's commands, each with its continuation lines."""
    return [line for line in block("sh", test).replace("\\\n", " ").splitlines() if line.strip()]


def tracked_pages() -> list[Path]:
    """All pages that git has, wherever they are."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return [ROOT / name for name in sorted(listed.stdout.splitlines()) if (ROOT / name).exists()]
