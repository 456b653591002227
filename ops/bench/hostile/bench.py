"""The cost of hostile clients for our node and Apache Kafka's broker: the same attacks on both, at full size."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from ops.bench.bench import Bench
from ops.bench.hostile.attacks import ATTACKS
from ops.bench.hostile.servers import ApacheBroker, OurNode
from ops.bench.hostile.siege import MIB, Cost, Limits, Server, Siege
from ops.bench.table import Figure, milliseconds

SECONDS = 5.0
#: Seconds to recover from an attack; a JVM does not return memory to the system, so a longer wait is useless.
SETTLE, SETTLE_JAVA = 20.0, 5.0
#: Before the attacks: a server's first requests are slow.
WARM_UP, PAUSE = 20.0, 2.0
LIMITS = Limits()
#: The number of outcomes in a cell of the table.
SHOWN = 4
WANTED = f"p99 <= {milliseconds(LIMITS.p99)}, <= +{LIMITS.grown // MIB} MiB, <= +{LIMITS.descriptors} files"


def hostile(bench: Bench) -> list[Figure]:
    """Return a line per attack: the well-behaved client's p99, the growth of memory and descriptors, the outcomes."""
    ours = _costs(bench, "rehome", OurNode)
    theirs = {cost.attack.name: cost for cost in _costs(bench, "Apache Kafka", ApacheBroker)}
    figures = []
    for cost in ours:
        peer = theirs.get(cost.attack.name)
        problems = cost.problems(LIMITS)
        for problem in problems:
            bench.say(f"{cost.attack.name}: {problem}")
        figures.append(
            Figure(
                f"{cost.attack.name}: {cost.attack.what}",
                words(cost),
                words(peer) if peer else "",
                cost.p99 / peer.p99 if peer and peer.p99 else None,
                WANTED,
                not problems,
            )
        )
    return figures


def words(cost: Cost) -> str:
    """Format an attack's cost for a cell of the table."""
    if cost.broken:
        return cost.broken
    outcomes = sorted(cost.outcomes, key=lambda name: -cost.outcomes[name])
    more = f" and {len(outcomes) - SHOWN} more" if len(outcomes) > SHOWN else ""
    memory = f"{cost.grown / MIB:+.0f} MiB (at most {cost.peak / MIB:+.0f})"
    files = f"{cost.descriptors:+d} files"
    return f"p99 {milliseconds(cost.p99)}, {memory}, {files}; {', '.join(outcomes[:SHOWN])}{more}"


def _costs(bench: Bench, name: str, make: Callable[[Path], AbstractContextManager[Server]]) -> list[Cost]:
    """Return the cost of every attack that applies; our node is killed after each, and must not lose a record."""
    found: list[Cost] = []
    folder = bench.folder / f"hostile-{name.split()[0].lower()}"
    with make(folder) as server:
        settle = SETTLE if server.ours else SETTLE_JAVA
        with Siege(server, seconds=SECONDS, scale=1.0, settle=settle) as siege:
            siege.calm(WARM_UP)
            for attack in ATTACKS:
                if attack.ours_only and not server.ours:
                    continue
                bench.say(f"{name}: {attack.name}, {attack.what} ...")
                cost = siege.make(attack)
                if server.ours or cost.broken:
                    cost = _restarted(siege, cost)
                found.append(cost)
                siege.calm(PAUSE)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _restarted(siege: Siege, cost: Cost) -> Cost:
    """Restart the server; return the cost with the losses that this has shown."""
    siege.server.restart(clean=False)
    problems = [cost.broken] if cost.broken else []
    problems += [f"after a restart: {what}" for what in siege.missing()]
    return replace(cost, broken="; ".join(problems))
