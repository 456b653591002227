"""Why a start is refused, and files of a log directory that can be read but make no sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one log directory (`says`), and what the operator does about it (`advice`)."""

    path: str
    says: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}: {self.says}; {self.advice}"


class StartRefused(Exception):
    """The node does not start (or its directories are not formatted): what, where, why, what next.

    One sentence, or a line per directory where several are to blame; `problems` are the same as values, empty where no
    single directory is to blame.
    """

    problems: tuple[Problem, ...] = ()

    @classmethod
    def because(cls, what: str, problems: Sequence[Problem], of: int) -> StartRefused:
        """Refused for these problems of `of` directories; `what` begins the sentence."""
        bad = len({problem.path for problem in problems})
        if len(problems) == 1:
            refused = cls(f"{what}: {problems[0]}")
        else:
            lines = "".join(f"\n  {problem}" for problem in problems)
            refused = cls(f"{what}: {bad} of {of} directories cannot be used as they are{lines}")
        refused.problems = tuple(problems)
        return refused


class DirectoryInUse(StartRefused):
    """Another process holds the `.lock` of a log directory; `pid` is None when the file does not tell."""

    def __init__(self, path: str, pid: int | None) -> None:
        who = f"process {pid}" if pid is not None else "another process"
        super().__init__(
            f"log directory {path} is in use by {who}, which holds its .lock; "
            f"stop that process or take the directory out of log.dirs"
        )
        self.path = path
        self.pid = pid


class MalformedFile(Exception):
    """A file was read without an I/O error, but is not in its format. The directory itself is not to blame."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path} is malformed: {reason}")
        self.path = str(path)
        self.reason = reason


class MalformedCheckpoint(MalformedFile):
    """An offset checkpoint with a wrong version, a bad line or a wrong count."""


class MalformedMetaProperties(MalformedFile):
    """A meta.properties with an unknown version, or without what its version needs."""


class MalformedPartitionMetadata(MalformedFile):
    """A partition.metadata that does not tell a topic id."""
