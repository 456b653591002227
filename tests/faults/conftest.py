from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.disk import Disk
from tests.faults.node import FaultyNode

_numbers = itertools.count()


@pytest.fixture(scope="package")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Disk, Disk]]:
    """Two faulty disks, mounted once for all tests here."""
    root = tmp_path_factory.mktemp("disks")
    made: list[Disk] = []
    try:
        for name in ("source", "target"):
            made.append(Disk(root, name))
        yield made[0], made[1]
    finally:
        for disk in made:
            disk.close()


@pytest.fixture
def disks(mounted: tuple[Disk, Disk]) -> Iterator[tuple[Disk, Disk]]:
    """The two faulty disks, healthy when a test begins and when it has ended."""
    for disk in mounted:
        disk.heal()
    yield mounted
    for disk in mounted:
        disk.heal()


@pytest.fixture
def start(disks: tuple[Disk, Disk], tmp_path: Path) -> Iterator[Callable[..., FaultyNode]]:
    """Starts nodes with a good directory, one on the source disk and one on the target disk, all new."""
    nodes: list[FaultyNode] = []

    def build(**extra: Any) -> FaultyNode:
        number = next(_numbers)
        node = FaultyNode(tmp_path / f"good-{number}", *disks, f"n{number}", extra)
        nodes.append(node)
        return node

    yield build
    for node in nodes:
        node.source_disk.heal()
        node.target_disk.heal()
        node.end()
