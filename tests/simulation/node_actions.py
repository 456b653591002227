"""What is asked of a node on simulated disks: by clients, by the controller, by runs that move its replica."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from storage_node import failpoints
from storage_node.errors import StaleClaim
from storage_node.model.moves import MoveState
from tests.simulation.crash.node import TP
from tests.simulation.node_life import NodeLife
from tests.simulation.promises import batch_of

Between = list[tuple[str, int]]
"""What a client or the housekeeping does between two chunks of a copy: names and parameters."""


class NodeActions(NodeLife):
    """The actions; each leaves things as they are where it does not apply. `part` is in quarters of the log."""

    # Clients

    def produce(self, count: int, records: int = 1) -> None:
        for _ in range(count):
            partition, promises = self.partition, self.promises
            if partition is None or promises is None:
                return
            value, data = batch_of(next(self.numbers), records, self.machine.clock.now_ms())
            with self.doing():
                promises.trying(value, records)
                appended = partition.append(data)
                promises.acked(appended.base_offset, appended.last_offset, value)
                self.counts["batches"] += 1

    def change_log(self, what: str, part: int) -> None:
        """One of the methods below, or `pause`."""
        if what == "produce":
            self.produce(1 + part, 1)
        elif what in ("flush", "roll", "pause"):
            getattr(self, what)()
        else:
            getattr(self, what)(part)

    def flush(self) -> None:
        partition = self.partition
        if partition is not None:
            with self.doing():
                partition.log.flush()

    def roll(self) -> None:
        partition = self.partition
        if partition is not None:
            with self.doing(), partition.lock:
                partition.log.roll()

    def delete_records(self, part: int) -> None:
        partition, promises = self.partition, self.promises
        if partition is None or promises is None:
            return
        before = promises.start + (promises.end - promises.start) * part // 4
        with self.doing():
            promises.starting_at(before)
            partition.delete_records(before)

    def truncate(self, part: int) -> None:
        partition, promises = self.partition, self.promises
        if partition is None or promises is None:
            return
        offset = promises.start + (promises.end - promises.start) * part // 4
        with self.doing():
            promises.truncating(offset)
            self.running.offset_files.truncate(partition, offset)
            promises.truncated(partition.log.log_end_offset)

    def retention(self, part: int) -> None:
        partition, promises = self.partition, self.promises
        if partition is None or promises is None:
            return
        config = partition.log.config
        with self.doing():
            promises.starting_at(promises.end)
            partition.configure(replace(config, retention_bytes=100 * part))
            try:
                partition.delete_old_segments(self.machine.clock.now_ms())
            finally:
                partition.configure(config)

    def housekeeping(self, what: str) -> None:
        node = self.running
        for directory in node.dirs.online():
            with self.doing():
                if what != "tidy":
                    getattr(node.offset_files, what)(directory)
                elif self.partition is not None and self.partition.directory is directory:
                    self.machine.clock.advance(30)
                    self.partition.tidy(self.machine.clock.now_ms())

    # The controller

    def delete_topic(self, known: bool) -> None:
        self.controller.delete_topic()
        self.promises = None
        if known and self.node is not None:
            self.tell()

    # Moves

    def start_move(self, where: str, heard: bool) -> None:
        partition = self.partition
        if partition is None:
            return
        with self.doing():
            raised = self.controller.raise_generation(partition.generation, partition.directory.id)
            if raised is None:
                return
            if heard:
                self.running.hear(self.controller)
            claim = self.engine.next_claim(TP)
            self.claims.append(claim)
            made = self.engine.create(TP, self.machine.path(where), claim=claim, generation=raised)
            self.counts[f"moves made, {made.state}"] += 1

    def go_on(self, where: str, between: Between) -> None:
        """What a run does next: make the move, copy, or swap."""
        status = self.move()
        if status is None:
            self.start_move(where, heard=True)
        elif status.state is MoveState.CAUGHT_UP:
            self.swap(between)
        else:
            self.copy(between)

    def move_all(self, where: str, count: int, between: Between) -> None:
        """A whole move, with records before it."""
        if count:
            self.produce(count, 1)
        for _ in range(4):
            if self.partition is not None and self.partition.directory.path.name != where:
                self.go_on(where, between)

    def copy(self, between: Between) -> None:
        status = self.move()
        if status is None:
            return
        with self.doing(), self.beside("copy.after_chunk", between):
            self.engine.start_copy(TP, status.claim)
            self.running.copy()
            self.counts[f"copies, {self.engine.wait(TP, status.claim, 0).state}"] += 1

    def swap(self, between: Between) -> None:
        status = self.move()
        if status is None:
            return
        with self.doing(), self.beside("swap.before_lock", between):
            done = self.engine.swap(TP, status.claim, status.generation)
            self.counts[f"swaps, {done.outcome}"] += 1

    @contextmanager
    def beside(self, point: str, actions: Between) -> Iterator[None]:
        """Let others work each time the mover passes a point."""
        left = list(actions)

        def act() -> None:
            if left and self.partition is not None:
                self.change_log(*left.pop(0))

        with failpoints.active({point: act}):
            yield

    def pause(self) -> None:
        """Somebody wants the copier to leave."""
        move = self.engine._registry.get(TP)
        if move is not None:
            move.stop = "paused"

    def throttle(self, rate: int | None, node_rate: bool) -> None:
        status = self.move()
        if status is None:
            return
        with self.doing():
            if node_rate:
                self.engine.set_node_rate(rate)
            else:
                self.engine.set_throttle(TP, status.claim, rate)

    def cancel(self, mine: bool) -> None:
        status = self.move()
        if status is None:
            return
        with self.doing():
            self.engine.cancel(TP, status.claim if mine else None, "asked for")
            self.counts["cancels"] += 1

    def stop_moves(self) -> None:
        with self.doing():
            if self.engine.moves_stopped:
                self.engine.resume_moves()
            else:
                self.engine.stop_moves()

    def late_request(self, which: int, what: str) -> None:
        """From a run that was overtaken: refused, or it changes nothing."""
        stale = self.claims[-min(which, len(self.claims))]
        status = self.move()
        if not stale or status is None or status.claim <= stale:
            return
        if what == "cancel" and self.engine._registry.get(TP) is None:
            return  # nothing moves any more: who cancels is told what became of the last move
        with self.doing():
            try:
                getattr(self.engine, what)(TP, stale)
            except StaleClaim:
                return
            raise AssertionError(f"{what} of claim {stale} was not refused, {status.claim} moves it")

    def delete_due(self) -> None:
        with self.doing():
            self.running.delete_what_is_due()
