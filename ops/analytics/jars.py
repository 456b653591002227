"""The jars of Delta Lake, which pyspark does not include. `python -m ops.analytics.jars` downloads them."""

from __future__ import annotations

import sys
from pathlib import Path

from ops.analytics.errors import DeltaMissing
from ops.kafka.jars import KafkaUnavailable, cache_folder, fetch_jars

VERSION = "4.4.0"
POM = Path(__file__).with_name("delta-pom.xml")


def ensure_delta_jars() -> list[Path]:
    """Return the jars for Spark's class path, downloaded by Maven the first time. Raises DeltaMissing."""
    try:
        libs = fetch_jars(POM, cache_folder(f"spark-delta-{VERSION}"), f"Delta Lake {VERSION}")
    except KafkaUnavailable as error:
        raise DeltaMissing(str(error)) from error
    return sorted(libs.glob("*.jar"))


if __name__ == "__main__":
    try:
        ensure_delta_jars()
    except DeltaMissing as problem:
        sys.exit(f"rehome: {problem}")
