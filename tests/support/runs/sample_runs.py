"""A morning of a small cluster: one run of every kind that a report tells apart. Times are seconds after `T0`."""

from __future__ import annotations

from dataclasses import replace

from storage_node.model.moves import Outcome
from tests.support.runs.histories import RunBuilder, call, moved, rows
from workflows.model.calls import CANCEL_MOVE, COPY, CREATE_MOVE, DELETE_REPLICA, SWAP, MoveRow, ReplicaMove

D1, D2 = "/data/n1/d1", "/data/n1/d2"


def failed(name: str = "full", start: float = 4.0) -> RunBuilder:
    """The target filled up during the copy: the activity's details carry what is known."""
    run = RunBuilder(
        f"rehome/move/1/audit-0/{name}",
        f"run-{name}",
        parameter={"topic": "audit", "partition": 0, "node": 1, "directory": D2, "sla_seconds": 60},
        start=start,
    )
    argument = call(run, ReplicaMove("audit", 0, D2, 3))
    run.activity(CREATE_MOVE, argument, start, start + 0.1, rows(MoveRow("audit", 0, Outcome.CREATED, D1, D2, 3)))
    facts = MoveRow(
        "audit", 0, Outcome.FAILED, D1, D2, 3, error="TargetFull", message=f"{D2} is full: audit-0 stays in {D1}",
        bytes_total=900_000_000, bytes_copied=410_000_000, seconds_copying=8.0, seconds_queued=0.5, attempts=1,
    )  # fmt: skip
    run.activity_failed(COPY, argument, start + 0.2, start + 9.0, "TargetFull", facts.message, rows(facts))
    undone = MoveRow("audit", 0, Outcome.FAILED, D1, D2, 3, error="TargetFull", message=facts.message)
    run.activity(CANCEL_MOVE, argument, start + 9.1, start + 9.3, rows(undone))
    return run.fail(start + 9.4, "TargetFull", facts.message, rows(facts))


def cancelled(name: str = "stop", start: float = 6.0) -> RunBuilder:
    """Cancelled by hand in the middle of its copy: what it had done is told by the step that undoes it."""
    run = RunBuilder(
        f"rehome/move/2/clicks-7/{name}",
        f"run-{name}",
        parameter=[{"topic": "clicks", "partition": 7, "node": 2, "directory": "/data/n2/d3", "deadline_seconds": 90}],
        start=start,
    )
    argument = call(run, ReplicaMove("clicks", 7, "/data/n2/d3", 1), node=2)
    source = "/data/n2/d1"
    run.activity(
        CREATE_MOVE, argument, start, start + 0.1,
        rows(MoveRow("clicks", 7, Outcome.CREATED, source, "/data/n2/d3", 1)),
        queue="rehome/node-2",
    )  # fmt: skip
    run.cancel_requested(start + 5.0)
    beat = MoveRow(
        "clicks", 7, Outcome.CREATED, source, "/data/n2/d3", 1, bytes_total=300_000_000, bytes_copied=80_000_000,
        seconds_copying=4.0, attempts=1,
    )  # fmt: skip
    run.activity_canceled(COPY, argument, start + 0.2, start + 5.5, None)
    dropped = replace(beat, outcome=Outcome.CANCELLED)
    run.activity(CANCEL_MOVE, argument, start + 5.6, start + 5.8, rows(dropped), queue="rehome/node-2")
    return run.cancel(start + 5.9)


def under_way(name: str = "now", start: float = 10.0, sla: float = 3000.0) -> RunBuilder:
    """Still copying, on its third attempt."""
    run = RunBuilder(
        f"rehome/move/3/payments-4/{name}",
        f"run-{name}",
        parameter={
            "topic": "payments", "partition": 4, "node": 3, "directory": "/data/n3/d2", "sla_seconds": sla,
            "throttle": "20MB",
        },
        start=start,
    )  # fmt: skip
    argument = call(run, ReplicaMove("payments", 4, "/data/n3/d2", 1), node=3, throttle=20_000_000)
    source = "/data/n3/d1"
    run.activity(
        CREATE_MOVE, argument, start, start + 0.1,
        rows(MoveRow("payments", 4, Outcome.CREATED, source, "/data/n3/d2", 1)),
        queue="rehome/node-3",
    )  # fmt: skip
    beat = MoveRow(
        "payments", 4, Outcome.CREATED, source, "/data/n3/d2", 1, bytes_total=5_000_000_000, bytes_copied=1_200_000_000,
        bytes_resumed=700_000_000, seconds_queued=3.0, seconds_copying=40.0, seconds_throttled=20.0,
        seconds_stalled=1.5, attempts=3, seconds_by_reason={"queued": 3.0, "copying": 41.5, "growing_source": 20.0},
    )  # fmt: skip
    for after, told in ((1.2, "queued"), (11.2, "growing_source")):
        report = {"topic": "payments", "partition": 4, "state": "copying", "bytes_copied": 10, "stall": told}
        run.signal("copy_progress", start + after, [report | {"stall_message": f"{told}: told"}])
    run.open_activity(COPY, argument, start + 0.2, 3, rows(beat))
    return run


