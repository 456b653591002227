"""The effect of a power loss on what a start has found and cut off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition
from tests.simulation.machine import Machine
from tests.simulation.patching import simulated
from tests.simulation.promises import read_all

TP = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=200)
HERE = Path("/sim/a/t-0")


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Return a disk on which a name is durable only after a flush of its directory (POSIX)."""
    machine = Machine("a", names_follow=False)
    with simulated(machine):
        yield machine


def value(number: int) -> bytes:
    return b"%010d" % number


def opened() -> Log:
    return Log.open(HERE, TP, CONFIG, directory="/sim/a")


def append(log: Log, *numbers: int) -> None:
    for number in numbers:
        log.append_as_leader(build_batch([value(number)], timestamp=1), 0)


def after_losses(machine: Machine) -> set[tuple[bytes, ...]]:
    """Return the values that the log may hold after a power loss now."""
    found = set()
    for states in list(machine.power_loss_states()):
        machine.restore(states)
        found.add(tuple(read_all(opened())[2].values()))
    return found


@pytest.mark.parametrize("lost", ["the end of a segment", "bytes in a segment"])
def test_bytes_truncated_at_start_do_not_reappear(machine: Machine, lost: str) -> None:
    log = opened()
    append(log, 0, 1, 2, 3)  # two per segment
    log.flush()
    machine.kill()
    file = HERE / "00000000000000000000.log"
    data = file.read_bytes()
    half = len(data) // 2
    if lost == "the end of a segment":
        file.write_bytes(data[:half])
    else:
        file.write_bytes(data[:half] + b"\x00" * 30 + data[half + 30 :])
    machine.disks["a"].sync()
    log = opened()
    assert log.log_end_offset == 1
    append(log, 11)
    log.flush()
    assert after_losses(machine) == {(value(0), value(11))}


def test_flush_makes_the_names_durable_that_a_start_found(machine: Machine) -> None:
    log = opened()
    log.flush()
    machine.disks["a"].sync()
    append(log, 0, 1, 2, 3)
    machine.kill()
    opened().flush()
    assert after_losses(machine) == {tuple(value(number) for number in range(4))}
