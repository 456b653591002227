"""One Spark for all tests, its Kafka source included; starting it costs seconds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.analytics.errors import DeltaMissing, JavaMissing
from ops.analytics.jars import ensure_delta_jars
from ops.analytics.session import find_java, spark_session
from ops.kafka.jars import KafkaUnavailable
from ops.kafka.spark_jars import ensure_spark_jars
from tests.support.needs import need

#: The session of this process, if there is one.
_running: list[Any] = []


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
    try:
        ensure_delta_jars()
    except DeltaMissing as problem:
        need("Delta Lake", str(problem))
    _keep_formatters()
    with spark_session(Path(tmp_path_factory.mktemp("spark")), spark_jars(), tasks=1) as session:
        _running.append(session)
        yield session
        _running.clear()


@pytest.fixture(scope="module", autouse=True)
def forget_tables() -> Iterator[None]:
    """Delta Lake keeps for an hour what it knows of each table: those of many tests fill Spark's memory."""
    yield
    for session in _running:
        session._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def _keep_formatters() -> None:
    """Keep Spark's loggers from formatting as JSON what pytest captures: it gives its one handler to them as well."""
    from pyspark.logger import PySparkLogger

    genuine = PySparkLogger.addHandler

    def add_handler(self: PySparkLogger, handler: logging.Handler) -> None:
        if handler.formatter is None:
            genuine(self, handler)
        else:
            logging.Logger.addHandler(self, handler)

    PySparkLogger.addHandler = add_handler


@pytest.fixture(scope="session")
def spark_kafka(spark: Any) -> Any:
    """The same, where it can reach Kafka."""
    try:
        ensure_spark_jars()
    except KafkaUnavailable as problem:
        need("Spark's Kafka source", str(problem))
    return spark
