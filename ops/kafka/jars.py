"""The jars of Apache Kafka and of Spark's Kafka source, downloaded by Maven, and command lines that use them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.stack.errors import OpsError
from ops.stack.programs import Say, last_word, run_with_progress

VERSION = "4.3.1"
#: The older release that plans are tested on.
OLDER_VERSION = "3.9.2"
POM = Path(__file__).with_name("pom.xml")
LOGGING_POM = Path(__file__).with_name("logging-pom.xml")
QUIET_LOGGING = Path(__file__).with_name("log4j2-quiet.properties")
BROKER_LOGGING = Path(__file__).with_name("log4j2-broker.properties")

#: JVM options for throughput, as in Kafka's scripts; and for a fast start and little memory.
SERVER = ("-XX:+UseG1GC",)
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

#: Seconds for Maven to download a set of jars.
DOWNLOAD_SECONDS = 900.0


class KafkaUnavailable(OpsError):
    """Apache Kafka cannot be installed or started; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The `java` program, the class path with Kafka's jars, and Log4j's configuration."""

    java: str
    classpath: str
    logging: str = str(QUIET_LOGGING)

    def command(self, main: str, *arguments: str, heap: str = "1g", options: Sequence[str] = SERVER) -> tuple[str, ...]:
        """Return the command line of one of Kafka's main classes."""
        return (
            *(self.java, f"-Xmx{heap}", *options, f"-Dlog4j2.configurationFile={self.logging}"),
            *("-cp", self.classpath, main, *arguments),
        )


def runtime(version: str = VERSION) -> Runtime:
    """Return the `java` of the PATH with Kafka's jars, downloaded if necessary. Raises KafkaUnavailable."""
    return Runtime(shutil.which("java") or "java", f"{ensure_libs(version=version)}/*")


def logging_runtime(java: str, say: Say) -> Runtime:
    """Return `java` with Kafka's jars and what writes the brokers' logs, downloaded if necessary.

    Without the latter the logs stay empty, which `say` reports. Raises KafkaUnavailable without Kafka's jars.
    """
    libs = ensure_libs(say)
    try:
        binding = fetch_jars(LOGGING_POM, cache_folder("kafka-logging-1"), "Log4j for Apache Kafka", say)
    except KafkaUnavailable as error:
        say(f"the brokers write no logs: {error}")
        return Runtime(java, f"{libs}/*")
    return Runtime(java, f"{libs}/*:{binding}/*", str(BROKER_LOGGING))


def java_command(main: str, *arguments: str, heap: str = "1g", options: Sequence[str] = SERVER) -> list[str]:
    """Return the command line of one of Kafka's main classes. Raises KafkaUnavailable."""
    return list(runtime().command(main, *arguments, heap=heap, options=options))


def libs_folder(version: str = VERSION) -> Path:
    """Return the folder of Kafka's jars: REHOME_KAFKA_LIBS for `VERSION`, else in the user's cache."""
    named = os.environ.get("REHOME_KAFKA_LIBS") if version == VERSION else None
    return Path(named).absolute() if named else cache_folder(f"kafka-{version}")


def cache_folder(name: str) -> Path:
    """Return the folder for a set of jars in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "rehome" / name / "libs"


def ensure_libs(say: Say | None = None, *, version: str = VERSION) -> Path:
    """Return the folder of Kafka's jars, downloaded by Maven if necessary; `say` receives progress messages.

    Raises KafkaUnavailable if Maven is missing or fails.
    """
    return fetch_jars(POM, libs_folder(version), f"Apache Kafka {version}", say, f"-Dkafka.version={version}")


def fetch_jars(pom: Path, libs: Path, what: str, say: Say | None = None, *properties: str) -> Path:
    """Copy the dependencies of `pom` into `libs`, unless they are there; return `libs`. `properties`: of Maven.

    Raises KafkaUnavailable, with `what` in its message, if Maven is missing or fails.
    """
    if (libs / ".complete").exists():
        return libs
    if shutil.which("mvn") is None:
        raise KafkaUnavailable(
            f"the jars of {what} are downloaded with Maven, but mvn is not on the PATH: install maven "
            "(Debian: apt install maven)"
        )
    command = [
        *("mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"),
        *("-DincludeScope=runtime", f"-DoutputDirectory={libs}", *properties),
    ]
    with _one_at_a_time():
        if (libs / ".complete").exists():  # downloaded meanwhile by another process
            return libs
        doing = f"downloading {what} with Maven, once for this user"
        with tempfile.TemporaryDirectory() as folder:
            why = run_with_progress(
                command, {}, Path(folder), DOWNLOAD_SECONDS, doing, say or (lambda line: None), maven_reason
            )
        if why:
            raise KafkaUnavailable(f"the jars of {what} are missing: {why}; see what mvn needs, and try again")
        (libs / ".complete").touch()
    return libs


def maven_reason(output: str, code: int) -> str:
    """Return why Maven failed: the first error in its output, which ends with pointers to its documentation."""
    errors = [line for line in output.splitlines() if line.startswith("[ERROR]")]
    return errors[0].removeprefix("[ERROR]").strip() if errors else last_word(output, code)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Lock the download: concurrent processes would read each other's incomplete files."""
    lock = cache_folder("maven").with_name(".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
