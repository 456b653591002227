"""Move a replica between the log directories of one node (KIP-113), safely against a crash at every step.

The interface for the node and the activities (all calls block and are thread-safe; call them from threads, not from an
event loop):

    from storage_node.move.engine import MoveEngine

    engine = MoveEngine(host, slots=threads, rate=bytes_per_second_or_None, delete_delay_ms=60_000)
        host: storage_node.move.host.MoveHost, that is partition(tp), directories(), checkpoint(directory, moving)
    engine.next_claim(tp) -> int, engine.claim_orphan(tp, claim) -> int
    engine.create(tp, target_path, claim=0, generation=0, owner="", run_id="", throttle=None) -> MoveStatus
    engine.start_copy(tp, claim, throttle=None) -> None
    engine.wait(tp, claim, timeout) -> MoveStatus
    engine.pause_copy(tp, claim) -> MoveStatus
    engine.swap(tp, claim, generation=0) -> SwapOutcome            (SWAPPED or BEHIND)
    engine.cancel(tp, claim=None, reason="", run="") -> MoveStatus | None  (None: there was nothing to cancel)
    engine.set_throttle(tp, claim, rate), engine.set_node_rate(rate)
    engine.status(tp) -> MoveStatus | None, engine.statuses() -> list[MoveStatus]
    engine.delete_now_if_due(tp, generation=0) -> seconds until due, 0.0 when deleted
    engine.discard(tp, reason="topic"): the topic is deleted: `.move` first, then the log, become `.delete`
    engine.stop_moves(), engine.resume_moves(), engine.moves_stopped
    engine.resume(plan): after a start, once the node serves the partition (see below)
    engine.close()

How a start treats what is on disk:

    from storage_node.replicas.boot.scan import scan         # directories -> {tp: Found}
    from storage_node.replicas.boot.table import decide       # Found -> BootPlan, pure
    from storage_node.replicas.boot.apply import apply        # carries out renames and markers, in order
    ... open the log at plan.path with generation plan.generation, register it with the host ...
    engine.resume(plan)                                # deletions are scheduled, copies continue

`generation` in `create` is the one that the metadata assigned to the move (0: one above the replica's own). The newest
claim of a partition is in the marker of its replica, flushed before the node issues the claim, and moves with the
replica at a swap. So claims never decrease, and the node rejects every claim that is not the newest.
"""
