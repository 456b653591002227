"""What is done to disks: one log directory of a node fails, hangs, is full, or has a bad file; then it is mended.

What the node took offline meanwhile is brought back as an operator would: replicas that are offline alone by a request,
a directory by a restart of its node.
"""

from __future__ import annotations

import contextlib
import errno
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ops.faults.disk import CHANGES, FLUSHES, READS
from ops.stack.errors import OpsError
from ops.stack.layout import node_name
from ops.torture import disk
from ops.torture.book import Book
from ops.torture.checks_disks import PATIENCE_SECONDS
from ops.torture.decisions import Decision
from ops.torture.facts import FaultFact, Place
from ops.torture.faults import Busy, Faults
from ops.torture.history import now
from ops.torture.moving import Moving, Replica
from ops.torture.roles import FAILURE_SECONDS, Roles

#: How often a disk fails while nothing else has trouble, so that what it disturbs is its doing; how often its node is
#: killed and started while it fails, else; how often something is moved onto it just before.
ALONE, RESTARTED, MOVED = 0.4, 0.25, 0.5
#: Seconds for which a disk fails, is full, or hangs: shorter, or longer, than a node waits for it. It lasts for
#: `PATIENCE_SECONDS` more where nothing else has trouble: clients must be seen to go on.
FAILS, FULL, BAD = (1.0, 6.0), (2.0, 8.0), (2.0, 6.0)
HANGS, HANGS_FOR_GOOD = (1.0, FAILURE_SECONDS * 0.4), (FAILURE_SECONDS + 3.0, FAILURE_SECONDS + 6.0)
LOOK_SECONDS = 0.2
#: Seconds for which a deed waits until no other disk fails, and its node has no trouble.
TURN_SECONDS = 5.0
#: Seconds in which a node notices what it has met, and those that it gets to open replicas again.
NOTICED_SECONDS, OPENED_SECONDS = 2.0, 60.0

WRITES = tuple(op for op in CHANGES if op not in FLUSHES)
#: What a disk that is full refuses.
GROWS = ("create", "write", "mkdir")
_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)(\.[a-z0-9]+)*")

Rule = Mapping[str, Any]
Deed = Callable[[Decision], tuple[str, str]]


