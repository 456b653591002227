"""Find or install Java 17 or later, which Spark and Apache Kafka need.

The search order is JAVA_HOME, the PATH, the distribution's folders; without any, root on Debian or Ubuntu installs the
distribution's package. `python -m ops.stack.java` does this and prints Java's home.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ops.stack.errors import OpsError
from ops.stack.programs import Say, last_word, provide

MIN_JAVA = 17
#: In order of preference: a distribution has one or the other.
PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
_JVMS = Path("/usr/lib/jvm")


class NoJava(OpsError):
    """No Java that Spark and Apache Kafka can use is installed, and it cannot be installed automatically."""


def major_version(text: str) -> int | None:
    """Parse the major version in the output of `java -version` ("1.8.0_392" is 8); None for other text."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not found:
        return None
    first, second = int(found[1]), int(found[2] or 0)
    return second if first == 1 else first


def find() -> Path | None:
    """Return the home of an installed Java of at least `MIN_JAVA`, or None."""
    for java in _candidates():
        if _version(java) >= MIN_JAVA:
            return java.resolve().parents[1]
    return None


def ensure(say: Say) -> Path:
    """Return the home of a Java of at least `MIN_JAVA`, installed if necessary. Raises `NoJava`."""
    home = find()
    if home:
        return home
    if not (shutil.which("apt-get") and os.geteuid() == 0):
        raise NoJava(
            f"Spark and Apache Kafka need Java {MIN_JAVA} or later and none was found in JAVA_HOME or on the PATH; "
            f"install one, for example with: sudo apt-get install {PACKAGES[0]}"
        )
    say(f"installing Java with apt-get ({PACKAGES[0]})")
    if _apt("install", "-y", "--no-install-recommends", PACKAGES[0]):
        say("refreshing apt's package lists")
        _apt("update")
        for package in PACKAGES:
            why = _apt("install", "-y", "--no-install-recommends", package)
            if not why:
                break
            say(f"{package} cannot be installed: {why}")
    home = find()
    if home is None:
        raise NoJava(
            f"apt-get could not install {' or '.join(PACKAGES)}; install Java {MIN_JAVA} or later and set JAVA_HOME"
        )
    return home


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    if _JVMS.is_dir():
        yield from sorted(folder / "bin" / "java" for folder in _JVMS.iterdir() if folder.is_dir())


def _version(java: Path) -> int:
    if not os.access(java, os.X_OK):
        return 0
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return major_version(done.stderr + done.stdout) or 0


def _apt(*arguments: str) -> str:
    """Run apt-get; return "" on success, else the last line of its output."""
    command = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120", *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return last_word(done.stderr.strip() or done.stdout, done.returncode) if done.returncode else ""


if __name__ == "__main__":
    raise SystemExit(provide(ensure))
