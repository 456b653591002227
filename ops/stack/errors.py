"""Errors of the stack, the command line and the demo that are printed for the operator, and their exit codes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """The exit codes of `rehome`; the documentation's table is compared with `MEANINGS` by a test."""

    OK = 0
    FAILED = 1
    USAGE = 2
    PARTIAL = 3
    TIMEOUT = 4
    RUNNING = 5
    REFUSED = 6
    INTERRUPTED = 130

    @property
    def word(self) -> str:
        """Return the code's name in JSON: ok, failed, usage, ..."""
        return self.name.lower()


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "the command, or the run that it waited for, failed",
    ExitCode.USAGE: "wrong usage; nothing was done",
    ExitCode.PARTIAL: "the result is printed, but lacks what an unavailable part of the cluster would report",
    ExitCode.TIMEOUT: "no response in time: whether the request takes effect is unknown",
    ExitCode.RUNNING: "the wait has ended, and what was requested is still under way",
    ExitCode.REFUSED: "the cluster, the run or a plan's check refused the request, and has not carried it out",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C; a run continues without the command",
}

#: A last clause with what to do next begins with one of these.
_NEXT = re.compile(
    r"; (?=(?:see|for the format see|pass|or pass|use|run|start|stop|choose|set|write|correct|name|remove|restart|"
    r"repair|reconnect|format|resume|wait|watch|cancel|call|try|split|update|upgrade|install|free|take|keep|add|"
    r"create|make|read|after a|is it|is one|is the|does a|do this|do all|restrict|its log is|to )\b)"
)


@dataclass(frozen=True, slots=True)
class Said:
    """An error's sentence in parts; "" for one that it lacks."""

    what: str
    why: str = ""
    next: str = ""


def parts_of(message: str) -> Said:
    """Return the parts of a sentence that is written as "WHAT: WHY; NEXT"; a part that it lacks is ""."""
    found = _NEXT.search(message)
    sentence, then = (message[: found.start()], message[found.end() :]) if found else (message, "")
    what, _, why = sentence.partition(": ")
    return Said(what.strip(), why.strip(), then.strip())


class OpsError(Exception):
    """An error in one sentence: what failed, where, why, and what to do. Printed without a stack trace.

    `where` is the file, address or run that it is about; "" if the command suffices.
    """

    exit_code = ExitCode.FAILED

    def __init__(self, message: str = "", *, where: str = "") -> None:
        super().__init__(message)
        self.where = where


class UsageError(OpsError):
    """The command's options or arguments are invalid; the command has done nothing."""

    exit_code = ExitCode.USAGE


class PartialAnswer(OpsError):
    """A part of the cluster did not respond; the rest of the result is printed."""

    exit_code = ExitCode.PARTIAL


class ResponseTimeout(OpsError):
    """There was no response in time: the outcome of the request is unknown."""

    exit_code = ExitCode.TIMEOUT


class StillRunning(OpsError):
    """What was requested is still under way at the end of the wait."""

    exit_code = ExitCode.RUNNING


class Refused(OpsError):
    """The cluster, a run or a plan's check refused the request, and has not carried it out."""

    exit_code = ExitCode.REFUSED


def as_json(message: str, code: ExitCode, where: str) -> dict[str, Any]:
    """Return the JSON of an error: version, code, exit_code, message, and its parts what, where, why, next."""
    parts = parts_of(message)
    return {
        "version": 1,
        "code": code.word,
        "exit_code": int(code),
        "message": message,
        "what": parts.what,
        "where": where,
        "why": parts.why,
        "next": parts.next,
    }
