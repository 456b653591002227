"""Large responses are built beside the loop, once for all identical requests, and only from the newest image."""

from __future__ import annotations

import asyncio
import threading

from storage_node.model.image import ClusterImage
from storage_node.protocol.apis.metadata_responses import LARGE, Answers


def test_identical_requests_share_one_build_and_do_not_block_the_loop() -> None:
    made: list[int] = []
    go_on = threading.Event()

    def make() -> bytes:
        made.append(threading.get_ident())
        assert go_on.wait(10)
        return b"answer"

    async def run() -> None:
        answers, image = Answers(), ClusterImage("c")
        assert answers.find(image, 12, b"all") is None
        first, second, gone = (asyncio.create_task(answers.make(image, 12, b"all", LARGE + 1, make)) for _ in range(3))
        await asyncio.sleep(0)
        gone.cancel()  # its connection is closed
        await asyncio.sleep(0.01)
        assert not first.done()
        go_on.set()
        assert [await first, await second] == [b"answer"] * 2
        assert answers.find(image, 12, b"all") == b"answer"

    asyncio.run(run())
    assert len(made) == 1 and made[0] != threading.get_ident()


def test_small_response_is_built_without_a_thread() -> None:
    async def run() -> bytes:
        answers, image = Answers(), ClusterImage("c")
        answers.find(image, 12, b"one")
        return await answers.make(image, 12, b"one", LARGE, lambda: str(threading.get_ident()).encode())

    assert asyncio.run(run()) == str(threading.get_ident()).encode()


def test_response_from_an_older_image_is_returned_but_not_cached() -> None:
    go_on = threading.Event()

    def make() -> bytes:
        assert go_on.wait(10)
        return b"older"

    async def run() -> None:
        answers, older, newer = Answers(), ClusterImage("c", version=1), ClusterImage("c", version=2)
        answers.find(older, 12, b"all")
        asked = asyncio.create_task(answers.make(older, 12, b"all", LARGE + 1, make))
        await asyncio.sleep(0)
        assert answers.find(newer, 12, b"all") is None
        fresh = asyncio.create_task(answers.make(newer, 12, b"all", LARGE + 1, lambda: b"newer"))
        assert await fresh == b"newer"
        go_on.set()
        assert await asked == b"older"
        assert answers.find(newer, 12, b"all") == b"newer"

    asyncio.run(run())
