"""Makes image-v1.json: cluster images as the controller makes them, which every version of the program must make.

    python -m tests.golden.make_image

Each entry has the image as it travels (`text`), its plain content, the digest of the metadata that a receiver knows
after it, and nothing that changes from run to run.
"""

from __future__ import annotations

import json
from pathlib import Path

from storage_node.model.assignment import Assignment
from storage_node.model.metadata import DirectoryRegistration, NodeImage, PartitionImage, TopicImage
from storage_node.model.packing import unpack
from workflows.model.metadata import image
from workflows.model.metadata.state import ClusterState


def _node(number: int, *, fenced: bool = False) -> NodeImage:
    directories = (
        DirectoryRegistration(f"dir-{number}-a-000000000000", f"/data/{number}/a"),
        DirectoryRegistration(f"dir-{number}-b-000000000000", f"/data/{number}/b", online=number != 2),
    )
    return NodeImage(
        number, f"incarnation-{number}", number, f"node-{number}.example", 9091 + number, directories, fenced
    )


def example() -> list[tuple[str, ClusterState, tuple[int, int]]]:
    """Name, state and what the receiver knows, for each image."""
    state = ClusterState("example", cluster_generation=3)
    for node in (_node(1), _node(2), _node(3, fenced=True)):
        state = state.with_node(node)
    settled = PartitionImage(0, Assignment((1,)), ("dir-1-a-000000000000",), (4,), (1,), 1, 2, 7)
    without_leader = PartitionImage(1, Assignment((3,)), ("",), (0,), (3,), -1, 0, 1)
    moving = PartitionImage(
        2,
        Assignment((4, 2, 1), adding=(4,), removing=(1,), original=(1, 2)),
        ("", "dir-2-a-000000000000", "dir-1-b-000000000000"),
        (0, 0, 2),
        (1, 2),
        1,
        5,
        11,
    )
    state = state.with_topics(
        TopicImage("orders", "AAAAAAAAAAAAAAAAAAAAAA", {"retention.ms": "-1"}, (settled, without_leader, moving)),
        TopicImage(
            "old.events_x-1", "BBBBBBBBBBBBBBBBBBBBBB", {}, (PartitionImage(0, Assignment((2,)), ("",), (0,), (2,), 2),)
        ),
    )
    state = state.with_configs("broker", "", {"replica.alter.log.dirs.io.max.bytes.per.second": "20000000"})
    before = state.pair
    later = state.without_topic("old.events_x-1").with_node(_node(3))
    later = later.with_configs("broker", "2", {})
    return [("whole", state, (0, 0)), ("delta", later, before), ("whole_after", later, (2, 90))]


def main() -> None:
    """Write the file."""
    found = {}
    for name, state, since in example():
        (text,) = image.since(state, *since)
        found[name] = {"text": text, "content": unpack(text), "digest": state.digest}
    Path(__file__).with_name("image-v1.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
