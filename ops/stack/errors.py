"""What a person is told when something of the stack, the command line or the demo cannot go on."""

from __future__ import annotations


class OpsError(Exception):
    """One sentence for a person: what failed, where, why, and what to do next. Never shown with a stack trace."""

    exit_code = 1


class UsageError(OpsError):
    """The request itself cannot be meant: nothing was tried."""

    exit_code = 2
