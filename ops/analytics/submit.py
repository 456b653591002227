"""The command line that runs the report on a Spark cluster, and the archive of sources that Spark's workers import.

The driver stays here (deploy mode client): it writes the pages to a folder of this machine. The tables may be anywhere
that Hadoop's file systems reach.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.analytics.errors import AnalyticsError
from ops.analytics.jars import POM

ROOT = Path(__file__).resolve().parents[2]
#: The packages that Spark's workers may import.
PACKAGES = ("storage_node", "activities", "workflows", "ops")
#: The program that the driver runs.
JOB = Path(__file__).with_name("__main__.py")
#: The folder to which Spark's workers unpack the archive of a Python environment.
UNPACKED = "environment"
#: The archive of the sources; zip has no times before this one, and the same sources give the same bytes.
SOURCES, _EPOCH = "rehome.zip", (1980, 1, 1, 0, 0, 0)
#: What Delta Lake's packages name beside the pom's: Spark includes it, or it is not used. Else spark-submit would send
#: 80 MB of other versions to each worker.
_EXCLUDED = (
    *("com.fasterxml.jackson.*:*", "com.github.luben:*", "com.google.code.findbugs:*", "commons-logging:*"),
    *("commons-pool:*", "io.airlift:*", "javax.annotation:*", "org.apache.hadoop:hadoop-client-*"),
    *("org.apache.logging.log4j:*", "org.apache.parquet:*", "org.apache.spark:*", "org.locationtech.jts:*"),
    *("org.openapitools:*", "org.roaringbitmap:*", "org.slf4j:*", "org.xerial.snappy:*"),
)
_MAVEN = {"m": "http://maven.apache.org/POM/4.0.0"}


class NoSparkSubmit(AnalyticsError):
    """Spark's own program that submits a job was not found."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the job runs. `master` is Spark's URL of it, `archive` a packed Python environment for its workers,
    `packages` are Maven coordinates beside Delta Lake's, `conf` are settings of Spark as NAME=VALUE; these come last.
    """

    master: str
    archive: str = ""
    packages: Sequence[str] = ()
    conf: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Submission:
    """A command line, and the folder in which it has to run."""

    command: tuple[str, ...]
    folder: Path

    def shell(self) -> str:
        """Return the line that a shell runs from any folder."""
        return f"cd {shlex.quote(str(self.folder))} && {shlex.join(self.command)}"


def delta_packages() -> list[str]:
    """Return the Maven coordinates of Delta Lake's jars, as the pom has them."""
    found = ET.parse(POM).iterfind(".//m:dependency", _MAVEN)
    parts = ("groupId", "artifactId", "version")
    return [":".join(one.findtext(f"m:{part}", "", _MAVEN) for part in parts) for one in found]


def find_spark_submit(environment: Mapping[str, str] = os.environ) -> Path:
    """Return SPARK_HOME's spark-submit, else that of the installed pyspark. Raises NoSparkSubmit."""
    home = environment.get("SPARK_HOME")
    if home:
        program = Path(home) / "bin" / "spark-submit"
    else:
        spec = importlib.util.find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise NoSparkSubmit("spark-submit was not found: pyspark is not installed; install it or set SPARK_HOME")
        program = Path(spec.origin).parent / "bin" / "spark-submit"
    if not os.access(program, os.X_OK):
        raise NoSparkSubmit(
            f"spark-submit was not found: {program} is not a program; set SPARK_HOME to a Spark's folder"
        )
    return program


def submission(program: Path, cluster: Cluster, scratch: Path, arguments: Sequence[str]) -> Submission:
    """Return the call of spark-submit for the job with these arguments, with what `prepare` writes to `scratch`.

    Without an archive of an environment the workers run the Python of this process's path, which they need to have.
    """
    python = f"./{UNPACKED}/bin/python" if cluster.archive else sys.executable
    settings = [f"spark.pyspark.python={python}", f"spark.pyspark.driver.python={sys.executable}", *cluster.conf]
    return Submission(
        (
            *(str(program), "--master", cluster.master, "--deploy-mode", "client"),
            *("--packages", ",".join([*delta_packages(), *cluster.packages])),
            *("--exclude-packages", ",".join(_EXCLUDED)),
            *("--py-files", str(scratch / SOURCES)),
            *(("--archives", f"{cluster.archive}#{UNPACKED}") if cluster.archive else ()),
            *(word for setting in settings for word in ("--conf", setting)),
            *(str(JOB), *arguments),
        ),
        scratch,
    )


def prepare(scratch: Path) -> None:
    """Write what a submission needs to `scratch`, each file in one step. Raises OSError.

    It is the archive of the sources, and the program by which the driver runs this Python: Spark starts Python beside
    the driver, to list exports, by the same relative path as its workers do.
    """
    program = scratch / UNPACKED / "bin" / "python"
    program.parent.mkdir(parents=True, exist_ok=True)
    with _replaced(program) as temporary:
        temporary.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        temporary.chmod(0o755)
    with _replaced(scratch / SOURCES) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for path in sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py")):
            name = zipfile.ZipInfo(str(path.relative_to(ROOT)), _EPOCH)
            archive.writestr(name, path.read_bytes(), zipfile.ZIP_DEFLATED)


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    yield temporary
    temporary.replace(path)
