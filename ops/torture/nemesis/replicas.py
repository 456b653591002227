"""The nemesis' actions on replicas: reassign, reassign again, cancel, elect leaders, throttle replication."""

from __future__ import annotations

import time
from collections.abc import Callable

from ops.torture.ask import Led
from ops.torture.checks.facts import Place
from ops.torture.nemesis.decisions import Decision
from ops.torture.nemesis.reassigning import Reassigning
from ops.torture.roles import Roles

#: The shares of targets with one replica less, and one more, than the partition has.
FEWER, MORE = 0.15, 0.15
LEAST = 2
LOWEST_RATE, HIGHEST_RATE = 100_000, 4_000_000
AT_ONCE = 6
#: Seconds at most between a reassignment that an action begins itself and its change or cancel.
BEGUN_SECONDS = 1.0

Deed = Callable[[Decision], tuple[str, str]]


def target(decision: Decision, which: int, now: tuple[int, ...], nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Return new replicas for a partition, possibly the same in another order, determined by the decision."""
    count = len(now) - (1 if decision.picks[which] < FEWER else -1 if decision.picks[which] > 1 - MORE else 0)
    count = max(min(LEAST, len(now)), min(count, len(nodes)))
    return tuple(decision.shuffled(which, nodes)[:count])


class Replicas:
    """Actions on replicas."""

    def __init__(self, roles: Roles, reassigning: Reassigning, *, usual: int) -> None:
        """`usual`: the replication factor, which the next request restores after a change."""
        self._roles, self._reassigning, self._usual = roles, reassigning, usual
        self.throttled: set[str] = set()
        """Topics whose replication is or may be throttled."""

    @property
    def deeds(self) -> dict[str, Deed]:
        """The actions by their names in `decisions.REPLICATED`."""
        return {
            "reassign": self.reassign,
            "reassign-many": self.reassign_many,
            "reassign-again": self.reassign_again,
            "cancel-reassignment": self.cancel,
            "cancel-reassignment-by-temporal": self.cancel_by_temporal,
            "elect-leaders": self.elect,
            "throttle-replication": self.throttle,
        }

    def settle(self) -> None:
        """Remove the replication throttles. Raises `OpsError`."""
        self._reassigning.throttle(sorted(self.throttled), self._roles.nodes, None)
        self.throttled.clear()

    def reassign(self, decision: Decision) -> tuple[str, str]:
        row = decision.pick(0, self._reassigning.partitions())
        to = self._target(decision, 1, row)
        return f"{row.topic}-{row.partition} {list(row.replicas)} to {list(to)}", self._request({_place(row): to})

    def reassign_many(self, decision: Decision) -> tuple[str, str]:
        """Reassign several partitions in one request, each to replicas of its own."""
        rows = decision.shuffled(0, self._reassigning.partitions())[: 2 + int(decision.picks[1] * (AT_ONCE - 1))]
        wanted = {_place(row): tuple(decision.shuffled(2 + n % 4, self._roles.nodes))[: self._usual]
                  for n, row in enumerate(rows)}  # fmt: skip
        what = ", ".join(f"{topic}-{number} to {list(to)}" for (topic, number), to in wanted.items())
        return what, self._request(wanted)

    def _begun(self, decision: Decision, which: int) -> list[Place]:
        """Return the partitions that are being reassigned; begin a reassignment if there are none."""
        if running := sorted(self._reassigning.running()):
            return running
        row = decision.pick(which, self._reassigning.partitions())
        # A new first replica: the reassignment then completes only when that replica has caught up.
        new = [node for node in self._roles.nodes if node not in row.replicas]
        to = (*new, *row.replicas)[: max(self._usual, len(new))]
        self._request({_place(row): to})
        time.sleep(decision.between(which, 0.0, BEGUN_SECONDS))
        return sorted(self._reassigning.running())

    def reassign_again(self, decision: Decision) -> tuple[str, str]:
        """Request another target for a partition that is being reassigned."""
        place = decision.pick(0, self._begun(decision, 2))
        to = tuple(decision.shuffled(1, self._roles.nodes))[: self._usual]
        return f"{place[0]}-{place[1]} to {list(to)} instead", self._request({place: to})

    def cancel(self, decision: Decision) -> tuple[str, str]:
        running = self._begun(decision, 2)
        some = running if decision.picks[1] < 0.2 else [decision.pick(0, running)]
        if not some:
            raise IndexError
        return ", ".join(f"{t}-{n}" for t, n in some), self._request(dict.fromkeys(some))

    def cancel_by_temporal(self, decision: Decision) -> tuple[str, str]:
        self._begun(decision, 2)
        run = decision.pick(0, self._reassigning.open_runs())
        places = [_place(row) for row in self._reassigning.partitions()]
        return run, self._reassigning.cancel_run(run, places)

    def elect(self, decision: Decision) -> tuple[str, str]:
        rows = decision.shuffled(0, self._reassigning.partitions())[: 1 + int(decision.picks[1] * AT_ONCE)]
        places = [_place(row) for row in rows]
        return f"for {len(places)} partitions", self._reassigning.elect(places, unclean=False)

    def throttle(self, decision: Decision) -> tuple[str, str]:
        """Throttle the replication of one topic on one node, or remove all throttles."""
        if decision.picks[0] < 0.4 and self.throttled:
            self.settle()
            return "of all topics and nodes", "removed"
        topic = decision.pick(1, sorted({row.topic for row in self._reassigning.partitions()}))
        node = decision.pick(2, self._roles.nodes)
        rate = int(LOWEST_RATE * (HIGHEST_RATE / LOWEST_RATE) ** decision.picks[3])
        self.throttled.add(topic)
        self._reassigning.throttle([topic], [node], rate)
        return f"of {topic} on node {node} to {rate}", "set"

    def _target(self, decision: Decision, which: int, row: Led) -> tuple[int, ...]:
        # A partition with fewer or more replicas than the replication factor gets that number by the next request.
        if len(row.replicas) != self._usual:
            return tuple(decision.shuffled(which, self._roles.nodes))[: self._usual]
        return target(decision, which, row.replicas, self._roles.nodes)

    def _request(self, wanted: dict[Place, tuple[int, ...]] | dict[Place, None]) -> str:
        return self._reassigning.ask(dict(wanted))


def _place(row: Led) -> Place:
    return row.topic, row.partition
