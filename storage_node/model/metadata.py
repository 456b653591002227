"""What the metadata consists of: topics with their partitions, and nodes with their log directories.

Values, immutable, and the same for the controller that changes them and for the nodes that apply them. Each keeps its
own digest once it was computed, so that a change hashes only what it has changed (digest.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from storage_node.model import digest
from storage_node.model.assignment import Assignment
from storage_node.model.ids import MIGRATING, NO_LEADER, UNASSIGNED


@dataclass(frozen=True, slots=True)
class OfflineReplica:
    """A replica that its node reports as offline although the log directory is online: why, and which file or folder
    failed ("" where the node does not name one).
    """

    node: int
    reason: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition. `directories` and `generations` are in the order of the replicas; "" is a directory that is not
    known yet. `offline` holds the replicas that their nodes report as offline, by node.
    """

    index: int
    assignment: Assignment
    directories: tuple[str, ...]
    generations: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    offline: tuple[OfflineReplica, ...] = ()
    _digest: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def digest(self) -> int:
        """The digest of its row; computed once."""
        known = self._digest
        if known is None:
            held = self.assignment
            sets = (held.replicas, held.adding, held.removing, held.original)
            epochs = (self.leader, self.leader_epoch, self.partition_epoch)
            offline = tuple((each.node, each.reason, each.file) for each in self.offline)
            row = (self.index, sets, self.directories, self.generations, self.isr, epochs, offline)
            known = digest.of_row(row)
            object.__setattr__(self, "_digest", known)
        return known

    @property
    def replicas(self) -> tuple[int, ...]:
        """The nodes that hold it, in order of preference."""
        return self.assignment.replicas

    def offline_on(self, node: int) -> OfflineReplica | None:
        """What the node reports of its replica; None while it is usable."""
        return next((each for each in self.offline if each.node == node), None)

    def directory_of(self, node: int) -> str | None:
        """The directory id assigned to the node's replica; None when it has none, or none is assigned yet."""
        try:
            directory = self.directories[self.assignment.replicas.index(node)]
        except ValueError:
            return None
        return None if directory in ("", UNASSIGNED, MIGRATING) else directory

    def generation_of(self, node: int) -> int:
        """The generation that the metadata holds for the node's replica, 0 without one."""
        try:
            return self.generations[self.assignment.replicas.index(node)]
        except ValueError:
            return 0

    def at_least(self, leader_epoch: int) -> PartitionImage:
        """The partition at this leader epoch, where its own is lower."""
        return self if self.leader_epoch >= leader_epoch else replace(self, leader_epoch=leader_epoch)


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; the index of each partition is its place."""

    name: str
    id: str
    configs: Mapping[str, str]
    partitions: tuple[PartitionImage, ...]
    _digest: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def digest(self) -> int:
        """The digest of its row and those of its partitions; computed once."""
        known = self._digest
        if known is None:
            below = digest.total(each.digest for each in self.partitions)
            known = digest.of_row(("topic", self.name, self.id, digest.of_items(self.configs), below))
            object.__setattr__(self, "_digest", known)
        return known

    def partition(self, index: int) -> PartitionImage | None:
        """The partition of this index; None where the topic has none."""
        return self.partitions[index] if 0 <= index < len(self.partitions) else None

    def with_partitions(self, changed: Iterable[PartitionImage]) -> TopicImage:
        """The topic in which these take the place of the partitions with their index. Raises IndexError."""
        partitions = list(self.partitions)
        for each in changed:
            partitions[each.index] = each
        return replace(self, partitions=tuple(partitions))


@dataclass(frozen=True, slots=True)
class DirectoryRegistration:
    """A log directory as its node registered it: its id (KIP-858), absolute path and whether it is online."""

    id: str
    path: str
    online: bool = True


@dataclass(frozen=True, slots=True)
class NodeImage:
    """A registered node: one incarnation with its epoch, address and directories. A fenced one leads nothing."""

    node: int
    incarnation: str
    broker_epoch: int
    host: str
    port: int
    directories: tuple[DirectoryRegistration, ...] = ()
    fenced: bool = False
    rack: str = ""
    unclean: bool = False
    """unclean.leader.election.enable of its server.properties."""
    _digest: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def digest(self) -> int:
        """The digest of its row; computed once."""
        known = self._digest
        if known is None:
            directories = tuple((each.id, each.path, int(each.online)) for each in self.directories)
            start = ("node", self.node, self.incarnation, self.broker_epoch, self.host, self.port, directories)
            known = digest.of_row((*start, int(self.fenced), self.rack, int(self.unclean)))
            object.__setattr__(self, "_digest", known)
        return known

    def holds(self, directory_id: str) -> bool:
        """Whether the node can serve from this directory now; one not known yet ("") counts as good."""
        if self.fenced or directory_id == "":
            return not self.fenced
        for each in self.directories:  # a loop: it is gone through for each replica of a failed node
            if each.id == directory_id:
                return each.online
        return False


def configs_digest(kind: str, name: str, values: Mapping[str, str]) -> int:
    """The digest of the dynamic configs of one broker (`name` is its id), or of all ("")."""
    return digest.of_row(("configs", kind, name, digest.of_items(values)))


def metadata_digest(
    topics: Iterable[TopicImage],
    nodes: Iterable[NodeImage],
    configs: Mapping[tuple[str, str], Mapping[str, str]],
) -> str:
    """The digest of all that images convey, as it travels: nodes and the controller compare theirs (digest.py)."""
    digests = [each.digest for each in topics]
    digests += [each.digest for each in nodes]
    digests += [configs_digest(kind, name, values) for (kind, name), values in configs.items()]
    return digest.text(digest.total(digests))