class FailingDisks:
    """Deeds on the last log directory of each node."""

    def __init__(self, roles: Roles, moving: Moving, book: Book, faults: Faults, settled: Callable[[], bool]) -> None:
        """`settled`: whether every partition takes records. May raise `OpsError`."""
        self._roles, self._moving, self._book, self._faults = roles, moving, book, faults
        self._is_settled = settled
        self._turn = threading.Lock()
        self.label: Callable[[str], str] = str
        """The label of a topic's present life."""

    @property
    def deeds(self) -> dict[str, Deed]:
        """By the names of `decisions.ON_DISKS`."""
        return {
            "disk-errors": self.errors,
            "disk-hangs": self.hangs,
            "disk-full": self.full,
            "bad-file": self.bad_file,
        }

    def heal(self) -> None:
        """Mend every disk and bring back what is offline. What does not come back is a problem."""
        if self._roles.disks_cannot_fail:
            return
        for node in self._roles.nodes:
            try:
                self._roles.mend_disk(node)
                self._bring_back(node, NOTICED_SECONDS)
            except OpsError as error:
                self._book.problems.append(f"the disks of node {node} do not come back: {error}")

    def errors(self, decision: Decision) -> tuple[str, str]:
        """Everything on the disk, all changes, or all flushes fail with EIO."""
        ops, what = decision.pick(1, [((*CHANGES, *READS), "everything"), (CHANGES, "changes"), (FLUSHES, "flushes")])
        rule = {"ops": ops, "errno": errno.EIO}
        return self._fail(decision, f"{what} failed", decision.between(2, *FAILS), lambda _: rule)

    def hangs(self, decision: Decision) -> tuple[str, str]:
        """Everything on the disk hangs, for a shorter or a longer time than the node waits for it."""
        bounds = decision.pick(1, (HANGS, HANGS_FOR_GOOD))
        rule = {"ops": (*CHANGES, *READS), "hang": True}
        return self._fail(decision, "everything hung", decision.between(2, *bounds), lambda _: rule, restart=False)

    def full(self, decision: Decision) -> tuple[str, str]:
        """No room is left: what would take more fails with ENOSPC."""
        rule = {"ops": GROWS, "errno": errno.ENOSPC}
        return self._fail(decision, "it was full", decision.between(2, *FULL), lambda _: rule)

    def bad_file(self, decision: Decision) -> tuple[str, str]:
        """All files of one replica, or those with its records, can be neither made nor written to."""
        code = errno.EPERM if decision.picks[1] < 0.75 else errno.EIO
        files = r"/[^/]*\.log$" if decision.picks[2] < 0.5 else "(/|$)"
        ops = ("create", "open", "write", "mkdir", "rename", "truncate")

        def rule(held: list[Replica]) -> Rule:
            replica = decision.pick(3, held)
            return {"ops": ops, "path": rf"^/{re.escape(str(replica))}{files}", "errno": code}

        what = f"files of a replica failed with {errno.errorcode[code]}"
        return self._fail(decision, what, decision.between(2, *BAD), rule)

    def _fail(
        self,
        decision: Decision,
        what: str,
        seconds: float,
        rule: Callable[[list[Replica]], Rule],
        *,
        restart: bool = True,
    ) -> tuple[str, str]:
        """Let a disk fail by a rule, made for the replicas on it, and bring back what that took offline."""
        used = sorted({each.node for each in self._held()})
        node = decision.pick(0, used or self._roles.nodes)
        name, directory = node_name(node), self._roles.log_dirs(node)[-1]
        faults, alone = self._faults, decision.picks[5] < ALONE and not self._faults.one_is_alone
        with contextlib.ExitStack() as kept:
            # While it waits to be alone, other disks may fail.
            kept.enter_context(faults.alone(name, self._settled) if alone else faults.locked(name, TURN_SECONDS))
            if not self._turn.acquire(timeout=TURN_SECONDS):
                raise Busy("another disk fails")
            kept.callback(self._turn.release)
            if not self._roles.alive(name):
                return name, "does not run"
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
            except OpsError as error:  # noted below: what failed must be known whatever became of it
                wrong = f"{error}; "
            finally:
                self._roles.mend_disk(node)
                ended = now()
            try:
                outcome = self._bring_back(node, NOTICED_SECONDS if hits else 0.0, kill=decision.picks[3] < 0.5)
                back = now()
            except OpsError as error:
                outcome = f"{wrong}it did not come back: {error}"
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

    def _held(self, node: int | None = None) -> list[Replica]:
        """The replicas on disks that can fail, of one node or of all."""
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

    # After it

    def _bring_back(self, node: int, noticed: float, *, kill: bool = False) -> str:
        """Bring back what the node has taken offline within `noticed` seconds; return what it was, and how it came
        back. Raises `OpsError` when it does not.
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
                return "replicas were offline alone, back on request"
        if not directories and not replicas:
            return "all was served on"
        name = node_name(node)
        with self._faults.noted(name):
            self._roles.kill(name) if kill else self._roles.stop(name)
            self._faults.start(name)
        directories, replicas = self._offline(node)
        if directories or replicas:
            words = [*directories, *(f"{topic}-{number}" for topic, number in replicas)]
            raise OpsError(f"{', '.join(words)} of node {node} stayed offline after a restart")
        return "it was offline, back by a restart of the node"

    def _offline(self, node: int) -> tuple[list[str], list[Place]]:
        """The directories that a node has offline, and its replicas that are offline alone. Raises `OpsError`."""
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
        """What a node says of itself. Raises `OpsError`."""
        return self._roles.call(node, "status", timeout=1.0)

    def places(self, node: int, directory: str) -> set[Place]:
        """The partitions of which anything is in a directory."""
        found = (_FOLDER.fullmatch(folder) for folder in disk.folders(self._roles.disk(node, directory)))
        return {(self.label(each["topic"]), int(each["partition"])) for each in found if each is not None}


class _Seen:
    """What is seen of a directory, and of the node's others, while it fails."""

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
