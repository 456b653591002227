"""Apache Kafka's own tools for tests: skipped with a reason where they cannot be had, a failure in CI."""

from __future__ import annotations

import subprocess

from ops.kafka.jars import VERSION, KafkaUnavailable, ensure_libs, java_command
from tests.support.needs import need


def require_kafka(version: str = VERSION) -> None:
    """Skip the test without Apache Kafka's jars; in CI that is a failure."""
    try:
        ensure_libs(version=version)
    except KafkaUnavailable as problem:
        need("Apache Kafka", str(problem))


def tool(main: str, *arguments: str, stdin: str | None = None) -> str:
    """What one of Kafka's tools prints; fails the test with its output when it fails."""
    done = subprocess.run(
        java_command(main, *arguments, heap="256m"),
        input=stdin or "",
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
