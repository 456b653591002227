"""One partition in the controller's own model: commands as its nodes send them, rows as its images hold them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from activities.controller.port import _result
from storage_node.model.command_rows import encode
from storage_node.model.commands import AlterPartitions, IsrChange
from storage_node.model.metadata import PartitionImage
from storage_node.ports import ChangeResult
from workflows.model.metadata import commands
from workflows.model.metadata.outcome import Change
from workflows.model.metadata.state import ClusterState
from workflows.model.metadata.topics import new_partition

NODES = (1, 2, 3)
TOPIC = "t"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAg"


def _applied(state: ClusterState, command: dict[str, Any]) -> Change:
    return commands.apply(state, command, lambda: TOPIC_ID)


def _with(state: ClusterState, held: PartitionImage) -> ClusterState:
    return state.with_topics(replace(state.topics[TOPIC], partitions=(held,)))


def _registration(node: int, start: int) -> dict[str, Any]:
    at = {"host": "localhost", "port": 9092, "directories": [[f"d{node}", "/a", True]]}
    return {"do": "register", "node": node, "incarnation": f"i{node}-{start}", **at}


@functools.cache
def _beginning() -> ClusterState:
    state = ClusterState("c")
    for node in NODES:
        state = _applied(state, _registration(node, 1)).state
        state = state.with_node(replace(state.nodes[node], broker_epoch=1))
    state = _applied(state, {"do": "create_topics", "topics": [{"name": TOPIC, "partitions": 1}]}).state
    return _with(state, replace(new_partition(state, 0, NODES), leader_epoch=1))


class ModelPartition:
    """`t-0` on the nodes 1 to 3 under leader epoch 1, with partition epoch 0; each node's broker epoch is 1."""

    def __init__(self, isr: Sequence[int] = (1, 2, 3)) -> None:
        self.state = _beginning()
        self._starts = dict.fromkeys(NODES, 1)
        if tuple(isr) != self.held.isr:
            self._replace(replace(self.held, isr=tuple(isr)))

    def _do(self, command: dict[str, Any]) -> list[Any]:
        change = _applied(self.state, command)
        self.state = change.state
        return list(change.results)

    def _replace(self, held: PartitionImage) -> None:
        self.state = _with(self.state, held)

    @property
    def held(self) -> PartitionImage:
        """The partition as the controller has it."""
        return self.state.topics[TOPIC].partitions[0]

    @property
    def row(self) -> PartitionImage:
        """The partition as an image has it."""
        return self.held

    @property
    def brokers(self) -> dict[int, int]:
        """The broker epochs of the nodes that are not fenced."""
        return {node.node: node.broker_epoch for node in self.state.nodes.values() if not node.fenced}

    def alter(self, node: int, change: IsrChange) -> ChangeResult:
        """AlterPartition of a leader."""
        (found,) = self._do(encode(AlterPartitions(node, (change,))))
        return _result(found)

    def register(self, node: int, *, restarted: bool = False) -> int:
        """The node registers, perhaps after another start; answers its broker epoch."""
        self._starts[node] += restarted
        (found,) = self._do(_registration(node, self._starts[node]))
        assert not found.get("error"), found
        return self.state.nodes[node].broker_epoch

    def fence(self, node: int) -> None:
        """The node's lease ends."""
        incarnation = self.state.nodes[node].incarnation
        self._do({"do": "lease_ended", "node": node, "incarnation": incarnation})

    def report(self, node: int, reason: str) -> None:
        """The node reports its replica offline, or usable again with the reason ""."""
        epoch, rows = self.state.nodes[node].broker_epoch, [[TOPIC, 0, "", "", 0, reason, ""]]
        self._do({"do": "report_replicas", "node": node, "epoch": epoch, "replicas": rows})

    def elect(self) -> None:
        """The preferred replica is to lead."""
        self._do({"do": "elect_leaders", "partitions": [[TOPIC, 0]], "unclean": False})

    def at_epoch(self, leader_epoch: int) -> None:
        """The leader goes on under a later epoch, as when a replica was dropped."""
        held = self.held
        self._replace(replace(held, leader_epoch=leader_epoch, partition_epoch=held.partition_epoch + 1))
