"""Small moves share a run, large ones do not; ids are the same whenever they are asked for."""

from __future__ import annotations

from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from activities.moves.lanes import LANE_BYTES, LARGEST_LANE, SMALL_BYTES, Lane, lanes
from storage_node.model.ids import TopicPartition
from storage_node.ports import PlannedMove
from workflows.model.move.parameter import parse_moves


def move(partition: int, size: int = 10, source: str = "/a", directory: str = "/b", claim: int = 1) -> PlannedMove:
    return PlannedMove(TopicPartition("t", partition), source, directory, claim, 1, size)


def test_small_moves_between_the_same_directories_share_a_run() -> None:
    found = lanes([move(2), move(0), move(1), move(3, directory="/c")])
    assert [[m.partition.partition for m in lane.moves] for lane in found] == [[0, 1, 2], [3]]
    assert found[0].workflow_id("c", 7) == "c/move/7/t-0+2/1"
    assert found[1].workflow_id("c", 7) == "c/move/7/t-3/1"


def test_large_move_has_a_run_of_its_own() -> None:
    found = lanes([move(0), move(1, SMALL_BYTES + 1), move(2)])
    assert [[m.partition.partition for m in lane.moves] for lane in found] == [[0, 2], [1]]


def test_lanes_parameter_is_accepted_by_the_workflow() -> None:
    (lane,) = lanes([move(0), move(1)])
    plan = parse_moves([asdict(each) for each in lane.parameter(3, 20_000_000)])
    assert plan.node == 3 and plan.throttle == 20_000_000
    assert [(r.topic, r.partition, r.directory, r.claim) for r in plan.replicas] == [
        ("t", 0, "/b", 1),
        ("t", 1, "/b", 1),
    ]
    assert parse_moves([asdict(each) for each in lane.parameter(3, None)]).throttle is None


@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 2 * SMALL_BYTES), st.sampled_from("ab"), st.sampled_from("cd")),
        unique_by=lambda row: row[0],
        max_size=120,
    )
)
def test_every_move_is_in_one_lane_and_lanes_keep_their_limits(rows: list[tuple[int, int, str, str]]) -> None:
    moves = [move(index, size, "/" + source, "/" + target) for index, size, source, target in rows]
    found: list[Lane] = lanes(moves)
    assert sorted(m.partition for lane in found for m in lane.moves) == sorted(m.partition for m in moves)
    for lane in found:
        assert len({(m.source, m.directory) for m in lane.moves}) == 1
        assert len(lane.moves) <= LARGEST_LANE
        assert len(lane.moves) == 1 or (
            sum(m.size for m in lane.moves) <= LANE_BYTES and max(m.size for m in lane.moves) <= SMALL_BYTES
        )
