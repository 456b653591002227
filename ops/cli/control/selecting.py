"""Which open runs a person means by an id, a partition, a topic or a prefix. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ops.cli.moves.move import as_replica
from ops.stack.errors import UsageError
from storage_node.model.ids import TopicPartition

#: Partitions, or runs, that a sentence names.
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """An open run and the partitions that it moves; `plan` is the workflow id of the plan that a lane belongs to."""

    workflow_id: str
    run_id: str
    type: str
    partitions: frozenset[TopicPartition]
    plan: str = ""


@dataclass(frozen=True, slots=True)
class Matched:
    """A run that is meant, with those of its partitions that are; `others` are its other ones."""

    run: Candidate
    partitions: tuple[TopicPartition, ...] = ()
    others: tuple[TopicPartition, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether all of the run is meant."""
        return not self.others


class Scope(StrEnum):
    """What a text names."""

    PARTITION = "partition"
    TOPIC = "topic"
    PREFIX = "prefix"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One partition (orders-3), all partitions of a topic (orders-), or those whose name begins with a text (orders*).

    `text` is the partition, the topic's name, or the beginning.
    """

    text: str
    scope: Scope

    def has(self, partition: TopicPartition) -> bool:
        """Return whether a partition is meant."""
        if self.scope is Scope.TOPIC:
            return partition.topic == self.text
        name = str(partition)
        return name == self.text if self.scope is Scope.PARTITION else name.startswith(self.text)


def wanted(what: str) -> Wanted:
    """Read a partition such as orders-3, a topic's partitions such as orders-, or a prefix such as orders*.

    Raises `UsageError`.
    """
    if as_replica(what) is not None:
        return Wanted(what, Scope.PARTITION)
    if len(what) > 1 and what.endswith("-"):
        return Wanted(what.removesuffix("-"), Scope.TOPIC)
    if len(what) > 1 and what.endswith("*"):
        return Wanted(what.removesuffix("*"), Scope.PREFIX)
    raise UsageError(
        f"{what!r} is not the id of a run; pass an id as rehome moves shows it, a partition such as orders-3, orders- "
        "for all partitions of the topic orders, or a prefix that ends with *, such as orders*"
    )


def select(wanted: Wanted, candidates: Iterable[Candidate]) -> list[Matched]:
    """Return the runs that move one of the partitions meant, in the order of their ids."""
    found = []
    for run in sorted(candidates, key=lambda each: each.workflow_id):
        mine = tuple(sorted(each for each in run.partitions if wanted.has(each)))
        if mine:
            found.append(Matched(run, mine, tuple(sorted(run.partitions - set(mine)))))
    return found


def listed(partitions: Iterable[TopicPartition]) -> str:
    """Return some partitions as a text, and how many more there are."""
    return some([str(each) for each in partitions])


def some(every: Sequence[str]) -> str:
    """Return some names as a text, and how many more there are."""
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return f"{', '.join(every[:_SHOWN])}{more}"
