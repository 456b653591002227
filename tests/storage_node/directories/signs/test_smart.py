"""What smartctl reports of a disk, as a sign; recorded reports, shortened to what is read."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from storage_node.directories.signs import smart
from storage_node.directories.signs.smart import Attributes, Reader, disks, parse
from tests.support.nodes.node_harness import until

#: smartctl 7.3, `-j -a`: a hard disk, a SAS disk, an NVMe disk, and a virtual disk.
HARD_DISK: dict[str, Any] = {
    "json_format_version": [1, 0],
    "smartctl": {"version": [7, 3], "argv": ["smartctl", "-j", "-a", "/dev/sda"], "exit_status": 0},
    "device": {"name": "/dev/sda", "info_name": "/dev/sda [SAT]", "type": "sat", "protocol": "ATA"},
    "smart_status": {"passed": True},
    "ata_smart_attributes": {
        "revision": 16,
        "table": [
            {"id": 1, "name": "Raw_Read_Error_Rate", "value": 83, "raw": {"value": 212135904, "string": "212135904"}},
            {"id": 5, "name": "Reallocated_Sector_Ct", "value": 100, "raw": {"value": 0, "string": "0"}},
            {"id": 197, "name": "Current_Pending_Sector", "value": 100, "raw": {"value": 0, "string": "0"}},
        ],
    },
}
SAS_DISK = {
    "device": {"name": "/dev/sdb", "type": "scsi", "protocol": "SCSI"},
    "smart_status": {"passed": True},
    "scsi_grown_defect_list": 12,
    "scsi_percentage_used_endurance_indicator": 3,
}
NVME_DISK = {
    "device": {"name": "/dev/nvme0n1", "type": "nvme", "protocol": "NVMe"},
    "smart_status": {"passed": False, "nvme": {"value": 4}},
    "nvme_smart_health_information_log": {
        "critical_warning": 4,
        "available_spare": 9,
        "percentage_used": 104,
        "media_errors": 17,
    },
}
VIRTUAL_DISK = {
    "smartctl": {
        "exit_status": 1,
        "messages": [{"string": "/dev/vda: Unable to detect device type", "severity": "error"}],
    }
}


def failing() -> dict[str, Any]:
    """The hard disk with sectors that it replaced, and some that it could not read."""
    made: dict[str, Any] = json.loads(json.dumps(HARD_DISK))
    made["ata_smart_attributes"]["table"][1]["raw"]["value"] = 8
    made["ata_smart_attributes"]["table"][2]["raw"]["value"] = 2
    return made


@pytest.mark.parametrize(
    ("report", "attributes", "clause"),
    [
        (HARD_DISK, Attributes(True, 0, 0), ""),
        (failing(), Attributes(True, 8, 2), "8 sectors were reallocated, 2 sectors cannot be read"),
        (SAS_DISK, Attributes(True, 12, percentage_used=3), "12 sectors were reallocated"),
        (
            NVME_DISK,
            Attributes(False, media_errors=17, percentage_used=104),
            "its own health check fails, 17 media errors, 104 % of its rated writes are used",
        ),
        (VIRTUAL_DISK, Attributes(), ""),
        ({"ata_smart_attributes": {"table": [None, {"id": 5, "raw": "?"}]}, "smart_status": 7}, Attributes(), ""),
        ([], Attributes(), ""),
    ],
)
def test_report_becomes_a_clause(report: Any, attributes: Attributes, clause: str) -> None:
    assert parse(json.dumps(report)) == attributes and str(attributes) == clause


@pytest.mark.parametrize("text", [b"", b"smartctl: command failed", b"\xff", b"[" * 100_000])
def test_report_that_is_unreadable_is_none(text: bytes) -> None:
    assert parse(text) == Attributes()


def test_disks_are_those_below_partitions_and_volumes(tmp_path: Path) -> None:
    block, devices = tmp_path / "block", tmp_path / "dev"
    devices.mkdir()
    for name in ("sda", "sdb", "dm-0"):
        (block / name / "queue").mkdir(parents=True)
    for name in ("sda/sda1", "sdb/sdb2"):
        (block / name).mkdir()
        (block / name / "partition").write_text("1\n")
    (block / "dm-0" / "slaves").mkdir()
    for name in ("sda/sda1", "sdb/sdb2"):
        (block / "dm-0" / "slaves" / Path(name).name).symlink_to(block / name)
    for number, name in {"8:1": "sda/sda1", "8:16": "sdb", "253:0": "dm-0"}.items():
        (devices / number).symlink_to(block / name)
    assert disks(os.makedev(8, 1), devices) == ("sda",)
    assert disks(os.makedev(8, 16), devices) == ("sdb",)
    assert disks(os.makedev(253, 0), devices) == ("sda", "sdb")
    assert disks(os.makedev(0, 40), devices) == (), "an overlay or a network's file system"


def test_reader_waits_for_no_disk_and_reads_once_an_hour() -> None:
    now, calls, go_on = [0.0], [0], threading.Event()

    def read(device: int) -> str:
        calls[0] += 1
        go_on.wait(30)
        return f"report {calls[0]} of {device}"

    reader = Reader(read, lambda: now[0])
    assert reader.sign(7) == "", "the first report is under way"
    now[0] = 2 * smart.PERIOD
    assert reader.sign(7) == "" and calls[0] == 1, "a disk that hangs holds one thread"
    go_on.set()
    until(lambda: reader.sign(7) in ("report 1 of 7", "report 2 of 7"))
    until(lambda: reader.sign(7) == "report 2 of 7")
    now[0] += smart.PERIOD - 1
    assert reader.sign(7) == "report 2 of 7" and calls[0] == 2


def test_nothing_is_read_without_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert smart._read(os.makedev(8, 1)) == ""


def test_disk_that_exceeds_the_deadline_has_no_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "smartctl"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(smart, "disks", lambda _: ("sda",))
    monkeypatch.setattr(smart, "DEADLINE", 0.05)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert smart._read(0) == ""
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(failing())}\nEND\nexit 64\n")
    monkeypatch.setattr(smart, "DEADLINE", 30.0)
    assert smart._read(0) == "sda reports: 8 sectors were reallocated, 2 sectors cannot be read"
