"""The pool of admin clients: what a caller that is cancelled waits for, and which errors of the client are final."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest
from kafka.errors import ClusterAuthorizationFailedError, InvalidRequestError, NodeNotReadyError

from activities.kafka_admin.admin import KafkaAdmin
from activities.kafka_admin.client_config import ClientConfig
from activities.kafka_admin.errors import AdminError, NoResponse
from activities.kafka_admin.pool import AdminPool


class Client:
    """An admin client that does nothing."""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("fails", [False, True])
def test_cancelled_caller_waits_for_the_call_that_its_thread_carries_out(fails: bool) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def call(_: Any) -> None:
        begun.set()
        go_on.wait(10)
        done.append(True)
        if fails:
            raise AdminError("rejected")

    async def work() -> None:
        pool = AdminPool(ClientConfig("any:1"), admin=lambda *_: cast(KafkaAdmin, Client()))
        caller = asyncio.create_task(pool.run(call))
        await asyncio.to_thread(begun.wait, 10)
        caller.cancel()
        await asyncio.sleep(0.05)
        assert not caller.done() and not done
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert done
        await pool.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("error", "final"),
    [(ClusterAuthorizationFailedError(), True), (InvalidRequestError(), True), (NodeNotReadyError(), False)],
)
def test_missing_right_is_a_rejection_and_no_missing_response(error: Exception, final: bool) -> None:
    class Refusing:
        def describe_cluster(self) -> Any:
            raise error

    admin = KafkaAdmin("any:1")
    admin._client = Refusing()
    with pytest.raises(AdminError) as raised:
        admin.cluster()
    assert isinstance(raised.value, NoResponse) != final
    assert ("is this client authorized?" in str(raised.value)) == isinstance(error, ClusterAuthorizationFailedError)
