"""Read log directories from disk: batches, records, folders, markers. Read-only, and without the node."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from ops.torture.checks.facts import Batch, Place, Scan
from storage_node.errors import CorruptRecord
from storage_node.log.batches import batch as batches
from storage_node.replicas import marker as markers

REPLICA = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)")
SWAPPED_AWAY = re.compile(r"(?P<replica>.+)\.[0-9a-f]{32}\.delete")


def place_of(folder: str) -> Place | None:
    """Return the topic name and partition of a replica's folder, None for any other folder."""
    found = REPLICA.fullmatch(folder)
    return (found["topic"], int(found["partition"])) if found else None


def folders(directory: Path) -> tuple[str, ...]:
    """Return the names of the folders in a log directory, sorted."""
    try:
        with os.scandir(directory) as entries:
            return tuple(sorted(entry.name for entry in entries if entry.is_dir()))
    except OSError:
        return ()


def segments(folder: Path) -> list[Path]:
    """Return the segment files of a replica, by base offset."""
    return sorted(folder.glob("*.log"))


def scan(node: int, directory: str, folder: Path, place: Place, *, values: bool = True) -> Scan:
    """Read every batch of a replica, with its records if `values`; invalid batches and CRC mismatches are problems."""
    found: list[Batch] = []
    records: list[tuple[int, str]] = []
    problems: list[str] = []
    size = 0
    for file in segments(folder):
        data = file.read_bytes()
        size += len(data)
        try:
            for position, header in batches.headers(data):
                end = position + header.length
                crc = batches.crc_of(data, position, header.length)
                if crc != header.crc:
                    problems.append(
                        f"the batch at offset {header.base_offset} in {file} of node {node} has CRC "
                        f"{header.crc:#010x}, its bytes have {crc:#010x}"
                    )
                found.append(Batch(header.base_offset, header.last_offset, zlib.crc32(data[position:end])))
                if values:
                    records += _records(data, position, header)
        except (CorruptRecord, IndexError, ValueError) as error:
            problems.append(f"{file} of node {node}: {error}")
    return Scan(node, directory, place, tuple(found), tuple(records), size, tuple(problems))


def live_end(folder: Path) -> tuple[tuple[Batch, ...], int, int]:
    """Return the batches of a replica that the node may be appending to, its first offset and its end.

    An incomplete last batch is omitted.
    """
    found: list[Batch] = []
    base = 0
    for number, file in enumerate(segments(folder)):
        if number == 0:
            base = int(file.stem)
        try:
            data = file.read_bytes()
        except FileNotFoundError:  # retention has deleted the segment meanwhile
            continue
        try:
            for position, header in batches.headers(data):
                digest = zlib.crc32(data[position : position + header.length])
                found.append(Batch(header.base_offset, header.last_offset, digest))
        except CorruptRecord:
            continue
    first = found[0].base if found else base
    return tuple(found), first, found[-1].last + 1 if found else base


def state(folder: Path) -> str:
    """Return one line on a replica's folder: marker, first and last offset, a digest of all batches."""
    found = scan(0, "", folder, ("", 0), values=False)
    try:
        marker = markers.read(folder)
    except markers.MarkerCorrupt as error:
        marker, what = None, str(error)
    else:
        what = f"{marker.state} generation {marker.generation}" if marker else "no marker"
    digest = zlib.crc32(repr(found.batches).encode())
    ends = f"{found.batches[0].base} to {found.batches[-1].last}" if found.batches else "empty"
    return f"{what}, {ends}, {len(found.batches)} batches {digest:#010x}"


def _records(data: bytes, position: int, header: batches.BatchHeader) -> Iterator[tuple[int, str]]:
    """Yield (offset, unique value) of an uncompressed batch's records; the unique value is the value's first word."""
    if header.compression:
        raise ValueError(f"the batch at offset {header.base_offset} is compressed")
    at = position + batches.HEADER_SIZE
    for _ in range(header.count):
        length, start = _varint(data, at)
        at = start + length
        _, after = _varint(data, start + 1)  # timestamp
        delta, after = _varint(data, after)
        key, after = _varint(data, after)
        size, after = _varint(data, after + max(key, 0))
        value = data[after : after + min(max(size, 0), 120)].split(b" ", 1)[0]
        yield header.base_offset + delta, value.decode(errors="replace")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
