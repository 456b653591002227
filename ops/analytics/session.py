"""One quiet local Spark: no console noise, no ports that anything else could see, UTC, few tasks."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ops.analytics.errors import AnalyticsError, JavaMissing

OLDEST_JAVA = 17
CORES = 2

_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.append = true
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %c{{1}}: %m%n%ex
"""


def java_version(java: str) -> int | None:
    """The major version that a `java` program reports, None if it cannot be run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found.group(1)) if found else None


def find_java() -> str:
    """The `java` that Spark will use: JAVA_HOME's, else the one on the PATH. Raises JavaMissing."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    install = "install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    if not java:
        raise JavaMissing(f"the report needs Java {OLDEST_JAVA} or later and there is none on the PATH: {install}")
    version = java_version(java)
    if version is None:
        raise JavaMissing(f"the report needs Java {OLDEST_JAVA} or later and {java} cannot be run: {install}")
    if version < OLDEST_JAVA:
        raise JavaMissing(f"the report needs Java {OLDEST_JAVA} or later and {java} is version {version}: {install}")
    return java


@contextlib.contextmanager
def spark_session(scratch: Path, jars: Sequence[Path] = ()) -> Iterator[Any]:
    """A SparkSession for the time of the block; one that is already there is used and left alone.

    Everything that Spark says goes to `scratch/spark.log`, everything it puts down below `scratch`. `jars` are
    added to its class path, for sources that Spark does not bring itself. Raises JavaMissing.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    find_java()
    scratch.mkdir(parents=True, exist_ok=True)
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    log = scratch / "spark.log"
    settings = scratch / "log4j2.properties"
    settings.write_text(_LOG4J.format(log=log))
    conf = SparkConf(loadDefaults=False).setAll(_options(scratch, settings))
    if jars:
        conf.set("spark.driver.extraClassPath", os.pathsep.join(map(str, jars)))
    _workers_environment()
    with log.open("ab") as noise:
        gateway = launch_gateway(conf, popen_kwargs={"stdout": noise, "stderr": noise})
    try:
        context = SparkContext(conf=conf, gateway=gateway)
        context.setLogLevel("ERROR")
        session = SparkSession(context)
        try:
            yield session
        except PySparkException as error:
            # Its text comes from Java, which is about to end.
            raise AnalyticsError(f"Spark could not make the report: {_first_line(error)} (its log: {log})") from error
        finally:
            session.stop()
    finally:
        _end(gateway)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _options(scratch: Path, settings: Path) -> list[tuple[str, str]]:
    # Small data and a short life: the first compiler and one collector thread start fastest, generated code never pays.
    java = f"-Dlog4j2.configurationFile=file:{settings} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    options = {
        "spark.app.name": "rehome analytics",
        "spark.master": f"local[{CORES}]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": java,
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.default.parallelism": str(CORES),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.autoBroadcastJoinThreshold": str(64 * 1024 * 1024),
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
    }
    return list(options.items())


def _workers_environment() -> None:
    """Spark's Python workers are this interpreter and find this package wherever the program was started."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    root = str(Path(__file__).resolve().parents[2])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])


def _end(gateway: Any) -> None:
    """Stop the Java process and forget it, so that a later session can start another."""
    from pyspark import SparkContext

    with contextlib.suppress(Exception):
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=20)
    SparkContext._gateway = None
    SparkContext._jvm = None