def retargeted(name: str = "back", start: float = 50.0) -> RunBuilder:
    """Copying to its first target again, since the node has rejected another one."""
    first, second, source = "/data/n2/d2", "/data/n2/d3", "/data/n2/d1"
    parameter = {"topic": "returns", "partition": 0, "node": 2, "directory": first}
    run = RunBuilder(f"rehome/move/2/returns-0/{name}", f"run-{name}", parameter=parameter, start=start)
    argument = call(run, ReplicaMove("returns", 0, first, 1), node=2)
    other = call(run, ReplicaMove("returns", 0, second, 1), node=2)
    created = MoveRow("returns", 0, Outcome.CREATED, source, first, 1)
    run.activity(CREATE_MOVE, argument, start, start + 0.1, rows(created))
    error = {"error": "LogDirOffline", "message": f"making returns-0.move failed on log directory {second}"}
    rejected = MoveRow("returns", 0, Outcome.FAILED, source, second, 1, **error)
    run.activity(CREATE_MOVE, other, start + 2, start + 2.1, rows(rejected))
    run.activity(CREATE_MOVE, argument, start + 3, start + 3.1, rows(created))
    progress = replace(created, bytes_total=900, bytes_copied=300, seconds_copying=2.0, attempts=1)
    run.open_activity(COPY, argument, start + 3.2, 1, rows(progress))
    return run


def lane(name: str = "lane", start: float = 12.0) -> RunBuilder:
    """Three small replicas in one run: one moved, one was there already, one was dropped on the way."""
    asked = [{"topic": "small", "partition": p, "node": 1, "directory": D2, "sla_seconds": 20} for p in (0, 1, 2)]
    run = RunBuilder(f"rehome/move/1/small-0+2/{name}", f"run-{name}", parameter=asked, start=start)
    moves = [ReplicaMove("small", p, D2, 1) for p in (0, 1, 2)]
    created = [
        MoveRow("small", 0, Outcome.CREATED, D1, D2, 1),
        MoveRow("small", 1, Outcome.IN_PLACE, D2, D2, 1),
        MoveRow("small", 2, Outcome.CREATED, D1, D2, 1),
    ]
    run.activity(CREATE_MOVE, call(run, *moves), start, start + 0.1, rows(*created))
    run.update("drop", start + 0.5, {"topic": "small", "partition": 2})
    run.activity(
        CANCEL_MOVE,
        call(run, moves[2]),
        start + 0.6,
        start + 0.8,
        rows(MoveRow("small", 2, Outcome.CANCELLED, D1, D2, 1)),
    )
    copied = MoveRow(
        "small", 0, Outcome.CAUGHT_UP, D1, D2, 1, bytes_total=4_000_000, bytes_copied=4_000_000, seconds_copying=0.4
    )
    run.activity(COPY, call(run, moves[0]), start + 0.9, start + 1.4, rows(copied))
    swapped = MoveRow("small", 0, Outcome.SWAPPED, D1, D2, 1, seconds_locked=0.002, delete_after=5.0)
    run.activity(SWAP, call(run, moves[0]), start + 1.4, start + 1.5, rows(swapped))
    run.activity(
        DELETE_REPLICA,
        call(run, moves[0]),
        start + 6.5,
        start + 6.6,
        rows(MoveRow("small", 0, Outcome.DELETED, D1, D2, 1)),
    )
    last = [
        MoveRow("small", 0, Outcome.DELETED, D1, D2, 1),
        created[1],
        MoveRow("small", 2, Outcome.CANCELLED, D1, D2, 1),
    ]
    return run.complete(start + 6.7, rows(*last))


