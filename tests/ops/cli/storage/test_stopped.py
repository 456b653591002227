"""`rehome storage check`, `repair` and `move --offline` on real folders: what is printed, and the exit codes."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ops.cli import main as cli
from ops.disks import offline_move
from ops.disks.aside import Note, NoteKind, make_wrapper
from ops.disks.moving import Room
from storage_node.directories.checkpoints import HIGH_WATERMARKS, OffsetCheckpoint
from storage_node.directories.lock import DirectoryLock
from storage_node.model.ids import TopicPartition
from tests.support.stopped_disks import batches, format_disks, records, tree, write_replica

TP, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
HEX = "0123456789abcdef" * 2


class Broker:
    """A configuration of Apache Kafka over three directories: orders-0 and orders-1 are in the first."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.d1, self.d2, self.d3 = self.disks = [root / name for name in ("d1", "d2", "d3")]
        self.config = root / "server.properties"
        dirs = ",".join(map(str, self.disks))
        self.config.write_text(f"process.roles=broker\nnode.id=1\nlog.dirs={dirs}\n")
        self._capsys = capsys
        format_disks(self.disks)
        write_replica(self.d1, TP, [batches(0, 4), batches(20, 4)])
        write_replica(self.d1, ONE, [batches(0, 4)])

    def run(self, command: str, *arguments: str) -> tuple[int, list[str], str]:
        """Exit code, lines of standard output, standard error."""
        self._capsys.readouterr()
        code = cli.run(["storage", command, "-c", str(self.config), *arguments])
        shown = self._capsys.readouterr()
        assert "Traceback" not in shown.err
        return code, shown.out.splitlines(), shown.err.strip()

    def move(self, *arguments: str) -> tuple[int, list[str], str]:
        return self.run("move", "--offline", *arguments)

    def tree(self) -> dict[str, dict[str, bytes]]:
        return {path.name: {k: v for k, v in tree(path).items() if k != ".lock"} for path in self.disks}


@pytest.fixture
def broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Broker:
    return Broker(tmp_path, capsys)


