"""The jars that let Spark read from and write to Kafka; pyspark does not bring them."""

from __future__ import annotations

from pathlib import Path

from ops.kafka.broker import cache_folder, fetch_jars

VERSION = "4.2.0"
POM = Path(__file__).with_name("spark-pom.xml")


def ensure_spark_jars() -> list[Path]:
    """The jars for Spark's class path, fetched from Maven the first time. Raises KafkaUnavailable."""
    libs = fetch_jars(POM, cache_folder(f"spark-kafka-{VERSION}"), f"Spark {VERSION}'s Kafka source")
    return sorted(libs.glob("*.jar"))
