"""What a disk's own health report (SMART) shows, where smartctl of smartmontools is installed and may read it.

The program is optional: without it, without its rights, or on a device that has no report, there is no sign.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["Attributes", "Reader", "disks", "parse", "sign"]

_DEVICES: Final = Path("/sys/dev/block")
#: Seconds between two reports of a disk, and until a report is given up.
PERIOD: Final = 3600.0
DEADLINE: Final = 30.0
#: Percent of its writes that a flash disk may have used before that is a sign.
WORN: Final = 90
#: ATA attributes: Reallocated_Sector_Ct, Current_Pending_Sector.
_REALLOCATED, _PENDING = 5, 197


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes that predict failures, None where the disk has none: its own verdict, sectors that it replaced,
    sectors that it could not read, errors of its flash, and the percentage of its writes that is used.
    """

    passed: bool | None = None
    reallocated: int | None = None
    pending: int | None = None
    media_errors: int | None = None
    percentage_used: int | None = None

    def __str__(self) -> str:
        """Return a clause for what is wrong; "" for a healthy disk."""
        worn = self.percentage_used if self.percentage_used is not None and self.percentage_used >= WORN else None
        found = (
            "its own health check fails" if self.passed is False else "",
            f"{self.reallocated} sectors were reallocated" if self.reallocated else "",
            f"{self.pending} sectors cannot be read" if self.pending else "",
            f"{self.media_errors} media errors" if self.media_errors else "",
            f"{worn} % of its rated writes are used" if worn is not None else "",
        )
        return ", ".join(each for each in found if each)


def parse(text: str | bytes) -> Attributes:
    """Read what `smartctl -j -a` prints, for disks with ATA, SCSI or NVMe; no attributes where it is anything else."""
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        return Attributes()
    rows = _at(report, "ata_smart_attributes", "table")
    raw = {_at(row, "id"): _number(_at(row, "raw", "value")) for row in rows} if isinstance(rows, list) else {}
    passed = _at(report, "smart_status", "passed")
    grown = _number(_at(report, "scsi_grown_defect_list"))
    worn = _number(_at(report, "nvme_smart_health_information_log", "percentage_used"))
    return Attributes(
        passed if isinstance(passed, bool) else None,
        grown if grown is not None else raw.get(_REALLOCATED),
        raw.get(_PENDING),
        _number(_at(report, "nvme_smart_health_information_log", "media_errors")),
        worn if worn is not None else _number(_at(report, "scsi_percentage_used_endurance_indicator")),
    )


def _at(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def disks(device: int, devices: Path = _DEVICES) -> tuple[str, ...]:
    """Return the names in /dev of the disks below a device number (`stat.st_dev`): the one of a partition, those of a
    RAID or LVM volume; none where the system does not show them.
    """
    return tuple(sorted(_below((devices / f"{os.major(device)}:{os.minor(device)}").resolve())))


def _below(device: Path) -> set[str]:
    if (device / "partition").exists():
        return _below(device.parent)
    try:
        parts = [each.resolve() for each in (device / "slaves").iterdir()]
    except OSError:
        parts = []
    if parts:
        return {name for part in parts for name in _below(part)}
    return {device.name} if (device / "queue").exists() else set()


def _read(device: int) -> str:
    """Return what the disks below a device report. Takes as long as they do, at most `DEADLINE` for each."""
    program = shutil.which("smartctl")
    found: list[str] = []
    for name in disks(device) if program is not None else ():
        command = [str(program), "-j", "-a", f"/dev/{name}"]
        try:
            done = subprocess.run(  # (Its status has a bit for each finding.)
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE, check=False
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if text := str(parse(done.stdout)):
            found.append(f"{name} reports: {text}")
    return "; ".join(found)


@dataclass(slots=True)
class Reader:
    """The newest report of each device. Thread-safe; never waits for a disk: a thread of its own reads each report."""

    read: Callable[[int], str] = _read
    clock: Callable[[], float] = time.monotonic
    _found: dict[int, str] = field(default_factory=dict)
    _due: dict[int, float] = field(default_factory=dict)
    _reading: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sign(self, device: int) -> str:
        """Return what the last report of a device's disks shows, "" for nothing; begin another one when it is due."""
        with self._lock:
            now = self.clock()
            if device not in self._reading and now >= self._due.get(device, now):
                self._due[device] = now + PERIOD
                self._reading.add(device)
                threading.Thread(target=self._look, args=(device,), name=f"smart-{device}", daemon=True).start()
            return self._found.get(device, "")

    def _look(self, device: int) -> None:
        found = ""
        try:
            found = self.read(device)
        finally:
            with self._lock:
                self._found[device] = found
                self._reading.discard(device)


sign: Final = Reader().sign
