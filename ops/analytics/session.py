"""The Spark session: a cluster's, or a local one without console output or public ports, in UTC, with few tasks."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ops.analytics.errors import AnalyticsError, JavaMissing
from ops.analytics.jars import ensure_delta_jars

OLDEST_JAVA = 17
CORES = 2
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
#: Bytes of exports and tables up to which a second task of each stage costs more than it computes.
SMALL = 8 << 20
APP = "rehome analytics"

#: Spark's log goes to standard error, which is a file: a path in here would need the escapes of three parsers.
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.log.ref = log
appender.log.type = Console
appender.log.name = log
appender.log.target = SYSTEM_ERR
appender.log.layout.type = PatternLayout
appender.log.layout.pattern = %d{ISO8601} %p %c{1}: %m%n%ex
"""


def java_version(java: str) -> int | None:
    """Return the major version that a `java` program reports; None if it cannot be run."""
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', shown)
    return int(found.group(1)) if found else None


def find_java() -> str:
    """Return the `java` that Spark uses: JAVA_HOME's, else the one on the PATH. Raises JavaMissing."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    install = "install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    if not java:
        raise JavaMissing(f"the report needs Java {OLDEST_JAVA} or later, and the PATH contains none: {install}")
    version = java_version(java)
    if version is None:
        raise JavaMissing(f"the report needs Java {OLDEST_JAVA} or later, but {java} cannot be run: {install}")
    if version < OLDEST_JAVA:
        raise JavaMissing(f"the report needs Java {OLDEST_JAVA} or later, but {java} is version {version}: {install}")
    return java


#: What Delta Lake needs of any session; on a cluster its jars come with --packages.
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def cluster_given() -> bool:
    """Return whether a cluster is chosen: by SPARK_REMOTE, by spark-submit, or as spark.master in Spark's defaults."""
    environment = os.environ
    if environment.get("SPARK_REMOTE") or environment.get("MASTER") or environment.get("PYSPARK_GATEWAY_PORT"):
        return True
    if "--master" in environment.get("PYSPARK_SUBMIT_ARGS", ""):
        return True
    folder = environment.get("SPARK_CONF_DIR")
    defaults = Path(folder) / "spark-defaults.conf" if folder else None
    return bool(
        defaults and defaults.is_file() and re.search(r"^\s*spark\.master[\s=]", defaults.read_text(), re.MULTILINE)
    )


@contextlib.contextmanager
def spark_session(
    scratch: Path, jars: Sequence[Path] = (), tasks: int = CORES, *, temporary: bool = False
) -> Iterator[Any]:
    """Provide a SparkSession for the block; an existing session is used and not stopped.

    If a cluster is given, the session is the cluster's. Otherwise Spark runs in this process's machine by the profile
    `local`: it writes its log to `scratch/spark.log` and all its files below `scratch`. `jars` are added to its class
    path, for sources that Spark does not include; `tasks` is the number of partitions that its shuffles have. Errors
    name the log, unless the folder is `temporary`. Raises JavaMissing and DeltaMissing.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        with _one_error(None):
            yield active
        return
    if cluster_given():
        yield from _given_session(scratch)
        return
    find_java()
    delta = ensure_delta_jars()
    scratch.mkdir(parents=True, exist_ok=True)
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    log = scratch / "spark.log"
    settings = scratch / "log4j2.properties"
    settings.write_text(_LOG4J)
    conf = SparkConf(loadDefaults=False).setAll(local_profile(scratch, settings, tasks))
    conf.set("spark.driver.extraClassPath", os.pathsep.join(map(str, [*delta, *jars])))
    _workers_environment()
    with log.open("ab") as noise:
        gateway = launch_gateway(conf, popen_kwargs={"stdout": noise, "stderr": noise})
    try:
        context = SparkContext(conf=conf, gateway=gateway)
        context.setLogLevel("ERROR")
        session = SparkSession(context)
        try:
            with _one_error(None if temporary else log):
                yield session
        finally:
            session.stop()
    finally:
        _end(gateway)


def _given_session(scratch: Path) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(APP)
    if not os.environ.get("SPARK_REMOTE"):
        for name, value in DELTA.items():
            builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    # A query has the locations of tables, in which ${name} stands for itself.
    session.conf.set("spark.sql.variable.substitute", "false")
    try:
        with _one_error(None):
            yield session
    finally:
        session.stop()


@contextlib.contextmanager
def _one_error(log: Path | None) -> Iterator[None]:
    """Turn Spark's errors into one sentence, while the Java process that has their text still runs."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        where = f"; see its log {log}" if log else ""
        raise AnalyticsError(f"the Spark job failed: {_first_line(error)}{where}") from error


def _first_line(error: Any) -> str:
    """Return an error's first line; of one that Java raised and PySpark does not know, that of its first cause."""
    cause = getattr(error, "java_exception", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    lines = str(error if cause is None else cause.toString()).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def tasks_for(*folders: Path) -> int:
    """Return how many partitions the shuffles of a local Spark have if it reads the files of these folders."""
    size = 0
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):
                    size += os.stat(os.path.join(parent, name)).st_size  # noqa: PTH116, PTH118
                if size > SMALL:
                    return CORES
    return 1


def local_profile(scratch: Path, settings: Path, tasks: int = CORES) -> list[tuple[str, str]]:
    """Return the settings of Spark in one process of this machine, with so many partitions in a shuffle."""
    # Small data and a short life: the first compiler and one collector thread start fastest, generated code never pays.
    java = f"-Dlog4j2.configurationFile={settings.absolute().as_uri()} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    # The first compiler's code cache is too small for Spark: cleaning it would take a tenth of the time.
    java += " -XX:ReservedCodeCacheSize=256m"
    options = {
        "spark.app.name": APP,
        **DELTA,
        # Each read of a table is a job of so many tasks, and the default of 50 is for logs of large tables.
        "spark.databricks.delta.snapshotPartitions": "1",
        # A task with few partitions of a table writes them side by side, else it sorts its rows by partition first.
        "spark.sql.maxConcurrentOutputFileWriters": "16",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(CORES),
        "spark.master": f"local[{CORES}]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": java,
        "spark.local.dir": str(_local_dir(scratch)),
        # A query has the paths of tables, in which ${name} stands for itself.
        "spark.sql.variable.substitute": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        SHUFFLE_PARTITIONS: str(tasks),
        "spark.default.parallelism": str(tasks),
        "spark.sql.adaptive.enabled": "false",
        # Each expression in Python would tell Java where it was written, ten calls for one.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.autoBroadcastJoinThreshold": str(64 * 1024 * 1024),
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
    }
    return list(options.items())


def _local_dir(scratch: Path) -> Path:
    """Return the folder of Spark's temporary files. Spark takes a path with a comma for several paths."""
    return Path(tempfile.gettempdir()) if "," in str(scratch) else scratch / "local"


def _workers_environment() -> None:
    """Let Spark's Python workers use this interpreter and find this package, and import nothing from the working
    directory.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    root = str(Path(__file__).resolve().parents[2])
    # An empty entry stands for the working directory.
    paths = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    os.environ["PYTHONPATH"] = os.pathsep.join(paths if root in paths else [root, *paths])
    os.environ["PYTHONSAFEPATH"] = "1"


def _end(gateway: Any) -> None:
    """Stop the Java process and clear Spark's reference to it, so that a later session can start another."""
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
