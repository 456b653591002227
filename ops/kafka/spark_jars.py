"""The jars of Spark's Kafka source and sink, which pyspark does not include."""

from __future__ import annotations

from pathlib import Path

from ops.kafka.jars import cache_folder, fetch_jars

VERSION = "4.2.0"
POM = Path(__file__).with_name("spark-pom.xml")


def ensure_spark_jars() -> list[Path]:
    """Return the jars for Spark's class path, downloaded by Maven if necessary. Raises KafkaUnavailable."""
    libs = fetch_jars(POM, cache_folder(f"spark-kafka-{VERSION}"), f"Spark {VERSION}'s Kafka source")
    return sorted(libs.glob("*.jar"))
