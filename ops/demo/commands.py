"""Commands that the demo shows and runs: kept as words, so that a path with a space or a quote stays one word."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Command:
    """`rehome` with these arguments."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        """Return it as a person types it."""
        return shlex.join(["rehome", *self.words])

    @property
    def argv(self) -> list[str]:
        """Return what runs it with this interpreter; for the checkout as the working directory."""
        return [sys.executable, "-m", "ops.cli.main", *self.words]


def rehome(*words: str | int | Path) -> Command:
    return Command(tuple(map(str, words)))
