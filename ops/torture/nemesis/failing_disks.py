"""Disk faults: one log directory of a node fails, hangs, is full, or has a bad file; then it works again.

The replicas that the node took offline are brought back as by an operator: replicas in online directories by a
`replicas-online` request, a directory by a `directory-online` request or by a restart of its node. Or the disk is
replaced by an empty one, and the node copies its replicas again from the others.
"""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ops.faults.disk import CHANGES, FLUSHES, READS
from ops.stack.errors import OpsError
from ops.stack.layout import node_name
from ops.torture import disk
from ops.torture.checks.beside_disks import PATIENCE_SECONDS
from ops.torture.checks.facts import FaultFact, Place
from ops.torture.history import now
from ops.torture.nemesis.book import Book
from ops.torture.nemesis.decisions import Decision
from ops.torture.nemesis.faults import Busy, Faults
from ops.torture.nemesis.moving import Moving, ReplicaOnDisk
from ops.torture.roles import FAILURE_SECONDS, Roles

#: The share of disk faults without any other fault, so that a delay elsewhere is their effect; of the others, the share
#: during which the node is killed and started; the share of faults preceded by a move to the disk; the share of failed
#: directories that are brought back without a restart.
ALONE, RESTARTED, MOVED, BY_REQUEST = 0.4, 0.25, 0.5, 0.5
#: Seconds for which a disk fails, is full, or hangs for less or more than log.dir.failure.timeout.ms. Without any other
#: fault it lasts `PATIENCE_SECONDS` longer, so that C19 can judge the clients' progress.
FAILS, FULL, BAD = (1.0, 6.0), (2.0, 8.0), (2.0, 6.0)
HANGS, HANGS_FOR_GOOD = (1.0, FAILURE_SECONDS * 0.4), (FAILURE_SECONDS + 3.0, FAILURE_SECONDS + 6.0)
LOOK_SECONDS = 0.2
#: Seconds that an action waits for other disk faults, and for faults of its node, to end.
TURN_SECONDS = 5.0
#: Seconds within which a node takes replicas offline after an error, and within which it opens them again.
NOTICED_SECONDS, OPENED_SECONDS = 2.0, 60.0
#: Seconds within which the metadata must have a failure, so that none of the replicas is in sync, for a new disk.
RECORDED_SECONDS = 5.0

WRITES = tuple(op for op in CHANGES if op not in FLUSHES)
#: The operations that fail on a full disk.
GROWS = ("create", "write", "mkdir")
_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)(\.[a-z0-9]+)*")

Rule = Mapping[str, Any]
Deed = Callable[[Decision], tuple[str, str]]


