"""One update under way, what waits goes into the next, and a failed one is sent again as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from activities.controller.batching import Batcher, GaveUp, Rejected, Reply
from storage_node.model.commands import Command, NextProducerIds
from tests.activities.temporal.test_supervision import Panic

Send = Callable[[int, list[Command]], Awaitable[list[Reply]]]


def counts(commands: list[Command]) -> list[int]:
    return [command.count for command in commands if isinstance(command, NextProducerIds)]


def drive(send: Send, scenario: Callable[[Batcher], Awaitable[None]]) -> None:
    async def run() -> None:
        batcher = Batcher(send)
        sending = asyncio.create_task(batcher.run())
        try:
            await asyncio.wait_for(scenario(batcher), 60)
        finally:
            sending.cancel()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    """Let the others go on until it is so."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it goes on and on")


def test_commands_that_wait_share_one_batch() -> None:
    sent: list[list[int]] = []
    under_way = 0
    gate = asyncio.Event()

    async def send(number: int, commands: list[Command]) -> list[Reply]:
        nonlocal under_way
        under_way += 1
        assert under_way == 1
        sent.append(counts(commands))
        await gate.wait()
        under_way -= 1
        return [{"n": count * 10} for count in counts(commands)]

    async def scenario(batcher: Batcher) -> None:
        asked = [asyncio.create_task(batcher.submit(NextProducerIds(0), 30))]
        await until(lambda: bool(sent))
        assert sent == [[0]]
        asked += [asyncio.create_task(batcher.submit(NextProducerIds(n), 30)) for n in range(1, 6)]
        asked.append(asyncio.create_task(batcher.submit(NextProducerIds(9), 30, first=True)))
        await until(lambda: len(batcher._waiting) == 6)
        gate.set()
        assert [answer["n"] for answer in await asyncio.gather(*asked)] == [0, 10, 20, 30, 40, 50, 90]
        assert sent == [[0], [9, 1, 2, 3, 4, 5]]

    drive(send, scenario)


def test_failed_batch_is_sent_again_under_the_same_number() -> None:
    seen: list[int] = []

    async def send(number: int, commands: list[Command]) -> list[Reply]:
        seen.append(number)
        if len(seen) < 3:
            raise ConnectionError("away")
        return [{} for _ in commands]

    async def scenario(batcher: Batcher) -> None:
        await batcher.submit(NextProducerIds(1), 30)
        assert len(set(seen)) == 1 and len(seen) == 3

    drive(send, scenario)


def test_command_without_a_waiting_caller_is_not_sent() -> None:
    sent: list[list[int]] = []
    gate = asyncio.Event()

    async def send(number: int, commands: list[Command]) -> list[Reply]:
        sent.append(counts(commands))
        await gate.wait()
        return [{} for _ in commands]

    async def scenario(batcher: Batcher) -> None:
        first = asyncio.create_task(batcher.submit(NextProducerIds(1), 30))
        await until(lambda: bool(sent))
        with pytest.raises(GaveUp) as waited:
            await batcher.submit(NextProducerIds(2), 0.01)
        assert not waited.value.sent, "it never will be"
        third = asyncio.create_task(batcher.submit(NextProducerIds(3), 30))
        await until(lambda: len(batcher._waiting) == 2)
        gate.set()
        await asyncio.gather(first, third)
        assert sent == [[1], [3]]

    drive(send, scenario)


def test_timeout_of_a_sent_command_reports_that_it_was_sent() -> None:
    gate, carried_out = asyncio.Event(), []

    async def send(number: int, commands: list[Command]) -> list[Reply]:
        await gate.wait()
        carried_out.extend(counts(commands))
        return [{} for _ in commands]

    async def scenario(batcher: Batcher) -> None:
        with pytest.raises(GaveUp) as late:
            await batcher.submit(NextProducerIds(1), 0.05)
        assert late.value.sent and not carried_out
        gate.set()
        await batcher.submit(NextProducerIds(2), 30)
        assert carried_out == [1, 2], "nobody waited for the first any more"

    drive(send, scenario)


def test_rejection_reaches_every_caller_and_the_next_batch_is_sent() -> None:
    refuse = True

    async def send(number: int, commands: list[Command]) -> list[Reply]:
        if refuse:
            raise Rejected("malformed")
        return [{"fine": True} for _ in commands]

    async def scenario(batcher: Batcher) -> None:
        nonlocal refuse
        with pytest.raises(Rejected):
            await batcher.submit(NextProducerIds(1), 30)
        refuse = False
        assert await batcher.submit(NextProducerIds(1), 30) == {"fine": True}

    drive(send, scenario)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Panic()], ids=repr)
def test_restarted_batcher_sends_waiting_commands_once(error: BaseException) -> None:
    sent: list[list[int]] = []
    gate = asyncio.Event()

    async def send(update: str, commands: list[Command]) -> list[Reply]:
        sent.append(counts(commands))
        await gate.wait()
        if len(sent) == 1:
            raise error
        return [{"n": count} for count in counts(commands)]

    async def scenario() -> None:
        batcher = Batcher(send)
        first_run = asyncio.create_task(batcher.run())
        one = asyncio.create_task(batcher.submit(NextProducerIds(1), 30))
        await until(lambda: bool(sent))
        two = asyncio.create_task(batcher.submit(NextProducerIds(2), 30))
        await until(lambda: len(batcher._waiting) == 1)
        gate.set()
        await asyncio.wait({first_run})
        with pytest.raises(GaveUp) as gave_up:
            await one
        assert gave_up.value.sent, "it may have been carried out"
        second_run = asyncio.create_task(batcher.run())
        assert await two == {"n": 2}
        second_run.cancel()
        assert sent == [[1], [2]]

    asyncio.run(asyncio.wait_for(scenario(), 60))
