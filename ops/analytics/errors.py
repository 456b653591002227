"""Failures of a report: each message is one sentence with the failure, its reason and what to do next."""

from __future__ import annotations


class AnalyticsError(Exception):
    """The report failed. `code` is the exit code of the command line."""

    code = 1


class JavaMissing(AnalyticsError):
    """Spark needs Java 17 or later, and none was found."""

    code = 3


class NoExport(AnalyticsError):
    """The folder contains no readable export."""

    code = 2


class DeltaMissing(AnalyticsError):
    """Delta Lake's jars are not in the cache, and cannot be downloaded."""

    code = 3


class NoTables(AnalyticsError):
    """The folder contains no tables."""

    code = 2


class BadQuery(AnalyticsError):
    """A query that writes, or that Spark rejects."""

    code = 2
