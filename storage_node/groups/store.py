"""The groups' state on disk: a copy in every log directory, so that any of them but the last may fail.

All waiting entries are written together, with one flush in each directory, and take effect once two copies (or the only
one) have them: then neither a directory's failure nor a crash loses them, and no client waits for a slow disk.
A copy that a directory cannot take, because it is full, hangs or has just come online, is left behind and replaced by a
snapshot later. The numbers of the entries order the copies: a start uses the newest valid one, and renews the others.

A start continues with numbers far above the newest that it has found (`_TERM`). So what a directory that was missing at
that start holds is older, once it is back, than anything written without it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from storage_node.directories import atomic
from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirectoryOffline, StorageError
from storage_node.groups.copies import SNAPSHOT, TAIL, Found, GroupCopy, Survey, wait_for
from storage_node.groups.frames import frame
from storage_node.groups.offsets import Entry, GroupsState

__all__ = ["SNAPSHOT", "TAIL", "Done", "GroupStore"]

_log = logging.getLogger(__name__)

SMALLEST_TAIL: Final = 1 << 20
"""Bytes of a tail up to which the store writes no new snapshot."""
COPIES: Final = 2
"""Copies that have an entry before it takes effect, where there are so many."""
PATIENCE: Final = 2.0
"""Seconds to wait for the second copy, once one has the entries."""
RETRY: Final = 5.0
"""Seconds until a copy that was left behind is tried again."""

_CLOSING: Final = 5.0  # seconds
_TERM: Final = 32
"""Bits of a number below the count of starts: no node writes so many entries between two starts."""

#: Called once an entry is on disk (None), or its write has failed; in a thread of the store.
Done = Callable[[BaseException | None], None]


class GroupStore:
    """The store; thread-safe after `load`. `state` has only the entries that are on disk."""

    def __init__(self, online: Callable[[], Sequence[LogDirectory]], smallest_tail: int = SMALLEST_TAIL) -> None:
        """Create it; `online` returns the directories that are online, which may be other ones later."""
        self.state = GroupsState()
        self._online = online
        self._smallest = smallest_tail
        self._number = 0
        self._copies: dict[LogDirectory, GroupCopy] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: list[tuple[Entry, Done]] = []
        self._woken = self._closed = False
        self._thread: threading.Thread | None = None

    def load(self) -> None:
        """Load the state from the newest valid copy; blocks. Raises StorageError if no directory is usable."""
        copies = {directory: GroupCopy(directory, self._smallest) for directory in self._online()}
        surveys = _surveys(copies)
        base, found = self._newest(copies, surveys)
        self.state, newest = found.state, found.number
        unreachable = self.state.drop_unreachable()
        if unreachable:
            _log.warning("dropped %d groups: their ids are longer than a request can hold", unreachable)
        self._number = ((newest >> _TERM) + 1) << _TERM if newest else 0
        problem: StorageError | None = None
        for directory, survey in surveys.items():
            copy = copies[directory]
            # A damaged copy is used as it is only where it is the one that was loaded: it is replaced at once.
            same = directory is base or (survey.whole and survey.number == newest)
            if same and not unreachable:
                try:
                    wait_for(directory.submit(copy.open, survey), directory)
                except StorageError as error:
                    directory.fail_on(error)
                    problem = error
                    continue
                copy.ready = True
            self._copies[directory] = copy
        if not self._copies:
            raise problem or LogDirectoryOffline("all log directories", "reading the groups' offsets")
        self._thread = threading.Thread(target=self._run, name="groups", daemon=True)
        self._thread.start()

    def _newest(
        self, copies: dict[LogDirectory, GroupCopy], surveys: dict[LogDirectory, Survey]
    ) -> tuple[LogDirectory | None, Found]:
        """Return the newest valid copy, and its directory.

        Where the newest is damaged, the newest that is not is loaded, with the others' later entries. The directory is
        None then, and where no files exist.
        """
        order = sorted(surveys, key=lambda each: (-surveys[each].number, not surveys[each].whole))
        read: dict[LogDirectory, Found] = {}
        for directory in order:
            if not surveys[directory].exists:
                continue
            try:
                read[directory] = wait_for(directory.submit(copies[directory].read), directory)
            except StorageError as error:
                directory.fail_on(error)
                surveys.pop(directory)
                continue
            if not read[directory].damaged:
                break
        if not read:
            return None, Found()
        base = min(read, key=lambda each: (bool(read[each].damaged), -read[each].number))
        found, first = read[base], next(iter(read))
        if base is not first:
            _log.warning("loading the groups' offsets from %s, since those in %s are damaged", base.path, first.path)
        later = {number: entry for one in read.values() for number, entry in one.tail if number > found.number}
        for number in sorted(later):
            found.state.apply(later[number])
            found.number = number
        return (None if later else base), found

    def put(self, entry: Entry, done: Done) -> None:
        """Write an entry; `done` is called when it is on disk and in `state`, or its write has failed."""
        with self._changed:
            if not self._closed:
                self._waiting.append((entry, done))
                self._changed.notify_all()
                return
        done(LogDirectoryOffline("", "writing groups' offsets while the node stops"))

    def directories_changed(self) -> None:
        """Begin to keep a copy in a directory that has just come online."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Wait for the writes under way, if the directories respond; later entries are rejected."""
        until = time.monotonic() + _CLOSING
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSING)
        for copy in list(self._copies.values()):
            copy.close(max(0.0, until - time.monotonic()))

    # The store's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed or self._woken, self._pause())
                self._woken = False
                batch, self._waiting = self._waiting, []
                if self._closed and not batch:
                    return
            try:
                self._renew_copies()
                if batch:
                    self._write(batch)
            except Exception as error:
                _log.exception("writing the groups' offsets")
                for _, done in batch:
                    done(error)

    def _pause(self) -> float | None:
        """Return the seconds until a copy that was left behind is due; None without one."""
        due = [copy.retry_at for copy in self._copies.values() if not copy.ready]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _renew_copies(self) -> None:
        """Keep a copy in each directory that is online; write snapshots where they are due, one of long tails at a
        time.
        """
        online = list(self._online())
        for directory in [each for each in self._copies if each not in online]:
            self._copies.pop(directory).retire()
        for directory in online:
            self._copies.setdefault(directory, GroupCopy(directory, self._smallest))
        now = time.monotonic()
        for copy in self._copies.values():
            if not copy.ready and copy.retry_at <= now:
                copy.retry_at = now + RETRY
                if copy.idle:
                    copy.renew(self.state, self._number, self._renewed)
        long = next((copy for copy in self._copies.values() if copy.ready and copy.long), None)
        if long is not None and not any(copy.catching_up for copy in self._copies.values()):
            long.renew(self.state, self._number, self._renewed)

    def _renewed(self, error: BaseException | None) -> None:
        if error is not None:
            _log.warning("a copy of the groups' offsets is not renewed yet: %s", error)
        with self._changed:
            self._changed.notify_all()

    def _write(self, batch: Sequence[tuple[Entry, Done]]) -> None:
        data = b"".join(frame(self._number + 1 + index, entry) for index, (entry, _) in enumerate(batch))
        ready = [copy for copy in self._copies.values() if copy.ready]
        results: dict[GroupCopy, BaseException | None] = {}
        kept = threading.Event()

        def finished(copy: GroupCopy, error: BaseException | None) -> None:
            with self._changed:
                results[copy] = error
                self._changed.notify_all()
                behind = error is not None and kept.is_set()
            if behind:
                self._leave_behind(copy)  # it lacks now what others have

        for copy in ready:
            copy.append(data, partial(finished, copy))
        with self._changed:
            self._await(ready, results)
            done_by = results.copy()
            written = [copy for copy, error in done_by.items() if error is None]
            if written:
                kept.set()
        if not written:
            error = _error(done_by)
            for _, done in batch:
                done(error)
            return
        for copy in ready:
            late = copy not in done_by and len(written) < COPIES and not copy.catching_up
            # (One that is merely slower than two others is kept.)
            if late or done_by.get(copy) is not None:
                self._leave_behind(copy)
        self._number += len(batch)
        for entry, _ in batch:
            self.state.apply(entry)
        for _, done in batch:
            done(None)

    def _leave_behind(self, copy: GroupCopy) -> None:
        copy.leave_behind()
        copy.retry_at = time.monotonic() + RETRY
        if copy.directory.online:
            _log.warning(
                "%s lacks groups' offsets that another log directory has; it gets them later", copy.directory.path
            )

    def _await(self, ready: Sequence[GroupCopy], results: dict[GroupCopy, BaseException | None]) -> None:
        """Wait until enough copies have the entries, or none can have them any more; `_changed` is held."""
        first = 0.0
        while True:
            have = sum(error is None for error in results.values())
            pending = [copy for copy in ready if copy not in results and copy.directory.online]
            # A copy whose snapshot is being written is not waited for, unless there is no other.
            prompt = [copy for copy in pending if not copy.catching_up]
            if have >= COPIES or not pending or (have and not prompt):
                return
            first = first or (time.monotonic() if have else 0.0)
            if first and time.monotonic() > first + PATIENCE:
                return
            self._changed.wait(0.2)


def _surveys(copies: dict[LogDirectory, GroupCopy]) -> dict[LogDirectory, Survey]:
    """Check all copies side by side; a directory that fails is left out."""
    found: dict[LogDirectory, Survey] = {}
    jobs = []
    for directory, copy in copies.items():
        try:
            jobs.append((directory, directory.submit(copy.survey)))
        except StorageError as error:
            _log.warning("%s", error)
    for directory, job in jobs:
        try:
            found[directory] = wait_for(job, directory)
        except StorageError as error:
            directory.fail_on(error)
            _log.error("the groups' offsets in %s cannot be read: %s", directory.path, error)
    return found


def _error(results: dict[GroupCopy, BaseException | None]) -> BaseException:
    """Return the error of entries that no copy has: a full disk, if there is one, since a smaller entry may fit."""
    errors = [error for error in results.values() if error is not None]
    full = [error for error in errors if atomic.is_no_room(error)]
    return next(
        iter(full or errors), LogDirectoryOffline("", "writing the groups' offsets: no log directory has a copy")
    )
