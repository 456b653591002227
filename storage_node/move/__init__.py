"""Moving a replica between the log directories of one node (KIP-113), safe against a crash at every step.

What the node and the activities use (all calls block and are thread-safe; call them from threads, not from an event
loop):

    from storage_node.move.engine import MoveEngine

    engine = MoveEngine(host, slots=threads, rate=bytes_per_second_or_None, delete_delay_ms=60_000)
        host: storage_node.move.host.MoveHost, that is partition(tp), directories(), checkpoint(directory, moving)
    engine.next_claim(tp) -> int
    engine.create(tp, target_path, claim=0, generation=0, owner="", run_id="", throttle=None) -> MoveStatus
    engine.start_copy(tp, claim, throttle=None) -> None
    engine.wait(tp, claim, timeout) -> MoveStatus
    engine.pause_copy(tp, claim) -> MoveStatus
    engine.swap(tp, claim, generation=0) -> SwapOutcome            ("swapped" | "behind")
    engine.cancel(tp, claim=None, reason="", run="") -> MoveStatus | None  (None: there was nothing to cancel)
    engine.set_throttle(tp, claim, rate), engine.set_node_rate(rate)
    engine.status(tp) -> MoveStatus | None, engine.statuses() -> list[MoveStatus]
    engine.delete_now_if_due(tp, generation=0) -> seconds until due, 0.0 when gone
    engine.discard(tp, reason="topic"): the topic is deleted: `.move` first, then the log, become `.delete`
    engine.stop_moves(), engine.resume_moves(), engine.moves_stopped
    engine.take_over(plan): after a start, once the partition is served (see below)
    engine.close()

What a start does with what is on disk:

    from storage_node.move.boot_scan import scan          # directories -> {tp: Found}
    from storage_node.move.boot import decide             # Found -> BootPlan, pure
    from storage_node.move.boot_apply import apply        # carries out renames and markers, in order
    ... open the log at plan.path with generation plan.generation, make it known to the host ...
    engine.take_over(plan)                                # deletions are scheduled, copies go on

`generation` in `create` is the one that the metadata gave the move (0: one above the replica's own). Claims: the newest
claim of a partition stands in the marker of its replica, flushed before the claim is handed out, and moves on with the
replica at a swap; so claims never go backwards, and a claim that is not the newest can do nothing any more.
"""
