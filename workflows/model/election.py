"""What a partition's row becomes when nodes, directories, the ISR or the assignment change. Pure.

Every change of a partition goes through `decide`: it takes who cannot serve out of the ISR, completes a reassignment
whose target is in sync, and chooses the leader, all in one step of the partition epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from workflows.model.assignment import Assignment
from workflows.model.state import NO_LEADER, ClusterState, Node, OfflineReplica, Partition, Topic

UNCLEAN = "unclean.leader.election.enable"


def unclean_allowed(state: ClusterState, topic: Topic) -> bool:
    """unclean.leader.election.enable of a topic: its own, else the default of all brokers, else what server.properties
    say of all registered nodes: one that says no, or nothing, is enough for no.
    """
    value = topic.configs.get(UNCLEAN)
    if value is None:
        defaults = state.configs.get(("broker", ""))
        value = defaults.values.get(UNCLEAN) if defaults is not None else None
    if value is None:
        return bool(state.nodes) and all(node.unclean for node in state.nodes.values())
    return value == "true"


def decide(
    before: Partition,
    nodes: Mapping[int, Node],
    *,
    assignment: Assignment | None = None,
    isr: Sequence[int] | None = None,
    offline: tuple[OfflineReplica, ...] | None = None,
    restarted: Collection[int] = (),
    unclean: bool = False,
    even_added: bool = False,
    prefer: int | None = None,
) -> Partition:
    """The partition as it should be, under another `assignment`, `isr` or list of `offline` replicas if given; `before`
    itself if nothing changes.

    - A replica that its node reports offline cannot serve, whatever its directory does.
    - Who cannot serve leaves the ISR as long as somebody else stays in it; so do nodes that
      `restarted`, since they may have lost what they had not flushed. The last members stay: they alone may lead again.
    - A reassignment is complete once every replica of its target is in the ISR.
    - The leader stays while it can serve and is in the ISR, else the first replica in the ISR that can serve leads
      (`prefer`, if it is one); with none, nobody (-1), or, if `unclean`, any replica that can serve, which is then the
      whole ISR. Not one that is only being added, unless `even_added`: it may hold nothing at all, and a reassignment
      of a partition that is away for a moment would lose everything.
    - The leader epoch rises with every election, also of the same node after it `restarted`, and when replicas leave.
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
    leader, anew = before.leader, before.leader in restarted
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
            anew = True
            wanted, members = _completed(wanted, (leader,))
    return _stepped(before, wanted, members, leader, anew, offline)


def _completed(wanted: Assignment, members: tuple[int, ...]) -> tuple[Assignment, tuple[int, ...]]:
    done = wanted.complete(members)
    return (wanted, members) if done is None else (done, done.in_sync(members))


def _stepped(
    before: Partition,
    assignment: Assignment,
    isr: tuple[int, ...],
    leader: int,
    anew: bool,
    offline: tuple[OfflineReplica, ...],
) -> Partition:
    """The next row of a partition: directories and generations follow the replicas, epochs rise as they must."""
    left = bool(before.assignment.dropped_by(assignment))
    elected = leader != NO_LEADER and (anew or leader != before.leader)
    offline = tuple(each for each in offline if each.node in assignment.replicas)
    same = (assignment, isr, leader, offline) == (before.assignment, before.isr, before.leader, before.offline)
    if not left and not elected and same:
        return before
    epochs = before.leader_epoch + (1 if left or elected else 0), before.partition_epoch + 1
    if assignment.replicas == before.replicas:
        return Partition(
            before.index, assignment, before.directories, before.generations, isr, leader, *epochs, offline
        )
    held = {
        node: (directory, generation)
        for node, directory, generation in zip(before.replicas, before.directories, before.generations, strict=True)
    }
    rows = [held.get(node, ("", 0)) for node in assignment.replicas]
    return Partition(
        before.index,
        assignment,
        tuple([directory for directory, _ in rows]),
        tuple([generation for _, generation in rows]),
        isr,
        leader,
        *epochs,
        offline,
    )


def decide_all(state: ClusterState, of: Callable[[Partition], bool], restarted: Collection[int] = ()) -> ClusterState:
    """All partitions for which `of` holds, as they should be; each topic that changes is changed once."""
    changed: list[Topic] = []
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
    """All partitions with a replica on the node, as they should be after it came, went or lost a directory."""
    return decide_all(state, lambda each: node in each.replicas, (node,) if restarted else ())
