"""The base image: an operating system that can run this checkout's interpreter, which is mounted into it.

A pull is tried first, with a short timeout; where no registry of images is reached, Debian's packages make one
(`debootstrap`, as root). Either is made once per engine, and kept by this user as an archive.
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
#: What the interpreter's modules need besides a minimal system; python3 brings the libraries of an interpreter that is
#: mounted from elsewhere, too.
PACKAGES = ("python3", "ca-certificates")

PULL_SECONDS = 60.0
BUILD_SECONDS = 600.0

Say = Callable[[str], None]


class NoImage(OpsError):
    """The base image could not be had."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the host that a container sees read-only at the same path."""

    path: Path


def ensure(say: Say) -> str:
    """The tag of the base image in the engine that DOCKER_HOST names, made where needed. Raises `NoImage`."""
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
            f"there is no base image: the pull of {name} failed ({pulled}), Debian's packages made none ({built}); "
            f"make an image with Python {sys.version_info.major}.{sys.version_info.minor} reachable as {TAG}"
        )
    return TAG


def mounts(project: Path, *more: Path) -> list[Mount]:
    """What a role needs of the host: the checkout, its virtual environment, the interpreter behind it, and `more`.

    The interpreter of the host's own system (below /usr) is not mounted: the image has one at the same path. A path
    that is a link is followed: what it leads to is mounted where it stands, so that the link works inside as well.
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
    """The program that runs this checkout's code in the image, and the environment it needs. Raises `NoImage`.

    That is our own interpreter, mounted; or, where ours is the system's and the image keeps its own elsewhere, the
    image's of the same version with our packages.
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
    raise NoImage(f"{tag} runs neither {sys.executable} nor {own}: {why}")


def _followed(path: Path) -> list[Path]:
    """A path and what it leads to, where it or a folder above it is a link."""
    path, real = path.absolute(), path.resolve()
    return [path] if real == path else [path, real]


def _pull(name: str) -> str:
    try:
        done = _docker("pull", "--quiet", name, seconds=PULL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer within {PULL_SECONDS:.0f} s"
    return _last(done) if done.returncode else ""


def _build(archive: Path, say: Say) -> str:
    """Make the archive and import it; answers why that did not work, or ""."""
    debootstrap = shutil.which("debootstrap") or shutil.which("debootstrap", path="/usr/sbin:/sbin")
    if debootstrap is None or os.geteuid() != 0:
        return "that takes root and debootstrap"
    say(f"making a base image of Debian's packages ({SUITE}; under a minute)")
    with _work_folder(archive.parent) as work:
        # In a mount namespace of its own, so that what it mounts goes with it however it ends: the folder is removed.
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
    """Run a command that has children of its own: whoever ends it early ends all of them, and waits for that."""
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
