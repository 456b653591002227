"""The end of a run: wait for its moves, restart every node twice, and gather the evidence for the checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ops.cli.kafka_admin import KafkaAdmin, LogDirectoryView
from ops.stack.errors import OpsError
from ops.stack.layout import node_name
from ops.torture import disk
from ops.torture.checks.facts import Boot, DirectoryFact, Home, Place, RoleFact, Scan, ThrottleFact, TopicFact
from ops.torture.checks.moves import SUFFIXES
from ops.torture.nemesis.moving import Moving
from ops.torture.nemesis.reassigning import Reassigning
from ops.torture.roles import Roles, all_names
from storage_node.config.table import MOVE_RATE
from workflows.model.metadata.state import ClusterState

LOOK_SECONDS = 0.5
#: Seconds without a change after which disks are at rest: longer than the intervals of retention and checkpoints.
REST_SECONDS = 2.5
REST_LIMIT = 30.0

Say = Callable[[str], None]


def wait_quiet(roles: Roles, moving: Moving, reassigning: Reassigning | None, seconds: float, say: Say) -> str:
    """Wait until no run is open, no folder of a move or of a dropped replica exists, and, with `reassigning`, no
    reassignment is in progress and all replicas are in sync; return what is left after `seconds`, or "".
    """
    until = time.monotonic() + seconds
    reported = time.monotonic() + 10
    while True:
        left = _unquiet(roles, moving, reassigning)
        if not left or time.monotonic() > until:
            return left
        if time.monotonic() > reported:
            say(f"waiting for {left}")
            reported = time.monotonic() + 10
        time.sleep(LOOK_SECONDS)


def _unquiet(roles: Roles, moving: Moving, reassigning: Reassigning | None) -> str:
    try:
        runs = moving.open_runs()
        replicas = _unsettled(roles, reassigning) if reassigning is not None else []
    except OpsError as error:
        return str(error)
    folders = [
        folder
        for node in roles.nodes
        for directory in roles.log_dirs(node)
        for folder in disk.folders(roles.disk(node, directory))
        if folder.endswith(SUFFIXES)
    ]
    waiting = replicas
    if runs:
        waiting.append(f"{len(runs)} runs ({runs[0]})")
    if folders:
        waiting.append(f"{len(folders)} folders ({folders[0]})")
    return " and ".join(waiting)


def _unsettled(roles: Roles, reassigning: Reassigning) -> list[str]:
    """Return the reassignments, replicas out of sync and dropped replicas that are left."""
    words = []
    if runs := reassigning.open_runs():
        words.append(f"{len(runs)} reassignments ({runs[0]})")
    if running := reassigning.running():
        words.append(f"{len(running)} partitions that are reassigned ({next(iter(running))})")
    rows = reassigning.partitions(idle=True)
    behind = [f"{row.topic}-{row.partition}" for row in rows if set(row.isr) != set(row.replicas) or row.leader < 0]
    if behind:
        words.append(f"{len(behind)} partitions with replicas out of sync ({behind[0]})")
    held = {(row.topic, row.partition): row.replicas for row in rows}
    strays = [
        f"{folder} on node {node}"
        for node in roles.nodes
        for directory in roles.log_dirs(node)
        for folder in disk.folders(roles.disk(node, directory))
        if (place := disk.place_of(folder)) is not None and node not in held.get(place, ())
    ]
    if strays:
        words.append(f"{len(strays)} dropped replicas ({strays[0]})")
    return words


def boot(roles: Roles) -> Boot:
    """Kill every node with SIGKILL, start them, and return the state of the disks at rest. Raises `OpsError`."""
    for node in roles.nodes:
        roles.kill(node_name(node))
    with ThreadPoolExecutor(len(roles.nodes)) as pool:
        list(pool.map(lambda node: roles.start(node_name(node)), roles.nodes))
    return at_rest(roles)


def at_rest(roles: Roles) -> Boot:
    """Return the state of the disks once nothing changes, at the latest after `REST_LIMIT`."""
    until = time.monotonic() + REST_LIMIT
    before = _on_disk(roles)
    while True:
        time.sleep(REST_SECONDS)
        after = _on_disk(roles)
        if after == before or time.monotonic() > until:
            return Boot(after)
        before = after


def _on_disk(roles: Roles) -> dict[tuple[int, str, str], str]:
    found = {}
    for node in roles.nodes:
        for directory in roles.log_dirs(node):
            here = roles.disk(node, directory)
            for folder in disk.folders(here):
                try:
                    found[node, directory, folder] = disk.state(here / folder)
                except OSError:  # removed meanwhile; the next round confirms it
                    found[node, directory, folder] = "going"
    return found


def scans(roles: Roles, topics: Iterable[TopicFact]) -> list[Scan]:
    """Return the batches and records of every replica's segments."""
    labels = {topic.name: topic.label for topic in topics}
    found = []
    for node in roles.nodes:
        for directory in roles.log_dirs(node):
            here = roles.disk(node, directory)
            for folder in disk.folders(here):
                place = disk.place_of(folder)
                if place is not None and place[0] in labels:
                    found.append(disk.scan(node, directory, here / folder, (labels[place[0]], place[1])))
    return found