def paused(name: str = "paused", start: float = 20.0) -> RunBuilder:
    """Paused for a minute between two copies."""
    run = RunBuilder(
        f"rehome/move/2/orders-9/{name}",
        f"run-{name}",
        parameter={"topic": "orders", "partition": 9, "node": 2, "directory": "/data/n2/d2"},
        start=start,
    )
    argument = call(run, ReplicaMove("orders", 9, "/data/n2/d2", 1), node=2)
    source, target = "/data/n2/d1", "/data/n2/d2"
    run.activity(
        CREATE_MOVE, argument, start, start + 0.1, rows(MoveRow("orders", 9, Outcome.CREATED, source, target, 1))
    )
    run.update("pause", start + 4.0)
    first = MoveRow(
        "orders",
        9,
        Outcome.CREATED,
        source,
        target,
        1,
        bytes_total=200,
        bytes_copied=80,
        seconds_copying=4.0,
        bytes_written=80,
        seconds_by_reason={"copying": 4.0},
    )
    run.activity_canceled(COPY, argument, start + 0.2, start + 4.5, rows(first))
    run.update("resume", start + 64.5)
    second = MoveRow(
        "orders", 9, Outcome.CAUGHT_UP, source, target, 1, bytes_total=200, bytes_copied=200, bytes_resumed=80,
        seconds_copying=10.0, bytes_written=200, seconds_by_reason={"copying": 10.0},
    )  # fmt: skip
    run.activity(COPY, argument, start + 64.5, start + 70.6, rows(second))
    done = MoveRow("orders", 9, Outcome.SWAPPED, source, target, 1, seconds_locked=0.003)
    run.activity(SWAP, argument, start + 70.7, start + 70.8, rows(done))
    return run.complete(start + 70.9, rows(done))


def invalid(name: str = "typo", start: float = 30.0) -> RunBuilder:
    """A parameter that cannot be used: an `InvalidPlan` and no replica."""
    run = RunBuilder(f"by-hand-{name}", f"run-{name}", parameter={"topci": "orders", "sla_seconds": 5}, start=start)
    return run.fail(start + 0.1, "InvalidPlan", "$.topic is missing")


def terminated(name: str = "killed", start: float = 40.0) -> RunBuilder:
    """Terminated before its first step was done."""
    parameter = {"topic": "orders", "partition": 11, "node": 1, "directory": D2, "sla_seconds": 50}
    run = RunBuilder(f"rehome/move/1/orders-11/{name}", f"run-{name}", parameter=parameter, start=start)
    run.task(start)
    return run.terminate(start + 2.0)


def cluster() -> list[RunBuilder]:
    """The controller, continued as new once, and a lease: open for ever, and no moves."""
    first = RunBuilder("rehome", "run-c1", "Cluster", parameter={"state": "..."}, start=-100.0)
    first.continue_as_new(5.0, "run-c2")
    second = RunBuilder(
        "rehome", "run-c2", "Cluster", parameter={"state": "..."}, start=5.0, first_run_id="run-c1",
        continued_from="run-c1",
    )  # fmt: skip
    second.task(5.0)
    lease = RunBuilder("rehome/lease/1/abc", "run-l1", "NodeLease", start=-90.0)
    lease.open_activity("hold_lease", {"cluster": "rehome", "node": 1, "incarnation": "abc"}, -90.0, 5, {"ok": True})
    return [first, second, lease]


def late(name: str = "late", start: float = 15.0) -> RunBuilder:
    """In place after its deadline."""
    return moved(name, topic="clicks", partition=1, node=3, start=start, copying=22.0, throttled=9.0, sla=25.0)


def morning() -> list[RunBuilder]:
    """All of them, and a few that went well."""
    well = [
        moved(
            f"m{i}",
            topic=("orders", "payments", "clicks")[i % 3],
            partition=i,
            node=i % 3 + 1,
            start=i * 1.7,
            queued=(i * 0.9) % 4,
            copying=4 + i * 1.3 % 9,
            throttled=2.0 + i % 3,
            stalled=0.4 if i == 4 else 0.0,
            size=(60 + i * 23) * 1_000_000,
            resumed=64_000_000 if i == 5 else 0,
            attempts=2 if i == 5 else 1,
            sla=(None, 30.0, 40.0)[i % 3],
        )
        for i in range(9)
    ]
    others = [failed(), cancelled(), under_way(), lane(), paused(), invalid(), terminated(), late()]
    return [*well, *others, *cluster()]
