"""Apache Kafka's own Java clients in one JVM, spoken to in lines of JSON (Client.java)."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyspark

from ops.kafka.jars import ensure_libs

SOURCE = Path(__file__).with_name("Client.java")
#: What a client tells its user: warnings and errors.
LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %p %c{1} %m%n
"""
PATIENCE = 90.0


class JavaClients:
    """The process; `bootstrap` is where calls go that name no other. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> JavaClients:
        logging = self._folder / "log4j2.properties"
        logging.write_text(LOGGING)
        # Kafka's jars name no logger behind slf4j, Spark's do.
        jars = Path(pyspark.__file__).parent / "jars"
        loggers = [str(p) for name in ("log4j-slf4j2-impl", "slf4j-api", "log4j-") for p in jars.glob(f"{name}*.jar")]
        path = ":".join([*loggers, f"{ensure_libs()}/*"])
        java = shutil.which("java") or "java"
        self._log = self._folder / "clients.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(java, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                    *(f"-Dlog4j2.configurationFile={logging}", "-cp", path, str(SOURCE)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            row = json.loads(line)
            with self._lock:
                waiting = self._waiting.pop(row["id"])
            waiting.set_result(row["answer"])
        for waiting in self._waiting.values():
            waiting.set_exception(AssertionError(f"the Java clients ended: {self._log.read_text()[-2000:]}"))

    def begin(self, bootstrap: str, do: str, **values: Any) -> Future[Any]:
        """Start one command of Client.java; several may be under way."""
        number, future = next(self._numbers), Future[Any]()
        assert self._process.stdin is not None
        with self._lock:
            self._waiting[number] = future
            self._process.stdin.write(json.dumps({"id": number, "do": do, "bootstrap": bootstrap, **values}) + "\n")
            self._process.stdin.flush()
        return future

    def call(self, bootstrap: str, do: str, **values: Any) -> Any:
        """One command of Client.java and its answer."""
        return self.begin(bootstrap, do, **values).result(PATIENCE)

    def warnings(self) -> list[str]:
        """What the clients have warned of since they were started."""
        return [line for line in self._log.read_text().splitlines() if line.startswith(("WARN ", "ERROR "))]


def ok(answer: Any) -> Any:
    """The value of a future that must have succeeded."""
    assert isinstance(answer, dict) and "ok" in answer, answer
    return answer["ok"]
