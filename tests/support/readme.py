"""The README's code blocks that a test runs: each has a comment above it that names the test."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def block(language: str, test: str) -> str:
    """The one code block of that language that the README says is run by `test`, a path from the root."""
    marked = rf"run by {re.escape(test)} -->\n```{language}\n(.*?)```"
    found = re.findall(marked, README.read_text(), re.DOTALL)
    assert len(found) == 1, f"the README has {len(found)} marked blocks of {language} for {test}"
    return str(found[0])


def commands(test: str) -> list[str]:
    """The shell block's commands, each with its continuation lines."""
    return [line for line in block("sh", test).replace("\\\n", " ").splitlines() if line.strip()]
