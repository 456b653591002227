"""kill -9 at one system call of one thread, by strace, with the proof that it happened there.

strace counts `when=` per name of a system call and per traced thread. So a recording run follows all threads and tells
which of their calls touch the log directories; a run that is to die lets its one thread wait at its first step until
strace has attached to it alone. No `--seccomp-bpf`: with it, strace says nothing and sends no signal.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.crash import driver
from tests.crash.driver import BEGUN, GO, THREADS, Life

#: Every call that changes what is on a disk, or brings it there. (Nothing is mapped for writing.)
DURABLE = (
    "write", "pwrite64", "writev", "pwritev", "pwritev2", "fsync", "fdatasync", "sync_file_range", "rename", "renameat",
    "renameat2", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "truncate", "ftruncate", "fallocate", "link",
    "linkat", "symlink", "symlinkat", "open", "openat", "creat", "copy_file_range", "sendfile", "splice",
)  # fmt: skip

_CALL = re.compile(r"^(?:(\d+) +)?(\w+)\((.*)$")
_KILLED = "+++ killed by SIGKILL +++"
_DEATH = 120.0  # seconds until a life that is to die counts as one that does not


@dataclass(frozen=True, slots=True, order=True)
class KillPoint:
    """The `n`-th call named `call` of the `number`-th thread named `thread` in an act; `what` is for people."""

    act: str
    thread: str
    number: int
    call: str
    n: int
    what: str = ""


@dataclass(frozen=True, slots=True)
class Killed:
    """How a life that was to die at a point ended; `proof` is the last call of the thread, "" when it did not die."""

    point: KillPoint
    proof: str


def durable(call: str, arguments: str, root: Path) -> bool:
    """Whether a call changes something below `root`."""
    if call not in DURABLE or str(root) not in arguments:
        return False
    return call not in ("open", "openat") or "O_CREAT" in arguments


def record(life: Life, root: Path) -> list[KillPoint]:
    """All durable calls below `root` in one life, by thread, in the order in which they came."""
    log = life.folder / "strace.log"
    process = driver.start(replace(life, trace=("*", 0)))
    with _attached(life, process, log, ["-f", "-e", f"trace={','.join(DURABLE)}"]):
        process.join(_DEATH)
        assert process.exitcode == 0, f"{life.act} did not come to its end while it was recorded: {process.exitcode}"
    names = {tid: (name, number) for tid, name, number in map(json.loads, _lines(life.folder / THREADS))}
    main = next(tid for tid, who in names.items() if who[0] == "main")
    counts: Counter[tuple[int, str]] = Counter()
    points = []
    for line in _lines(log):
        found = _CALL.match(line)
        if found is None:
            continue
        if f"/{THREADS}>" in found[3]:
            continue  # a thread that introduces itself, which one that is to die has done before it is traced
        tid, call = int(found[1] or main), found[2]
        counts[tid, call] += 1
        if tid in names and durable(call, found[3], root):
            what = f"{call} {_short(found[3], root)}"
            points.append(KillPoint(life.act, *names[tid], call, counts[tid, call], what))
    return points


def kill(life: Life, root: Path, point: KillPoint) -> Killed:
    """Let a life die at a point, and look whether it did."""
    log = life.folder / "strace.log"
    process = driver.start(replace(life, trace=(point.thread, point.number)))
    inject = f"inject={point.call}:signal=SIGKILL:when={point.n}"
    with _attached(life, process, log, ["-e", f"trace={point.call}", "-e", inject]):
        process.join(_DEATH)
    lines = _lines(log) if log.exists() else []
    if process.exitcode != -signal.SIGKILL or len(lines) < 2 or lines[-1] != _KILLED:
        return Killed(point, "")
    found = _CALL.match(lines[-2])
    calls = sum(_CALL.match(line) is not None for line in lines)
    proved = found is not None and found[2] == point.call and durable(found[2], found[3], root) and calls == point.n
    return Killed(point, lines[-2] if proved else "")


@contextlib.contextmanager
def slowed(life: Life, process: BaseProcess, call: str, seconds: float) -> Iterator[None]:
    """While the block runs, the waiting thread's calls named `call` take this long before and after."""
    delay = int(seconds * 1_000_000)
    inject = f"inject={call}:delay_enter={delay}:delay_exit={delay}"
    with _attached(life, process, life.folder / "strace.log", ["-e", f"trace={call}", "-e", inject]):
        yield


@contextlib.contextmanager
def _attached(life: Life, process: BaseProcess, log: Path, arguments: Sequence[str]) -> Iterator[None]:
    """strace on the thread that waits, which then goes on; both are dead when the block is left.

    A life whose thread never comes runs to its end, and the block is entered without strace.
    """
    log.unlink(missing_ok=True)
    tracer: subprocess.Popen[bytes] | None = None
    try:
        begun = life.folder / BEGUN
        deadline = time.monotonic() + _DEATH
        while not begun.exists() and process.is_alive():
            assert time.monotonic() < deadline, "the thread to be traced does not come, nor does the life end"
            time.sleep(0.001)
        if begun.exists():
            tid = begun.read_text()
            errors = log.with_suffix(".err")
            with errors.open("wb") as said:
                tracer = subprocess.Popen(
                    ["strace", "-p", tid, "-y", "-s", "0", "-o", str(log), *arguments], stderr=said
                )
            while b"attached" not in errors.read_bytes() and tracer.poll() is None:
                time.sleep(0.001)
            # A life may come to its end while one of its threads still waits.
            assert tracer.poll() is None or not Path(f"/proc/{tid}").exists(), f"strace: {errors.read_text()}"
            (life.folder / GO).touch()
        yield
        if tracer is not None:
            tracer.wait(60)
    finally:
        if process.is_alive():
            process.kill()
        process.join(60)
        if tracer is not None and tracer.poll() is None:
            tracer.kill()
            tracer.wait()


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()


def _short(arguments: str, root: Path) -> str:
    """The paths below `root` that a call names, without what differs from run to run."""
    paths = re.findall(re.escape(str(root)) + r"/([^\">,]*)", arguments)
    return " -> ".join(re.sub(r"[0-9a-f]{32}|\d{20}", "*", path) for path in dict.fromkeys(paths))
