"""One Spark for all tests, its Kafka source included; starting it costs seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.analytics.errors import JavaMissing
from ops.analytics.session import find_java, spark_session
from ops.kafka.broker import KafkaUnavailable
from ops.kafka.spark_jars import ensure_spark_jars
from tests.support.needs import need


def spark_jars() -> list[Path]:
    """The jars of Spark's Kafka source; none where they cannot be had."""
    try:
        return ensure_spark_jars()
    except KafkaUnavailable:
        return []


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    try:
        find_java()
    except JavaMissing as problem:
        need("Java", str(problem))
    with spark_session(Path(tmp_path_factory.mktemp("spark")), spark_jars()) as session:
        yield session


@pytest.fixture(scope="session")
def spark_kafka(spark: Any) -> Any:
    """The same, where it can reach Kafka."""
    try:
        ensure_spark_jars()
    except KafkaUnavailable as problem:
        need("Spark's Kafka source", str(problem))
    return spark
