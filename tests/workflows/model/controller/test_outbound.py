"""What the controller sends to other runs, until the server has taken it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workflows.model.controller import outbound
from workflows.model.controller.outbound import CANCEL, IN_FLIGHT, SIGNAL, START, Outbound, Outbox


def signal(to: str, value: object = None) -> Outbound:
    return Outbound(SIGNAL, to, "r", "answered", value)


def start(to: str) -> Outbound:
    return Outbound(START, to, "", "a summary", {"made": [], "generation": 1, "version": 7})


def test_outbox_limits_commands_in_flight() -> None:
    box = Outbox()
    for number in range(IN_FLIGHT + 5):
        box.add(signal(f"w{number}"))
    first = box.take()
    assert [one.workflow_id for _, one in first] == [f"w{number}" for number in range(IN_FLIGHT)]
    assert (box.take(), box.in_flight, len(box)) == ([], IN_FLIGHT, IN_FLIGHT + 5)
    for number, _ in first[:2]:
        box.sent(number)
    assert [one.workflow_id for _, one in box.take()] == [f"w{IN_FLIGHT}", f"w{IN_FLIGHT + 1}"]


def test_outbox_keeps_one_workflows_commands_in_order() -> None:
    box = Outbox()
    for one in (start("a"), signal("a", 1), signal("b", 2), signal("a", 3)):
        box.add(one)
    (begun, first), (_, other) = box.take()
    assert (first.kind, other.payload) == (START, 2) and box.take() == []
    box.sent(begun)
    ((number, second),) = box.take()
    box.sent(number)
    ((_, third),) = box.take()
    assert (second.payload, third.payload) == (1, 3)


commands = st.builds(
    Outbound, st.sampled_from([SIGNAL, CANCEL]), st.sampled_from("abcde"), st.just("r"), st.just("n"), st.integers()
)
steps = st.lists(st.one_of(commands, st.sampled_from(["take", "sent", "continue"])), max_size=60)


@given(steps, st.integers(1, 4))
def test_outbox_loses_no_command_and_keeps_each_workflows_order(story: list[Outbound | str], room: int) -> None:
    before, outbound.IN_FLIGHT = outbound.IN_FLIGHT, room
    try:
        box, added, arrived, flying = Outbox(), [], [], []
        for step in [*story, *["take", "sent"] * len(story)]:
            if isinstance(step, Outbound):
                box.add(step)
                added.append(step)
            elif step == "take":
                flying += box.take()
            elif step == "sent" and flying:
                number, one = flying.pop()  # the server keeps to no order
                box.sent(number)
                arrived.append(one)
            elif step == "continue":
                box, flying = Outbox.of(box.rows()), []
            assert box.in_flight == len(flying) <= room
    finally:
        outbound.IN_FLIGHT = before
    assert len(box) == 0 and len(arrived) == len(added)
    for name in "abcde":
        assert [each for each in arrived if each.workflow_id == name] == [
            each for each in added if each.workflow_id == name
        ]