@contextmanager
def kafka_holds(path: Path) -> Iterator[None]:
    """The lock of Apache Kafka's broker, in another process: a process does not see its own."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    locked, over = context.Event(), context.Event()

    def hold() -> None:
        with (path / ".lock").open("w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            locked.set()
            over.wait(30)

    process = context.Process(target=hold)
    process.start()
    try:
        assert locked.wait(30)
        yield
    finally:
        over.set()
        process.join()


# check


def test_check_of_whole_disks_exits_with_0(broker: Broker) -> None:
    before = broker.tree()
    code, out, err = broker.run("check")
    assert (code, err) == (0, "")
    assert out[0].startswith(f"{broker.d1}: 2 replicas, 12 batches, ") and "stopped cleanly" in out[0]
    assert out[-1] == "no problems"
    assert broker.tree() == before and not list(broker.d1.glob(".lock"))


def test_check_of_a_duplicate_exits_with_1_and_names_the_copy_to_keep(broker: Broker) -> None:
    write_replica(broker.d2, TP, [batches(0, 6)])
    (broker.d3 / f"orders-3.{HEX}-future").mkdir()
    code, out, _ = broker.run("check")
    assert code == 1
    assert "1 problem:" in out and "1 note:" in out
    assert any("Apache Kafka does not start" in line for line in out)
    assert any(f"next: keep {broker.d1}" in line for line in out)
    assert f"    {broker.d1}/orders-0: whole, offsets 0 to 40, leader epochs 0 from offset 0" in out
    assert f"    {broker.d2}/orders-0: whole, offsets 0 to 30, leader epochs 0 from offset 0" in out
    code, out, _ = broker.run("check", "--json")
    found = json.loads("\n".join(out))
    assert code == 1 and found["clean"] is False
    assert found["duplicates"] == [
        {
            "topic": "orders",
            "partition": 0,
            "directories": [str(broker.d1), str(broker.d2)],
            "keep": str(broker.d1),
            "why": f"it is whole up to offset 40; the copy in {broker.d2} ends at offset 30",
        }
    ]
    first = found["directories"][0]["replicas"][0]
    assert (first["log_end_offset"], first["whole"], first["leader_epochs"]) == (40, True, [[0, 0]])


def test_commands_refuse_a_running_broker_with_2(broker: Broker) -> None:
    commands = (
        ("check",),
        ("repair", "--yes"),
        ("move", "--offline", "--from", str(broker.d1), "--to", str(broker.d2)),
    )
    for command in commands:
        with kafka_holds(broker.d2):
            code, _, err = broker.run(*command)
            assert code == 2 and f"{broker.d2} is in use by " in err
        lock = DirectoryLock(broker.d3)
        lock.acquire()
        try:
            code, _, err = broker.run(*command)
            assert code == 2 and f"{broker.d3} is in use by " in err
        finally:
            lock.release()
    assert (broker.d1 / "orders-0").is_dir()


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot be read"), ("node.id=1\n", "log.dirs is missing"), ("node.id=x\n", "node.id=x")],
)
def test_check_of_a_bad_configuration_exits_with_2(broker: Broker, content: str | None, says: str) -> None:
    broker.config.unlink() if content is None else broker.config.write_text(content)
    code, _, err = broker.run("check")
    assert code == 2 and says in err


# repair


def test_repair_shows_asks_and_can_be_taken_back(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    write_replica(broker.d2, TP, [batches(0, 6)])
    before = broker.tree()
    monkeypatch.setattr("typer.confirm", lambda question: False)
    code, out, err = broker.run("repair")
    assert code == 1 and "nothing was changed" in err and broker.tree() == before
    assert out[0] == f"orders-0: keep {broker.d1}/orders-0" and out[2] == f"  set aside {broker.d2}/orders-0"
    code, out, _ = broker.run("repair", "--yes")
    assert code == 0
    (aside,) = broker.d2.glob("orders-0.*-stray/orders-0")
    assert out[-1] == f"orders-0: set aside as {aside}"
    code, out, _ = broker.run("check")
    assert code == 0 and any("rehome has set aside" in line for line in out)
    assert broker.run("repair", "--yes")[:2] == (0, ["nothing to repair: no replica is in several directories"])
    code, out, _ = broker.run("repair", "--undo", "--yes")
    assert (code, out[-1]) == (0, f"taken back: {broker.d2}/orders-0")
    assert broker.tree() == before
    assert broker.run("repair", "--undo", "--yes")[:2] == (0, ["nothing to undo: no copy is set aside"])


def test_repair_leaves_what_the_copies_do_not_decide_to_the_operator(broker: Broker) -> None:
    write_replica(broker.d2, TP, [batches(0, 4, size=41)])
    before = broker.tree()
    code, out, _ = broker.run("repair", "--yes")
    assert code == 1 and out[0].startswith("undecided: orders-0: ") and broker.tree() == before
    code, _, err = broker.run("repair", "--yes", "--keep", f"orders-0={broker.d3}")
    assert code == 2 and "has no copy in" in err
    assert broker.run("repair", "--keep", "orders-0")[0] == 2
    assert broker.run("repair", "--keep", f"orders-1={broker.d1}")[0] == 2
    assert broker.run("repair", "--undo", "--keep", f"orders-0={broker.d2}")[0] == 2
    assert broker.tree() == before
    code, _, _ = broker.run("repair", "--yes", "--keep", f"orders-0={broker.d2}")
    assert code == 0 and not (broker.d1 / "orders-0").exists()


def test_undo_takes_back_what_was_set_aside_last(broker: Broker) -> None:
    """A second move, back to the first directory, was killed as well, after the first had been repaired."""
    write_replica(broker.d2, TP, [batches(0, 6)])
    assert broker.run("repair", "--yes")[0] == 0
    write_replica(broker.d2, TP, [batches(0, 10)])
    write_replica(broker.d3, TP, [batches(0, 9)])
    before = broker.tree()
    code, out, _ = broker.run("repair", "--yes")
    assert code == 0 and f"orders-0: keep {broker.d2}/orders-0" in out
    assert broker.run("repair", "--undo", "--yes")[0] == 0
    assert broker.tree() == before


def test_undo_leaves_a_replica_that_exists_again(broker: Broker) -> None:
    write_replica(broker.d2, TP, [batches(0, 6)])
    broker.run("repair", "--yes")
    write_replica(broker.d2, TP, [batches(0, 1)])
    code, out, _ = broker.run("repair", "--undo", "--yes")
    assert code == 1 and out[0].startswith("left: ") and "remove it first" in out[0]


def test_repair_of_a_topic_with_a_long_name_is_taken_back(broker: Broker) -> None:
    long = TopicPartition("t" * 249, 0)
    write_replica(broker.d1, long, [batches(0, 2)])
    write_replica(broker.d2, long, [batches(0, 1)])
    before = broker.tree()
    assert broker.run("repair", "--yes")[0] == 0
    assert not (broker.d2 / str(long)).exists()
    assert broker.run("repair", "--undo", "--yes")[0] == 0
    assert broker.tree() == before


# move


def test_move_takes_a_replica_with_its_offsets(broker: Broker) -> None:
    before = records(broker.d1 / "orders-0")
    code, out, err = broker.move("--replica", "orders-0", "--to", str(broker.d2))
    assert (code, err) == (0, "")
    (aside,) = broker.d1.glob("orders-0.*-stray/orders-0")
    assert out == [f"orders-0: moved from {broker.d1} to {broker.d2}", f"  its source is set aside as {aside}"]
    assert records(broker.d2 / "orders-0") == records(aside) == before
    assert OffsetCheckpoint(broker.d2, HIGH_WATERMARKS).read() == {TP: 40}
    assert OffsetCheckpoint(broker.d1, HIGH_WATERMARKS).read() == {ONE: 20}
    assert broker.run("check")[0] == 0
    assert broker.move("--replica", "orders-0", "--to", str(broker.d2))[:2] == (
        0,
        ["orders-0: is in a target directory already"],
    )


def test_move_of_a_whole_disk_spreads_its_replicas(broker: Broker) -> None:
    (broker.d1 / "__cluster_metadata-0").mkdir()
    code, out, _ = broker.move("--from", str(broker.d1), "--to", f"{broker.d2},{broker.d3}", "--remove-source")
    assert code == 0
    assert out[-2].startswith(f"left: {broker.d1}/__cluster_metadata-0")
    assert f"take {broker.d1} out of log.dirs" in out[-1]
    assert [p.name for p in broker.d1.iterdir() if p.is_dir()] == ["__cluster_metadata-0"]
    there = sorted(p.name for disk in (broker.d2, broker.d3) for p in disk.iterdir() if p.is_dir())
    assert there == ["orders-0", "orders-1"]
    assert broker.move("--from", str(broker.d1), "--to", str(broker.d2))[0] == 0


def test_move_leaves_a_damaged_replica_and_moves_the_others(broker: Broker) -> None:
    path = broker.d1 / "orders-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    code, out, _ = broker.move("--from", str(broker.d1), "--to", str(broker.d2))
    assert code == 1
    assert (broker.d1 / "orders-0").is_dir() and (broker.d2 / "orders-1").is_dir()
    assert any(line.startswith("not moved: orders-0: ") and "damaged batch" in line for line in out)
    # Once the operator has restored it, the same command goes on.
    data[-30] ^= 1
    path.write_bytes(data)
    assert broker.move("--from", str(broker.d1), "--to", str(broker.d2))[0] == 0
    assert (broker.d2 / "orders-0").is_dir() and broker.run("check")[0] == 0


def test_move_after_an_unclean_stop_leaves_out_what_the_start_cuts_off(broker: Broker) -> None:
    (broker.d1 / ".kafka_cleanshutdown").unlink()
    path = broker.d1 / "orders-0" / f"{20:020d}.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    OffsetCheckpoint(broker.d1, "recovery-point-offset-checkpoint").update({TP: 20})
    code, out, _ = broker.move("--replica", "orders-0", "--to", str(broker.d2))
    assert code == 0 and any("unfinished batch" in line for line in out)
    moved = broker.d2 / "orders-0"
    assert whole.startswith((moved / path.name).read_bytes()) and len(records(moved)) < len(whole) * 2
    names = {each.name for each in moved.iterdir()}
    assert f"{0:020d}.index" in names and f"{20:020d}.index" not in names
    assert OffsetCheckpoint(broker.d2, HIGH_WATERMARKS).read() == {TP: 35}
    # The copy has no clean stop behind it.
    assert not (broker.d2 / ".kafka_cleanshutdown").exists() and (broker.d3 / ".kafka_cleanshutdown").exists()


def test_move_ignores_the_note_of_a_move_from_elsewhere(broker: Broker) -> None:
    """The copy of a move from d2 was never finished, and the replica is in d1 now."""
    note = Note("orders", 0, NoteKind.COPY, str(broker.d2))
    make_wrapper(str(broker.d3), note)
    code, out, _ = broker.move("--replica", "orders-0", "--to", str(broker.d3))
    assert code == 0 and out[0] == f"orders-0: moved from {broker.d1} to {broker.d3}"


def test_move_sets_an_unfinished_copy_aside(broker: Broker) -> None:
    future = f"orders-0.{HEX}-future"
    write_replica(broker.d2, TP, [batches(0, 1)]).rename(broker.d2 / future)
    code, out, _ = broker.move("--replica", "orders-0", "--to", str(broker.d2))
    assert code == 0 and any("its unfinished copy" in line for line in out)
    assert not (broker.d2 / future).exists() and list(broker.d2.glob(f"*-stray/{future}"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--replica", "orders-0", "--to", "/elsewhere"), "is not in log.dirs"),
        (("--replica", "orders", "--to", "d2"), "not a valid TOPIC-PARTITION"),
        (("--replica", "../orders-0", "--to", "d2"), "not a valid TOPIC-PARTITION"),
        (("--to", "d2"), "--replica TOPIC-PARTITION or --from DIR"),
        (("--from", "d2", "--to", "d2"), "the directory that the replicas leave"),
        (("--from", "d1", "--to", "d2", "--throttle", "fast"), "not a valid rate"),
    ],
)
def test_move_with_wrong_arguments_exits_with_2(broker: Broker, arguments: tuple[str, ...], says: str) -> None:
    before = broker.tree()
    given = [str(broker.d1.parent / each) if each in ("d1", "d2") else each for each in arguments]
    code, _, err = broker.move(*given)
    assert code == 2 and says in err
    assert broker.run("move", *given)[0] == 2  # without --offline
    assert broker.tree() == before


def test_move_to_a_directory_that_cannot_be_a_target_changes_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = broker.tree()
    monkeypatch.setattr(offline_move, "room", lambda path: Room(path, 33 << 20, 1))
    monkeypatch.setattr("ops.disks.moving._LEAST_HEADROOM", (33 << 20) - 100)
    code, _, err = broker.move("--from", str(broker.d1), "--to", str(broker.d2))
    assert code == 1 and "has room for 100 bytes" in err and broker.tree() == before
    monkeypatch.undo()
    (broker.d2 / "replication-offset-checkpoint").write_bytes(b"rubbish")
    code, _, err = broker.move("--from", str(broker.d1), "--to", str(broker.d2))
    assert code == 1 and "is malformed" in err
    (broker.d2 / "meta.properties").unlink()
    code, _, err = broker.move("--from", str(broker.d1), "--to", str(broker.d2))
    assert code == 1 and "has no meta.properties" in err
    assert (broker.d1 / "orders-0").is_dir()


def test_move_keeps_to_its_throttle(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("storage_node.move.throttle.time.sleep", slept.append)
    ticks = iter(range(10**9))
    monkeypatch.setattr("storage_node.move.throttle.time.monotonic", lambda: next(ticks) / 100)
    size = sum(len(data) for data in tree(broker.d1 / "orders-0").values())
    assert broker.move("--replica", "orders-0", "--to", str(broker.d2), "--throttle", "1000")[0] == 0
    assert next(ticks) / 100 >= size / 1000 * 0.9


@pytest.mark.parametrize("option", [(), ("--undo",)])
def test_repair_is_not_done_while_a_disk_is_not_mounted(broker: Broker, option: tuple[str, ...]) -> None:
    broker.d3.rename(broker.d3.with_name("elsewhere"))
    code, out, _ = broker.run("repair", "--yes", *option)
    assert code == 1
    assert out[0] == f"not read: {broker.d3}: the directory does not exist; mount its disk and run the command again"
    broker.d3.with_name("elsewhere").rename(broker.d3)
    assert broker.run("repair", "--yes", *option)[0] == 0
