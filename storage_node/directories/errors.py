"""Errors of log directories: why a start is refused, and files that are readable but malformed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of one log directory (`says`), and what the operator can do about it (`advice`)."""

    path: str
    says: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}: {self.says}; {self.advice}"


class StartRefused(Exception):
    """The node does not start, or its directories are not formatted: what, where, why, what to do.

    One sentence, or a line per directory if several have problems; `problems` has them as values, and is empty if the
    cause is not a single directory.
    """

    problems: tuple[Problem, ...] = ()

    @classmethod
    def because(cls, what: str, problems: Sequence[Problem], of: int) -> StartRefused:
        """Build the refusal for these problems of `of` directories; `what` begins the sentence."""
        bad = len({problem.path for problem in problems})
        if len(problems) == 1:
            refused = cls(f"{what}: {problems[0]}")
        else:
            lines = "".join(f"\n  {problem}" for problem in problems)
            refused = cls(f"{what}: {bad} of {of} directories cannot be used as they are{lines}")
        refused.problems = tuple(problems)
        return refused


class DirectoryInUse(StartRefused):
    """Another process holds the `.lock` of a log directory; `pid` is None if the file does not have it."""

    def __init__(self, path: str, pid: int | None) -> None:
        who = f"process {pid}" if pid is not None else "another process"
        super().__init__(
            f"log directory {path} is in use by {who}, which holds its .lock; "
            f"stop that process or take the directory out of log.dirs"
        )
        self.path = path
        self.pid = pid


class MalformedFile(Exception):
    """A file that was read without an I/O error does not have its format. The directory itself is healthy."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path} is malformed: {reason}")
        self.path = str(path)
        self.reason = reason


class MalformedCheckpoint(MalformedFile):
    """An offset checkpoint with an unknown version, an invalid line or a wrong count."""


class MalformedMetaProperties(MalformedFile):
    """A meta.properties with an unknown version, or without a property that its version requires."""


class MalformedPartitionMetadata(MalformedFile):
    """A partition.metadata without a valid topic id."""
