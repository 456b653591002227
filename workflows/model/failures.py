"""A failed log directory: what a node tells of it, and what that changes in the metadata. Pure.

The change is compare-and-set: on the node's incarnation for its directories, on each replica's generation for where the
replica is. Whatever is told twice, late or in another order changes nothing the second time, and no failure is undone
by an older word; only the node's own registration brings a directory back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from workflows.model import fields, replicas
from workflows.model.election import elect_all
from workflows.model.outcome import Change, Code, Refused
from workflows.model.state import ClusterState, Directory, Node

RECORDED = "recorded"  # the directory is offline in the metadata
HEALED = "healed"  # the node was started again with the directory in order before anybody put it on record
FOREIGN = "foreign"  # another node has registered the directory: nothing is changed


@dataclass(frozen=True, slots=True)
class Move:
    """A move that ended since its source or target failed; `workflow_id` "" when no run had come to it yet."""

    topic: str
    partition: int
    source: str
    directory: str
    workflow_id: str = ""
    run_id: str = ""
    message: str = ""

    def row(self) -> dict[str, Any]:
        """As it stands in results."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Notice:
    """What a node tells: `noticed` in seconds since the epoch, `replicas` as [topic, topic id, [[partition,
    generation]]].
    """

    node: int
    incarnation: str
    directory: str
    directory_id: str
    reason: str
    noticed: float
    replicas: tuple[tuple[str, str, tuple[tuple[int, int], ...]], ...] = ()
    moves: tuple[Move, ...] = ()

    @property
    def count(self) -> int:
        """How many replicas the node served from the directory."""
        return sum(len(pairs) for _, _, pairs in self.replicas)

    def rows(self) -> list[list[Any]]:
        """The replicas as `replicas.Held` reads them."""
        return [
            [topic, partition, topic_id, self.directory_id, generation]
            for topic, topic_id, pairs in self.replicas
            for partition, generation in pairs
        ]


_KNOWN = ("node", "incarnation", "directory", "directory_id", "reason", "noticed", "replicas", "moves")


def parse_notice(parameter: Any) -> Notice:
    """Read the parameter of DirectoryFailure, strictly. Raises BadField."""
    row = fields.an_object(parameter, "$", _KNOWN)

    def text(name: str) -> str:
        return fields.a_string(fields.a_note(fields.need(row, name, "$"), f"$.{name}"), f"$.{name}")

    noticed = fields.need(row, "noticed", "$")
    if isinstance(noticed, bool) or not isinstance(noticed, int | float) or not 0 <= noticed < 1e11:
        raise fields.BadField("$.noticed", "must be a time in seconds since the epoch")
    return Notice(
        fields.a_number(fields.need(row, "node", "$"), "$.node", high=(1 << 31) - 1),
        text("incarnation"),
        text("directory"),
        text("directory_id"),
        text("reason"),
        float(noticed),
        tuple(_replicas(row.get("replicas") or [], "$.replicas")),
        tuple(_moves(row.get("moves") or [], "$.moves")),
    )


def _replicas(rows: Any, path: str) -> Iterable[tuple[str, str, tuple[tuple[int, int], ...]]]:
    for place, row in enumerate(fields.a_list(rows, path)):
        here = f"{path}[{place}]"
        if len(fields.a_list(row, here)) != 3:
            raise fields.BadField(here, "must have a topic, a topic id and a list of partitions with generations")
        pairs = []
        for number, pair in enumerate(fields.a_list(row[2], f"{here}[2]")):
            there = f"{here}[2][{number}]"
            if len(fields.a_list(pair, there)) != 2:
                raise fields.BadField(there, "must have a partition and a generation")
            pairs.append((fields.a_number(pair[0], f"{there}[0]"), fields.a_number(pair[1], f"{there}[1]")))
        yield fields.a_string(row[0], f"{here}[0]"), fields.a_string(row[1], f"{here}[1]"), tuple(pairs)


def _moves(rows: Any, path: str) -> Iterable[Move]:
    for place, each in enumerate(fields.a_list(rows, path)):
        here = f"{path}[{place}]"
        row = fields.an_object(each, here, Move.__slots__)

        def text(name: str, row: Mapping[str, Any] = row, here: str = here) -> str:
            return fields.a_note(row.get(name, ""), f"{here}.{name}")

        yield Move(
            fields.a_string(fields.need(row, "topic", here), f"{here}.topic"),
            fields.a_number(fields.need(row, "partition", here), f"{here}.partition"),
            text("source"),
            text("directory"),
            text("workflow_id"),
            text("run_id"),
            text("message"),
        )


# --- the change


def directory_failed(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """Take a failure in: {"node", "incarnation", "directory", "directory_id", "reason", "noticed", "replicas"}.

    The result has the `outcome`, the broker epoch as `value`, and `offline`, all replicas of the node that the metadata
    has in the directory now, as [topic, [partitions]]. A node that never registered is refused: it will.
    """
    notice = parse_notice({name: command[name] for name in _KNOWN if name in command})
    known = state.nodes.get(notice.node)
    if known is None:
        raise Refused(Code.BROKER_ID_NOT_REGISTERED, f"Node {notice.node} is not registered; it must register first.")
    if known.incarnation != notice.incarnation and known.holds(notice.directory_id):
        return Change(state, [_result(state, known, HEALED, [])])
    if _of_another(state, notice):
        return Change(state, [_result(state, known, FOREIGN, [])])
    node = _offline(known, notice) if known.incarnation == notice.incarnation else known
    after = state if node == known else state.with_node(node)
    after = lose(after, notice.node, notice.rows())
    if after is not state:
        after = elect_all(after, notice.node, restarted=False)
    offline = offline_replicas(after, notice.node, notice.directory_id)
    return Change(after, [_result(after, after.nodes[notice.node], RECORDED, offline)])


def _result(state: ClusterState, node: Node, outcome: str, offline: list[list[Any]]) -> dict[str, Any]:
    return {"version": state.version, "value": node.broker_epoch, "outcome": outcome, "offline": offline}


def _of_another(state: ClusterState, notice: Notice) -> bool:
    """Whether another node has registered the directory: taken in here, it would keep that node from registering
    again.
    """
    others = (node for node in state.nodes.values() if node.node != notice.node)
    return any(each.id == notice.directory_id for node in others for each in node.directories)


def _offline(node: Node, notice: Notice) -> Node:
    held = {each.id: each for each in node.directories}
    before = held.get(notice.directory_id, Directory(notice.directory_id, notice.directory))
    held[notice.directory_id] = replace(before, online=False)
    return replace(node, directories=tuple(held.values()))


def lose(state: ClusterState, node: int, rows: Iterable[Any]) -> ClusterState:
    """The state with these replicas in the (offline) directories that the node names for them (KIP-858's fallback).

    The node had them there when they failed; the metadata may have them elsewhere, or nowhere. Rows as in
    `replicas.assign_directories`; what is refused there (an older generation, another topic) is passed over.
    """
    change = replicas.assign_directories(state, {"node": node, "replicas": list(rows)}, str)
    return change.state


def offline_replicas(state: ClusterState, node: int, directory_id: str) -> list[list[Any]]:
    """The replicas that the metadata has in a directory of a node: [topic, [partitions]]."""
    found: dict[str, list[int]] = {}
    for topic, partition in state.partitions():
        for replica, directory in zip(partition.replicas, partition.directories, strict=True):
            if replica == node and directory == directory_id:
                found.setdefault(topic.name, []).append(partition.index)
    return [[name, partitions] for name, partitions in found.items()]
