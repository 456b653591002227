"""What can keep a report from being made; each says in one sentence what, why and what to do next."""

from __future__ import annotations


class AnalyticsError(Exception):
    """A report could not be made. `code` is the exit code of the command line."""

    code = 1


class JavaMissing(AnalyticsError):
    """Spark needs Java 17 or later, and none was found."""

    code = 3


class NoExport(AnalyticsError):
    """There is no readable export in the folder."""

    code = 2
