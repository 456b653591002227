"""The base image: an operating system for this checkout's interpreter, which is mounted into the container.

The image is pulled, with a short timeout; without access to a registry it is built from Debian's packages
(`debootstrap`, as root) and archived in this user's cache. Either happens once per engine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ops.stack.errors import OpsError
from ops.stack.temporal_server import cache_folder

SUITE = "bookworm"
TAG = f"rehome-base:{SUITE}"
PULL = "python:{version}-slim-" + SUITE
#: The packages that the interpreter's modules need beside a minimal system; python3 includes the libraries of a mounted
#: interpreter.
PACKAGES = ("python3", "ca-certificates")

PULL_SECONDS = 60.0
BUILD_SECONDS = 600.0

Say = Callable[[str], None]


class NoImage(OpsError):
    """The base image can be neither pulled nor built."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the host that is mounted read-only at the same path."""

    path: Path


def ensure(say: Say) -> str:
    """Return the tag of the base image in the engine at DOCKER_HOST, pulled or built if necessary. Raises `NoImage`."""
    if _docker("image", "inspect", TAG).returncode == 0:
        return TAG
    archive = cache_folder().parent / "images" / f"{SUITE}.tar"
    if archive.exists() and _docker("import", str(archive), TAG).returncode == 0:
        return TAG
    name = PULL.format(version=f"{sys.version_info.major}.{sys.version_info.minor}")
    say(f"pulling {name}")
    pulled = _pull(name)
    if not pulled:
        _docker("tag", name, TAG)
        return TAG
    built = _build(archive, say)
    if built:
        raise NoImage(
            f"cannot create the base image: the pull of {name} failed ({pulled}), the build from Debian's packages "
            f"failed ({built}); "
            f"provide an image with Python {sys.version_info.major}.{sys.version_info.minor} as {TAG}"
        )
    return TAG


def mounts(project: Path, *more: Path) -> list[Mount]:
    """Return the host paths that a role needs: the checkout, its virtual environment, the interpreter, and `more`.

    The system's interpreter (below /usr) is not mounted: the image has one at the same path. Targets of links are
    mounted at their own paths, so that the links work inside the container as well.
    """
    wanted = [project, Path(sys.prefix), *more]
    base = Path(sys.base_prefix)
    if base != Path("/usr"):
        wanted.append(base)
    found: list[Mount] = []
    for path in (each for one in wanted for each in _followed(one)):
        if not any(path == each.path or path.is_relative_to(each.path) for each in found):
            found.append(Mount(path))
    return found


def interpreter(tag: str, project: Path) -> tuple[str, dict[str, str]]:
    """Return the interpreter for this checkout in the image, and the environment that it needs. Raises `NoImage`.

    It is this process' interpreter, mounted; if that is the system's and the image has its own at another path, the
    image's interpreter of the same version with this process' packages.
    """
    if Path(sys.base_prefix) != Path("/usr"):
        return sys.executable, {}
    own = f"python{sys.version_info.major}.{sys.version_info.minor}"
    volumes = [word for mount in mounts(project) for word in ("--volume", f"{mount.path}:{mount.path}:ro")]
    why = ""
    for program, settings in ((sys.executable, {}), (own, {"PYTHONPATH": sysconfig.get_path("platlib")})):
        given = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
        done = _docker(
            "run", "--rm", *volumes, *given, tag, program, "-c", "import temporalio.bridge.temporal_sdk_bridge"
        )
        if done.returncode == 0:
            return program, settings
        why = _last(done)
    raise NoImage(f"neither {sys.executable} nor {own} runs in {tag}: {why}")


def _followed(path: Path) -> list[Path]:
    """Return a path, and its resolved path if it contains a link."""
    path, real = path.absolute(), path.resolve()
    return [path] if real == path else [path, real]


def _pull(name: str) -> str:
    try:
        done = _docker("pull", "--quiet", name, seconds=PULL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no response within {PULL_SECONDS:.0f} s"
    return _last(done) if done.returncode else ""


def _build(archive: Path, say: Say) -> str:
    """Build the archive and import it; return the reason of a failure, or ""."""
    debootstrap = shutil.which("debootstrap") or shutil.which("debootstrap", path="/usr/sbin:/sbin")
    if debootstrap is None or os.geteuid() != 0:
        return "it needs root and debootstrap"
    say(f"building a base image from Debian's packages ({SUITE}; under a minute)")
    with _work_folder(archive.parent) as work:
        # In a mount namespace of its own, so that its mounts disappear with it before the folder is removed.
        command = ["unshare", "--mount", debootstrap, "--variant=minbase", f"--include={','.join(PACKAGES)}"]
        try:
            done = _run_whole([*command, SUITE, str(work / "root")], BUILD_SECONDS)
        except subprocess.TimeoutExpired:
            return f"debootstrap did not end within {BUILD_SECONDS:.0f} s"
        if done.returncode:
            return f"debootstrap: {_last(done)}"
        packed = work / "image.tar"
        tar = ["tar", "-C", str(work / "root"), "--exclude=./dev/*", "--exclude=./proc/*", "-cf", str(packed), "."]
        done = subprocess.run(tar, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"tar: {_last(done)}"
        packed.replace(archive)
    done = _docker("import", str(archive), TAG)
    return f"docker import: {_last(done)}" if done.returncode else ""


def _run_whole(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a command with children; on a timeout or interrupt, kill all of them and wait until they have exited."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextmanager
def _work_folder(parent: Path) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _docker(*words: str, seconds: float = BUILD_SECONDS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=seconds, check=False)


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1].strip() if lines else f"exit code {done.returncode}"
