"""The next row of a partition when nodes, directories, the ISR or the assignment change. Pure.

Every change of a partition is made by `decide`: it shrinks the ISR to replicas that can serve, completes a reassignment
whose target is in sync, and elects the leader, all in one step of the partition epoch. A start, a failed node or
directory and an election decide many partitions (`decide_all`, `elect_all`), a topic and an ISR change their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from storage_node.model.assignment import Assignment
from storage_node.model.ids import NO_LEADER
from storage_node.model.metadata import NodeImage, OfflineReplica, PartitionImage, TopicImage
from workflows.model.metadata.state import ClusterState

UNCLEAN = "unclean.leader.election.enable"


def unclean_allowed(state: ClusterState, topic: TopicImage) -> bool:
    """Return unclean.leader.election.enable of a topic: its own value, else the default of all brokers, else whether
    server.properties enable it on every registered node.
    """
    value = topic.configs.get(UNCLEAN)
    if value is None:
        defaults = state.configs.get(("broker", ""))
        value = defaults.get(UNCLEAN) if defaults is not None else None
    if value is None:
        return bool(state.nodes) and all(node.unclean for node in state.nodes.values())
    return value == "true"


def decide(
    before: PartitionImage,
    nodes: Mapping[int, NodeImage],
    *,
    assignment: Assignment | None = None,
    isr: Sequence[int] | None = None,
    offline: tuple[OfflineReplica, ...] | None = None,
    restarted: Collection[int] = (),
    unclean: bool = False,
    even_added: bool = False,
    prefer: int | None = None,
) -> PartitionImage:
    """Return the next row of a partition, under another `assignment`, `isr` or list of `offline` replicas if given;
    `before` itself if nothing changes.

    - A replica that its node reports offline cannot serve, even if its directory is online.
    - Replicas that cannot serve leave the ISR unless it would be empty; so do those of nodes that `restarted`, since
      they may have lost unflushed records. The last members stay: only they may lead again.
    - A reassignment is complete once every replica of its target is in the ISR.
    - The leader stays while it can serve and is in the ISR, else the first replica in the ISR that can serve is elected
      (`prefer`, if it is one). Without one the partition has no leader (-1), or, if `unclean`, any replica that can
      serve, which is then the whole ISR; not one that is only being added, unless `even_added`: it may be empty, and a
      partition that is unavailable for a moment during a reassignment would lose all records.
    - The leader epoch increases with every election, also of the same node after it `restarted`, and when replicas are
      removed.
    """
    wanted = before.assignment if assignment is None else assignment
    places = dict(zip(before.replicas, before.directories, strict=True))
    offline = before.offline if offline is None else offline
    bad = {each.node for each in offline}
    able = {
        node
        for node in wanted.replicas
        if node in nodes and node not in bad and nodes[node].holds(places.get(node, ""))
    }
    members = wanted.in_sync(before.isr if isr is None else isr)
    fit = tuple(node for node in members if node in able)
    members = tuple(node for node in fit if node not in restarted) or fit or members
    wanted, members = _completed(wanted, members)
    leader, reelected = before.leader, before.leader in restarted
    candidates = [node for node in wanted.replicas if node in members and node in able]
    if prefer in candidates:
        leader = prefer if prefer is not None else leader
    elif candidates:
        leader = leader if leader in candidates else candidates[0]
    else:
        spare = [node for node in wanted.replicas if node in able and node not in wanted.adding]
        spare += [node for node in wanted.adding if node in able and even_added]
        leader = spare[0] if spare and unclean else NO_LEADER
        if leader != NO_LEADER:
            reelected = True
            wanted, members = _completed(wanted, (leader,))
    return _stepped(before, wanted, members, leader, reelected, offline)


def _completed(wanted: Assignment, members: tuple[int, ...]) -> tuple[Assignment, tuple[int, ...]]:
    done = wanted.complete(members)
    return (wanted, members) if done is None else (done, done.in_sync(members))


def _stepped(
    before: PartitionImage,
    assignment: Assignment,
    isr: tuple[int, ...],
    leader: int,
    reelected: bool,
    offline: tuple[OfflineReplica, ...],
) -> PartitionImage:
    """Return the next row of a partition, with the directories and generations of its replicas and the next epochs."""
    left = bool(before.assignment.dropped_by(assignment))
    elected = leader != NO_LEADER and (reelected or leader != before.leader)
    offline = tuple(each for each in offline if each.node in assignment.replicas)
    same = (assignment, isr, leader, offline) == (before.assignment, before.isr, before.leader, before.offline)
    if not left and not elected and same:
        return before
    epochs = before.leader_epoch + (1 if left or elected else 0), before.partition_epoch + 1
    if assignment.replicas == before.replicas:
        return PartitionImage(
            before.index, assignment, before.directories, before.generations, isr, leader, *epochs, offline
        )
    held = {
        node: (directory, generation)
        for node, directory, generation in zip(before.replicas, before.directories, before.generations, strict=True)
    }
    rows = [held.get(node, ("", 0)) for node in assignment.replicas]
    return PartitionImage(
        before.index,
        assignment,
        tuple([directory for directory, _ in rows]),
        tuple([generation for _, generation in rows]),
        isr,
        leader,
        *epochs,
        offline,
    )


def decide_all(
    state: ClusterState, of: Callable[[PartitionImage], bool], restarted: Collection[int] = ()
) -> ClusterState:
    """Return the state after `decide` for all partitions that satisfy `of`; each changed topic is written once."""
    changed: list[TopicImage] = []
    for topic in state.topics.values():
        if not any(of(each) for each in topic.partitions):
            continue
        unclean = unclean_allowed(state, topic)
        partitions = tuple(
            decide(each, state.nodes, restarted=restarted, unclean=unclean) if of(each) else each
            for each in topic.partitions
        )
        if any(after is not before for after, before in zip(partitions, topic.partitions, strict=True)):
            changed.append(replace(topic, partitions=partitions))
    return state.with_topics(*changed) if changed else state


def elect_all(state: ClusterState, node: int, restarted: bool) -> ClusterState:
    """Return the state after `decide` for all partitions with a replica on the node, which registered, was fenced, or
    lost a directory.
    """
    return decide_all(state, lambda each: node in each.replicas, (node,) if restarted else ())