class FailingDisks:
    """Faults of the last log directory of each node."""

    def __init__(self, roles: Roles, moving: Moving, book: Book, faults: Faults, settled: Callable[[], bool]) -> None:
        """`settled` returns whether every partition accepts produce requests; it may raise `OpsError`."""
        self._roles, self._moving, self._book, self._faults = roles, moving, book, faults
        self._is_settled = settled
        self._turn = threading.Lock()
        self.label: Callable[[str], str] = str
        """Return the label of a topic's current life."""

    @property
    def deeds(self) -> dict[str, Deed]:
        """The actions by their names in `decisions.ON_DISKS`."""
        return {
            "disk-errors": self.errors,
            "disk-hangs": self.hangs,
            "disk-full": self.full,
            "bad-file": self.bad_file,
            "disk-replaced": self.replaced,
        }

    def heal(self) -> None:
        """End every disk fault and bring offline replicas back. Those that stay offline are a problem of the run."""
        if self._roles.disks_cannot_fail:
            return
        for node in self._roles.nodes:
            try:
                self._roles.mend_disk(node)
                self._bring_back(node, NOTICED_SECONDS)
            except OpsError as error:
                self._book.problems.append(f"the disks of node {node} stay offline: {error}")

    def errors(self, decision: Decision) -> tuple[str, str]:
        """Fail all operations, all changes, or all flushes with EIO."""
        ops, what = decision.pick(1, [((*CHANGES, *READS), "everything"), (CHANGES, "changes"), (FLUSHES, "flushes")])
        rule = {"ops": ops, "errno": errno.EIO}
        return self._fail(decision, f"{what} failed", decision.between(2, *FAILS), lambda _: rule)

    def hangs(self, decision: Decision) -> tuple[str, str]:
        """Hang all operations, for less or more than log.dir.failure.timeout.ms."""
        bounds = decision.pick(1, (HANGS, HANGS_FOR_GOOD))
        rule = {"ops": (*CHANGES, *READS), "hang": True}
        return self._fail(decision, "everything hung", decision.between(2, *bounds), lambda _: rule, restart=False)

    def full(self, decision: Decision) -> tuple[str, str]:
        """Fail the operations that need space with ENOSPC."""
        rule = {"ops": GROWS, "errno": errno.ENOSPC}
        return self._fail(decision, "it was full", decision.between(2, *FULL), lambda _: rule)

    def bad_file(self, decision: Decision) -> tuple[str, str]:
        """Fail the creation of, and writes to, all files or the log segments of one replica."""
        code = errno.EPERM if decision.picks[1] < 0.75 else errno.EIO
        files = r"/[^/]*\.log$" if decision.picks[2] < 0.5 else "(/|$)"
        ops = ("create", "open", "write", "mkdir", "rename", "truncate")

        def rule(held: list[ReplicaOnDisk]) -> Rule:
            replica = decision.pick(3, held)
            return {"ops": ops, "path": rf"^/{re.escape(str(replica))}{files}", "errno": code}

        what = f"files of a replica failed with {errno.errorcode[code]}"
        return self._fail(decision, what, decision.between(2, *BAD), rule)

    def replaced(self, decision: Decision) -> tuple[str, str]:
        """Fail all operations for good: an empty disk replaces the failed one, if other nodes have its replicas."""
        rule = {"ops": (*CHANGES, *READS), "errno": errno.EIO}
        seconds = decision.between(2, *FAILS)
        return self._fail(decision, "everything failed", seconds, lambda _: rule, restart=False, replace=True)

    def _fail(
        self,
        decision: Decision,
        what: str,
        seconds: float,
        rule: Callable[[list[ReplicaOnDisk]], Rule],
        *,
        restart: bool = True,
        replace: bool = False,
    ) -> tuple[str, str]:
        """Inject `rule`, made for the replicas on the disk, for `seconds`, and bring back what went offline; with
        `replace` an empty disk is the first choice.
        """
        used = sorted({each.node for each in self._held()})
        node = decision.pick(0, used or self._roles.nodes)
        name, directory = node_name(node), self._roles.log_dirs(node)[-1]
        faults, alone = self._faults, decision.picks[5] < ALONE and not self._faults.one_is_alone
        with contextlib.ExitStack() as kept:
            # Other disks may fail while this action waits to be alone.
            kept.enter_context(faults.alone(name, self._settled) if alone else faults.locked(name, TURN_SECONDS))
            if not self._turn.acquire(timeout=TURN_SECONDS):
                raise Busy("another disk fails")
            kept.callback(self._turn.release)
            if not self._roles.alive(name):
                return name, "is not running"
            if decision.picks[4] < MOVED:
                self._move_there(decision, node, directory)
            chosen = rule(self._held(node))
            seen = _Seen(self, node, directory)
            self._roles.fail_disk(node, chosen)
            hits, back, wrong = 0, 0, ""
            try:
                if restart and not alone and decision.picks[4] > 1 - RESTARTED:
                    what = f"{what} while the node was started"
                    with self._faults.noted(name):
                        self._roles.kill(name)
                        self._faults.start(name)
                until = time.monotonic() + seconds + (PATIENCE_SECONDS if alone else 0.0)
                while time.monotonic() < until and not self._faults.wait(LOOK_SECONDS):
                    seen.look()
                hits = self._roles.disk_hits(node)
            except OpsError as error:  # the fact below is recorded in any case: C19 must know the fault
                wrong = f"{error}; "
            finally:
                self._roles.mend_disk(node)
                ended = now()
            try:
                outcome = (replace and self._replace(node, directory)) or self._bring_back(
                    node,
                    NOTICED_SECONDS if hits else 0.0,
                    kill=decision.picks[3] < 0.5,
                    by_request=decision.picks[6] < BY_REQUEST,
                )
                back = now()
            except OpsError as error:
                outcome = f"{wrong}it stayed offline: {error}"
            self._book.failed(
                FaultFact(
                    node, directory, seen.since, ended, decision.action, outcome, tuple(sorted(seen.places)),
                    tuple(sorted(seen.offline)), seen.looks, hits, back,
                )
            )  # fmt: skip
        beside = ", alone" if alone else ""
        return (
            f"{directory} of {name}",
            f"{what} for {(ended - seen.since) / 1e9:.1f} s ({hits} hits{beside}): {outcome}",
        )

    def _held(self, node: int | None = None) -> list[ReplicaOnDisk]:
        """Return the replicas on disks with fault injection, of one node or of all."""
        last = {each: self._roles.log_dirs(each)[-1] for each in self._roles.nodes}
        return [r for r in self._moving.replicas() if r.node in (node or r.node,) and r.directory == last[r.node]]

    def _move_there(self, decision: Decision, node: int, directory: str) -> None:
        with contextlib.suppress(OpsError, IndexError):
            others = [r for r in self._moving.replicas() if r.node == node and r.directory != directory]
            replica = decision.pick(3, others)
            self._moving.alter(node, {(replica.topic, replica.partition): directory})

    def _settled(self) -> bool:
        try:
            return self._is_settled()
        except OpsError:
            return False

    # Recovery

    def _bring_back(self, node: int, noticed: float, *, kill: bool = False, by_request: bool = False) -> str:
        """Bring back the directory or replicas that the node takes offline within `noticed` seconds.

        `by_request`: a directory without a restart, where the node accepts that: it refuses while the controller, which
        may have a fault, has not recorded the failure. Returns the outcome. Raises `OpsError` if they stay offline.
        """
        until = time.monotonic() + noticed
        while True:
            directories, replicas = self._offline(node)
            if directories or time.monotonic() >= until:
                break
            time.sleep(LOOK_SECONDS)
        if not directories and replicas:
            rows = self._roles.call(
                node, "replicas-online", OPENED_SECONDS, partitions=[list(place) for place in replicas]
            )["replicas"]
            if all(row["outcome"] != "offline" for row in rows):
                return "individual replicas were offline, back on request"
        if not directories and not replicas:
            return "nothing went offline"
        if directories and by_request:
            with contextlib.suppress(OpsError):
                for directory in directories:
                    self._roles.call(node, "directory-online", OPENED_SECONDS, path=directory)
                if not any(self._offline(node)):
                    return "the directory was offline, back on request"
        name = node_name(node)
        with self._faults.noted(name):
            self._roles.kill(name) if kill else self._roles.stop(name)
            self._faults.start(name)
        directories, replicas = self._offline(node)
        if directories or replicas:
            left = [*directories, *(f"{topic}-{number}" for topic, number in replicas)]
            raise OpsError(f"{', '.join(left)} of node {node} stayed offline after a restart")
        return "the directory was offline, back after a restart of the node"

    def _replace(self, node: int, directory: str) -> str:
        """Empty an offline directory, and let the node use it as a new disk; "" where it stays as it is.

        None of its replicas may be in sync by the metadata: that of the failure has to be there first, and a sole
        in-sync replica holds records that no other one has. Raises `OpsError` if the node does not take the new disk.
        """
        until = time.monotonic() + RECORDED_SECONDS
        while True:
            with contextlib.suppress(OpsError):
                found = self._roles.call(node, "directory-losses", path=directory)
                if not found["online"] and not found["in_sync"]:
                    break
            if time.monotonic() >= until:
                return ""
            time.sleep(LOOK_SECONDS)
        for path in self._roles.disk(node, directory).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        until = time.monotonic() + OPENED_SECONDS
        while True:
            try:
                self._roles.call(node, "directory-replace", OPENED_SECONDS, path=directory)
                return "the disk was replaced"
            except OpsError:
                if time.monotonic() >= until:
                    raise
                time.sleep(LOOK_SECONDS)

    def _offline(self, node: int) -> tuple[list[str], list[Place]]:
        """Return a node's offline directories, and its offline replicas in online ones. Raises `OpsError`."""
        until = time.monotonic() + OPENED_SECONDS
        while True:
            try:
                status = self._roles.call(node, "status")
                break
            except OpsError:
                if time.monotonic() > until:
                    raise
                time.sleep(LOOK_SECONDS)
        directories = [str(each["path"]) for each in status["directories"] if not each["online"]]
        found = [place for name in status["offline"] if (place := disk.place_of(str(name))) is not None]
        return directories, found

    def status(self, node: int) -> dict[str, Any]:
        """Return a node's status. Raises `OpsError`."""
        return self._roles.call(node, "status", timeout=1.0)

    def places(self, node: int, directory: str) -> set[Place]:
        """Return the partitions with a replica, copy or deleted replica in a directory."""
        found = (_FOLDER.fullmatch(folder) for folder in disk.folders(self._roles.disk(node, directory)))
        return {(self.label(each["topic"]), int(each["partition"])) for each in found if each is not None}


class _Seen:
    """Observations during a disk fault: the partitions in the directory, and other offline directories of the node."""

    def __init__(self, disks: FailingDisks, node: int, directory: str) -> None:
        self._disks, self._node, self._directory = disks, node, directory
        self.places = disks.places(node, directory)
        self.offline: set[str] = set()
        self.looks = 0
        self.since = now()

    def look(self) -> None:
        self.places |= self._disks.places(self._node, self._directory)
        with contextlib.suppress(OpsError):
            status = self._disks.status(self._node)
            self.looks += 1
            down = {str(each["path"]) for each in status["directories"] if not each["online"]}
            self.offline |= down - {self._directory}
