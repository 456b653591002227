"""Small disks whose power can be cut: images on loop devices with a real file system, journal commits only when asked.

The cut is the file systems' own: after it nothing in memory reaches the disk any more, not even the journal. What is
there after the next mount is what a machine would find that lost its power at that moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

#: EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN: _IOR('X', 125, u32); 2 is "without flushing the log".
_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = struct.pack("I", 2)

#: A minute of waiting for one of the few loop devices that a machine has is nothing unusual; ten are.
_LOOP_PATIENCE = 600.0

#: Seconds. The build of the images' base runs with mounts of its own, which keep every file system of that moment alive
#: until it ends: half a minute, several on a busy machine.
_UNMOUNT_PATIENCE = 300.0

_NAME = "crash-disk"  # of images, followed by the process they belong to

MAKE = {
    # Made at once and not by a thread in the background, so that two runs do the same.
    "ext4": ["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K"],
}
#: What each kind takes to be made and to be checked.
PROGRAMS = {"ext4": ["mkfs.ext4", "e2fsck"], "xfs": ["mkfs.xfs", "xfs_repair"]}
SIZE = {"ext4": 96 << 20, "xfs": 320 << 20}  # sparse; XFS makes none below 300 MB
#: `commit` is the longest that ext4 keeps a change in memory, seconds; XFS has its own 30 s, longer than a life here.
OPTIONS = {"ext4": "commit=300", "xfs": "defaults"}


def _run(*command: str, timeout: float = 60.0) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


@dataclass(slots=True)
class Disk:
    """One image with its loop device and mount point."""

    kind: str
    image: Path
    mount_point: Path
    loop: str = ""
    mounted: bool = False

    def make(self) -> None:
        """A new file system on a new image."""
        self.mount_point.mkdir(parents=True, exist_ok=True)
        with self.image.open("wb") as file:
            file.truncate(SIZE[self.kind])
        self._set_up_loop()
        _run(*MAKE[self.kind], self.loop)

    def _set_up_loop(self) -> None:
        deadline = time.monotonic() + _LOOP_PATIENCE
        while True:
            try:
                self.loop = _run("losetup", "--find", "--show", str(self.image))
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def mount(self) -> None:
        """Mount; the file system replays its journal, which is all the repair that there is."""
        _run("mount", "-t", self.kind, "-o", OPTIONS[self.kind], self.loop, str(self.mount_point))
        self.mounted = True

    def unmount(self) -> None:
        """Unmount; waits a little for what a dying process still holds."""
        deadline = time.monotonic() + _UNMOUNT_PATIENCE
        while self.mounted:
            try:
                _run("umount", str(self.mount_point))
                self.mounted = False
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        # A process with mounts of its own may still hold it: mounted again now, it would be the one whose power is cut.
        alive = Path("/sys/fs", self.kind, Path(self.loop).name)
        while alive.exists():
            if time.monotonic() > deadline:
                raise OSError(f"{self.loop} is not let go of, although nothing is mounted on {self.mount_point}")
            time.sleep(0.02)

    def check(self) -> None:
        """Let the file system's own checker look, without changing anything; not mounted. Raises OSError."""
        if self.kind == "ext4":
            _run("e2fsck", "-f", "-n", self.loop)
        else:
            _run("xfs_repair", "-n", self.loop)

    def remove(self) -> None:
        """Nothing of it is left, whatever state it is in."""
        with contextlib.suppress(OSError):
            self.unmount()
        if self.mounted:
            _run("umount", "--lazy", str(self.mount_point))
        if self.loop:
            _run("losetup", "--detach", self.loop)
            self.loop = ""
        self.image.unlink(missing_ok=True)


@contextlib.contextmanager
def disks(kind: str, folder: Path, count: int = 2) -> Iterator[list[Disk]]:
    """Mounted disks below `folder`, gone when the block is left."""
    _sweep()
    made: list[Disk] = []
    try:
        for index in range(count):
            disk = Disk(kind, folder / f"{_NAME}.{os.getpid()}.{index}", folder / f"disk{index}")
            made.append(disk)
            disk.make()
            disk.mount()
        yield made
    finally:
        for disk in made:
            disk.remove()


def _sweep() -> None:
    """Take away what is left of disks whose process is gone, killed before it could do so."""
    for line in _run("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").splitlines():
        loop, _, image = line.partition(" ")
        name, _, rest = Path(image.strip().removesuffix(" (deleted)")).name.partition(".")
        owner = rest.partition(".")[0]
        if name == _NAME and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):
                _run("umount", "--all-targets", loop)
            with contextlib.suppress(OSError):
                _run("losetup", "--detach", loop)


class Switch:
    """Cuts the power of disks; opened beforehand, so that all are cut within microseconds."""

    def __init__(self, mount_points: Sequence[Path]) -> None:
        self._fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in mount_points]

    def cut(self) -> None:
        for fd in self._fds:
            fcntl.ioctl(fd, _SHUTDOWN, _NO_LOG_FLUSH)

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)


def power_off_and_on(made: Sequence[Disk], check: bool = False) -> None:
    """What happens to the disks of a machine whose power was cut when it starts again."""
    for disk in made:
        disk.unmount()
    for disk in made:
        disk.mount()
        if check:
            disk.unmount()
            disk.check()
            disk.mount()