def directories(roles: Roles, topics: Iterable[TopicFact]) -> list[DirectoryFact]:
    """Return each log directory as DescribeLogDirs and its disk have it. Raises `OpsError`."""
    labels = {topic.name: topic.label for topic in topics}
    with KafkaAdmin(roles.bootstrap) as admin:
        views = {(view.node, view.path): view for view in admin.log_dirs(roles.nodes)}

    def places(view: LogDirectoryView | None, future: bool) -> tuple[Place, ...]:
        return tuple(
            (labels.get(r.partition.topic, r.partition.topic), r.partition.partition)
            for r in (view.replicas if view else ())
            if r.future == future
        )

    found = []
    for node in roles.nodes:
        for directory in roles.log_dirs(node):
            view = views.get((node, directory))
            found.append(
                DirectoryFact(
                    node,
                    directory,
                    view.error if view else "not described",
                    places(view, False),
                    places(view, True),
                    disk.folders(roles.disk(node, directory)),
                )
            )
    return found


def homes(roles: Roles, moving: Moving, topics: Iterable[TopicFact]) -> dict[Place, Home]:
    """Return each partition's assignment in the controller's metadata. Raises `OpsError`."""
    state = ClusterState.of(moving.metadata())
    labels = {topic.name: topic.label for topic in topics}
    paths: dict[str, str] = {}
    for node in roles.nodes:
        for each in roles.call(node, "status")["directories"]:
            paths[str(each["id"])] = str(each["path"])
    return {
        (labels[topic.name], partition.index): Home(
            partition.replicas,
            tuple(paths.get(each, each or "an unknown directory") for each in partition.directories),
            partition.generations,
            partition.isr,
            partition.leader,
            partition.assignment.adding,
            partition.assignment.removing,
        )
        for topic, partition in state.partitions()
        if topic.name in labels
    }


def throttles(roles: Roles, allowed: dict[int, list[int]]) -> list[ThrottleFact]:
    """Return each node's move limit by DescribeConfigs, and the values last set. Raises `OpsError`."""
    with KafkaAdmin(roles.bootstrap) as admin:
        known = admin.configs("broker", [str(node) for node in roles.nodes])
    return [
        ThrottleFact(node, MOVE_RATE, known[str(node)].get(MOVE_RATE, "not described"), tuple(map(str, allowed[node])))
        for node in roles.nodes
        if node in allowed
    ]


def roles_at_end(roles: Roles) -> list[RoleFact]:
    """Return whether each process works: it runs, and a node responds, has the metadata and nothing offline."""
    found = []
    for name in all_names(roles):
        works, why = roles.alive(name), "it is not running"
        if works and name.startswith("node-"):
            try:
                status = roles.call(int(name.removeprefix("node-")), "status", timeout=10)
                why = _trouble(status)
                works = not why
            except OpsError as error:
                works, why = False, str(error)
        found.append(RoleFact(name, works, "" if works else why))
    return found


def _trouble(status: dict[str, Any]) -> str:
    offline = [f"{tp} is offline: {reason}" for tp, reason in status.get("offline", {}).items()]
    offline += [f"{d['path']} is offline: {d['failure']}" for d in status.get("directories", ()) if not d["online"]]
    if status.get("moves_stopped"):
        offline.append("its moves are stopped")
    if not status.get("generation"):
        offline.append("it has no metadata from the controller")
    if found := status.get("metadata", {}).get("last_difference"):
        offline.append(f"its metadata differed from the controller's: {found}")
    return "; ".join(offline)
