"""When two worlds of the crash model count as one.

* `outline` looks at all that a start decides by and at every record; not at what can be made again (indexes, snapshots)
  nor at files under a name of the way (`.tmp`).
* `canonical` looks at the same, but only at how offsets, generations, claims and versions stand to each other, and at
  which disk an id is. Worlds that are alike in this meet the same rows of the boot table, whatever came before them.
  What a killed process left unflushed of the replicas' names counts too: the next loss of power may take it back.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from storage_node.directories import image_store, names
from storage_node.directories.errors import MalformedFile, MalformedMetaProperties
from storage_node.directories.meta import properties as meta_properties
from storage_node.model.image import ClusterImage, decode_whole
from storage_node.replicas.marker import State
from tests.simulation.crash.checks import FoundCopy, copies
from tests.simulation.crash.node import TP
from tests.simulation.crash.world import Truth, World
from tests.simulation.inodes import State as DiskState

_IMAGE = image_store.FILE
_CHECKPOINTS = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint")
_NONE = -1


def outline(world: World, without: str = "") -> int:
    """The same for worlds that differ only in what no start decides by: indexes, snapshots, half-written files."""
    truth = world.truth
    states = {name: state for name, state in world.disks.items() if name != without}
    told = [(*copy.summary(), copy.name, copy.start, copy.values) for copy in copies(states)]
    rest = [(name, *(_file(state, file) for file in (_IMAGE, *_CHECKPOINTS))) for name, state in states.items()]
    promised = (truth.topic_id, truth.acked, truth.flushed, truth.needed, truth.start, truth.tried, truth.lost)
    return hash((promised, truth.image.version, tuple(told), tuple(rest)))


def canonical(world: World) -> int:
    """The same for worlds that differ only in how large numbers are, not in how they stand to each other."""
    truth = world.truth
    states = world.disks
    found = copies(states)
    images = {name: _image(_file(state, _IMAGE)) for name, state in states.items()}
    points = {name: [_checkpoint(_file(state, file)) for file in _CHECKPOINTS] for name, state in states.items()}
    ids = {_own(_file(state, meta_properties.FILE))[0]: name for name, state in world.disks.items()}
    known = [_own(_file(state, meta_properties.FILE))[1] for state in states.values()]

    offsets = _Ranks(
        [
            *(number for copy in found for number in _offsets(copy, truth)),
            *(number for row in points.values() for number in row),
            *_promised(truth),
        ]
    )
    claims = _Ranks(copy.marker.claim for copy in found if copy.marker is not None)
    versions = _Ranks([truth.image.version, *(image.version for image in images.values())])
    base = min((copy.marker.generation for copy in found if copy.marker is not None), default=0)

    def of_image(image: ClusterImage) -> tuple[object, ...]:
        topic, row = image.topics.get(TP.topic), image.partition(TP)
        told: tuple[object, ...] = ()
        if topic is not None and row is not None:
            directory = row.directory_of(1)
            told = (_whose(topic.id, truth), directory and ids.get(directory, "?"), row.generation_of(1) - base)
        return (versions[image.version], told, len(image.gone))

    def of_copy(copy: FoundCopy) -> tuple[object, ...]:
        marker = copy.marker
        told: tuple[object, ...] = ()
        if marker is not None:
            places = [at and ids.get(at, "?") for at in (marker.source_id, marker.target_id)]
            told = (marker.state, marker.reason, marker.generation - base, claims[marker.claim], *places)
        numbers = tuple(offsets[number] for number in _offsets(copy, truth))
        return (copy.disk, copy.kind, _whose(copy.topic_id, truth), copy.corrupt, copy.unborn, told, numbers)

    return hash(
        (
            truth.lost,
            world.without,
            _whose(truth.topic_id, truth),
            tuple(offsets[number] for number in _promised(truth)),
            of_image(truth.image),
            tuple(sorted(map(repr, map(of_copy, found)))),
            tuple((name, *of_image(image), *map(offsets.get, points[name])) for name, image in images.items()),
            tuple(_not_flushed(state) for state in states.values()),
            tuple(frozenset(ids.get(one, "?") for one in all_ids) for all_ids in known),
        )
    )


def _not_flushed(state: DiskState) -> tuple[tuple[str, bool], ...]:
    """What a loss of power may take back of the names of replicas: a start must not rely on them as they are."""
    changes = [(names.parse(n).kind, i is None) for op in state.journal for folder, n, i in op if folder is state.root]
    return tuple(change for change in changes if change[0] in ("current", "move", "delete"))


class _Ranks:
    """Numbers by their order; -1 stays what it is."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._rank = {number: rank for rank, number in enumerate(sorted({*numbers} - {_NONE}))}

    def __getitem__(self, number: int) -> int:
        return self._rank.get(number, _NONE)

    get = __getitem__


def _offsets(copy: FoundCopy, truth: Truth) -> tuple[int, ...]:
    marker = copy.marker
    sealed = marker is not None and marker.state is State.SEALED
    seal = (marker.seal_leo, marker.log_start) if marker is not None and sealed else (_NONE, _NONE)
    return (copy.start, copy.start + len(copy.values), copy.promised(truth), *seal)


def _promised(truth: Truth) -> tuple[int, ...]:
    return (truth.start, truth.needed, truth.flushed, len(truth.acked))


def _whose(topic_id: str, truth: Truth) -> str:
    if topic_id in ("", truth.topic_id):
        return topic_id and "current"
    return "gone" if topic_id in truth.image.gone else "other"


def _file(state: DiskState, name: str) -> bytes:
    inode = state.root.entries.get(name)
    return b"" if inode is None else bytes(inode.content)


@functools.lru_cache(maxsize=1 << 12)
def _image(data: bytes) -> ClusterImage:
    try:
        return decode_whole(image_store.decode(data).image)
    except MalformedFile:
        return ClusterImage()


@functools.lru_cache(maxsize=1 << 12)
def _own(data: bytes) -> tuple[str, tuple[str, ...]]:
    try:
        found = meta_properties.decode(data)
    except MalformedMetaProperties:
        return ("", ())
    return (found.directory_id or "", tuple(found.directory_ids or ()))


@functools.lru_cache(maxsize=1 << 12)
def _checkpoint(data: bytes) -> int:
    for line in data.decode("latin-1").splitlines():
        if line.startswith(f"{TP.topic} {TP.partition} "):
            return int(line.rsplit(" ", 1)[1])
    return _NONE
