"""The controller on a real Temporal server: changes, pushes, leases and fencing, continue-as-new, lost metadata."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.service import RPCError
from temporalio.worker import Replayer

import workflows
from storage_node.model.image import ClusterImage, decode
from tests.support.programs.temporal import TemporalServer
from tests.support.steps import limit
from tests.workflows.conftest import Recorder
from tests.workflows.fakes import FakeMember, FakeProber, orchestrator, until, until_true
from workflows import options
from workflows.model import calls, names
from workflows.model.metadata import image
from workflows.model.metadata.rules import RULES
from workflows.model.metadata.state import ClusterState
from workflows.runner import workflow_runner

pytestmark = pytest.mark.temporal

Handle = WorkflowHandle[Any, Any]


def topic(name: str, partitions: int = 3, **more: Any) -> dict[str, Any]:
    return {"do": "create_topics", "topics": [{"name": name, "partitions": partitions, **more}], "validate_only": False}


class Scene:
    """A cluster of three nodes for one test; nodes join when the test says so."""

    def __init__(self, client: Client, name: str, stack: AsyncExitStack) -> None:
        self.client, self.name, self.stack = client, name, stack
        self.members = [FakeMember(node) for node in (1, 2, 3)]
        self.prober = FakeProber(*self.members)
        self.workers: dict[int, AsyncExitStack] = {}

    @property
    def handle(self) -> Handle:
        return self.client.get_workflow_handle(self.name)

    async def controller(self, **parameter: Any) -> Handle:
        """Start the controller, and its worker when it has none."""
        if 0 not in self.workers:
            worker = orchestrator(self.client, self.name, self.prober.probe_node)
            self.workers[0] = await self._enter(worker)
        return await self.client.start_workflow(
            "Cluster", {"rules": RULES, **parameter}, id=self.name, task_queue=self.name
        )

    async def _enter(self, worker: Any) -> AsyncExitStack:
        inner = AsyncExitStack()
        await inner.enter_async_context(worker)
        self.stack.push_async_callback(inner.aclose)
        return inner

    async def serve(self, member: FakeMember) -> None:
        """A node's worker starts."""
        self.workers[member.node] = await self._enter(member.running(self.client, self.name))

    async def die(self, member: FakeMember) -> None:
        """A node's worker stops, and the node no longer answers."""
        member.alive = False
        await self.workers.pop(member.node).aclose()

    async def join(self, member: FakeMember, known: str = "") -> dict[str, Any]:
        """A node starts and registers."""
        if member.node not in self.workers:
            await self.serve(member)
        return await member.submit(self.handle, member.registration(known))

    async def up(self, **parameter: Any) -> Handle:
        """The whole cluster."""
        handle = await self.controller(**parameter)
        for member in self.members:
            await self.join(member)
        return handle

    async def state(self) -> ClusterState:
        return ClusterState.of(await self.handle.query("state"))

    async def described(self, condition: Callable[[dict[str, Any]], bool], seconds: float = 20.0) -> None:
        """Wait until `describe` shows something."""

        async def reached() -> bool:
            return condition(await self.handle.query("describe"))

        await until_true(reached, seconds)

    async def fenced(self, *nodes: int) -> None:
        """Wait until exactly these nodes are fenced."""
        await self.described(lambda it: [each["node"] for each in it["nodes"] if each["fenced"]] == list(nodes))

    def whole(self, member: FakeMember) -> str:
        """The image that a node has on its disks: here all it was sent, as one."""
        image = ClusterImage()
        for text in member.images:
            image = image.after(decode(text))
        return image.encode()


def run(server: TemporalServer, name: str, scene: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        client = await server.client()
        async with AsyncExitStack() as stack:
            await asyncio.wait_for(scene(Scene(client, name, stack)), 80)

    asyncio.run(main())


def test_change_reaches_every_node(temporal_server: TemporalServer, task_queue: str, recorded: Recorder) -> None:
    async def scene(it: Scene) -> None:
        handle = await it.up()
        one, two, three = it.members
        reply = await two.submit(handle, topic("t"), {"do": "next_producer_ids", "count": 10}, {"do": "dance"})
        assert [len(results) for results in reply["results"]] == [1, 1, 1]
        (created,), (ids,), (unknown,) = reply["results"]
        assert created["version"] == reply["version"] and len(created["topic_id"]) == 22
        assert ids["value"] == 0 and unknown["error"] == 42
        assert two.pair == (1, reply["version"]), "who asks gets the image with the answer"
        await until(lambda: all(member.pair == two.pair for member in it.members))
        state = await it.state()
        assert [partition.leader for partition in state.topics["t"].partitions] == [1, 2, 3]
        # A change of generations is quiet: it reaches the others too, a little later.
        row = ["t", 0, created["topic_id"], "dir-1-a", 0]
        reply = await one.submit(handle, {"do": "raise_generations", "node": 1, "replicas": [row]})
        assert reply["results"][0][0]["value"] == 1
        await until(lambda: three.pair == (1, reply["version"]))
        await recorded("cluster-changes", it.client, it.name)

    run(temporal_server, task_queue, scene)


def test_invalid_batch_and_stale_incarnation_are_rejected(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene(it: Scene) -> None:
        handle = await it.controller()
        one = it.members[0]
        await it.join(one)
        for wrong in ({}, {"node": 1}, {**one.batch(), "commands": 3}, {**one.batch(), "node": "1"}):
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update("submit", wrong)
        stranger = FakeMember(7)
        assert (await stranger.submit(handle, topic("t")))["results"][0][0]["error"] == 102
        old = FakeMember(1, "an earlier start")
        assert (await old.submit(handle, topic("t")))["results"][0][0]["error"] == 77
        assert not (await it.state()).topics

    run(temporal_server, task_queue, scene)


def test_dead_node_is_probed_fenced_and_leads_again_after_its_restart(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, calls.HOLD_LEASE, heartbeat=timedelta(seconds=1), pick_up=timedelta(seconds=1))

    async def scene(it: Scene) -> None:
        handle = await it.up()
        one, two, _ = it.members
        await one.submit(handle, topic("t"))
        await it.die(two)
        await it.fenced(2)
        assert 2 in it.prober.asked  # who lives is asked, too, when the machine stalls: it is not fenced for it
        partition = (await it.state()).topics["t"].partitions[1]
        assert (partition.leader, partition.isr) == (-1, (2,))
        await until(lambda: decode(one.images[-1]).nodes.get(2) is not None)
        # Another incarnation comes back, leads again under a higher epoch, and is held by a lease of its own.
        back = FakeMember(2, "second start")
        it.members[1] = it.prober.members[2] = back
        await it.join(back)
        await it.fenced()
        partition = (await it.state()).topics["t"].partitions[1]
        assert (partition.leader, partition.leader_epoch) == (2, 1)
        await recorded("lease", it.client, names.lease_id(it.name, 2, "i2"))

    run(temporal_server, task_queue, scene)


def test_ended_lease_of_a_live_node_does_not_fence_it(
    temporal_server: TemporalServer, task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "LEASE_AGAIN_AFTER", timedelta(milliseconds=100))

    async def scene(it: Scene) -> None:
        await it.up()
        lease = it.client.get_workflow_handle(names.lease_id(it.name, 3, "i3"))

        async def held() -> bool:
            try:
                return (await lease.describe()).close_time is None
            except Exception:
                return False

        await until_true(held)
        first = (await lease.describe()).run_id
        await lease.terminate("by hand")

        async def renewed() -> bool:
            found = await lease.describe()
            return found.run_id != first and found.close_time is None

        await until_true(renewed)
        assert 3 in it.prober.asked
        await it.fenced()

    run(temporal_server, task_queue, scene)


def test_lease_whose_run_closes_late_is_replaced(
    temporal_server: TemporalServer, task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has told the controller that it ended, and its last step is held up, as after a standstill of the server."""
    monkeypatch.setattr(options, "LEASE_AGAIN_AFTER", timedelta(milliseconds=100))
    limit(monkeypatch, calls.HOLD_LEASE, heartbeat=timedelta(seconds=60), pick_up=timedelta(seconds=60))

    async def scene(it: Scene) -> None:
        handle = await it.up()
        id_ = names.lease_id(it.name, 3, "i3")

        async def open_run() -> str:
            try:
                found = await it.client.get_workflow_handle(id_).describe()
            except RPCError:
                return ""  # it has not begun
            return (found.run_id or "") if found.close_time is None else ""

        async def begun() -> bool:
            return bool(await open_run())

        await until_true(begun)
        first = await open_run()
        await handle.signal("lease_ended", {"node": 3, "incarnation": "i3", "reason": "not renewed"})

        async def answered() -> bool:
            found = [each async for each in handle.fetch_history_events()]
            begun = [each.start_child_workflow_execution_initiated_event_attributes.workflow_id for each in found]
            return begun.count(id_) == 2

        await until_true(answered, 60)
        with suppress(RPCError):  # what is left of it ends now
            await it.client.get_workflow_handle(id_, run_id=first).terminate("its last step")

        async def another() -> bool:
            return await open_run() not in ("", first)

        await until_true(another, 60)
        await it.fenced()

    run(temporal_server, task_queue, scene)


def test_stopping_node_is_fenced_at_once(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene(it: Scene) -> None:
        handle = await it.up()
        await it.members[2].submit(handle, {"do": "lease_ended", "node": 3, "incarnation": "i3"})
        await it.fenced(3)
        assert 3 not in it.prober.asked
        reply = await it.members[2].submit(handle, topic("t"))
        assert reply["results"][0][0]["error"] == 77 and reply["register"]

    run(temporal_server, task_queue, scene)


def test_continue_as_new_loses_nothing(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "QUIET_FOR", timedelta(milliseconds=200))
    # No lease is to end for any other reason, as when the machine stalls.
    limit(monkeypatch, calls.HOLD_LEASE, heartbeat=timedelta(seconds=60), pick_up=timedelta(seconds=60))

    async def scene(it: Scene) -> None:
        handle = await it.up(continue_at=[150, 260])
        first = (await handle.describe()).run_id
        count = 60
        for number in range(count):
            member = it.members[number % 3]
            reply = await member.submit(handle, topic(f"t{number}", 1))
            assert not reply["results"][0][0].get("error")
        runs = {first, (await handle.describe()).run_id}
        assert len(runs) > 1, "it has continued as new meanwhile"
        state = await it.state()
        assert len(state.topics) == count
        await until(lambda: all(member.pair == state.pair for member in it.members))
        await recorded("cluster-continued", it.client, it.name, first)
        # Leases go on over it: nobody was asked, and a death is still seen.
        assert it.prober.asked == []
        await it.members[0].submit(handle, {"do": "lease_ended", "node": 1, "incarnation": "i1"})
        await it.fenced(1)

    run(temporal_server, task_queue, scene)


def test_lease_that_is_terminated_after_a_continue_as_new_begins_again(
    temporal_server: TemporalServer, task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No signal comes of it, and this run did not start it: its node notices, registers again, and is seen to die."""
    limit(monkeypatch, calls.HOLD_LEASE, heartbeat=timedelta(seconds=60), pick_up=timedelta(seconds=60))
    monkeypatch.setattr(options, "LEASE_AGAIN_AFTER", timedelta(milliseconds=100))

    async def scene(it: Scene) -> None:
        handle = await it.up(continue_at=[150, 260])
        first, one = (await handle.describe()).run_id, it.members[0]
        for number in range(100):
            await it.members[1].submit(handle, topic(f"t{number}", 1))
            if (await handle.describe()).run_id != first:
                break
        else:
            raise AssertionError("it has not continued as new")
        lease = it.client.get_workflow_handle(names.lease_id(it.name, 1, "i1"))
        leased = (await lease.describe()).run_id
        await lease.terminate("by hand")
        await one.submit(handle, one.registration(it.whole(one)))

        async def begun() -> bool:
            found = await lease.describe()
            return found.run_id != leased and found.close_time is None

        await until_true(begun)
        await it.die(one)
        await one.submit(handle, {"do": "lease_ended", "node": 1, "incarnation": "i1"})
        await it.fenced(1)

    run(temporal_server, task_queue, scene)


@pytest.mark.parametrize(
    "limits", [[9_000, 9_000, 1, 20_000], [9_000, 9_000, 10**9, 10**9, 1, 40]], ids=["bytes", "changes"]
)
def test_run_continues_as_new_by_its_bytes_and_changes(
    temporal_server: TemporalServer, task_queue: str, monkeypatch: pytest.MonkeyPatch, limits: list[int]
) -> None:
    limit(monkeypatch, calls.HOLD_LEASE, heartbeat=timedelta(seconds=60), pick_up=timedelta(seconds=60))

    async def scene(it: Scene) -> None:
        handle = await it.up(continue_at=limits)
        first = (await handle.describe()).run_id
        for number in range(45):
            reply = await it.members[0].submit(handle, topic(f"t{number}", 30))
            assert not reply["results"][0][0].get("error")
            if (await handle.describe()).run_id != first:
                break
        else:
            raise AssertionError("it has not continued as new")
        state = await it.state()
        assert len(state.topics) == number + 1
        await until(lambda: all(member.pair == state.pair for member in it.members))

    run(temporal_server, task_queue, scene)


def test_replay_packs_no_pushed_images(
    temporal_server: TemporalServer, task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs: list[int] = []
    plain = image.compressed

    def count(text: bytes) -> str:
        packs.append(1)
        return plain(text)

    async def scene(it: Scene) -> None:
        handle = await it.up()
        for number in range(20):
            await it.members[number % 3].submit(handle, topic(f"t{number}"))
        await it.members[0].submit(handle, {"do": "lease_ended", "node": 1, "incarnation": "i1"})
        await it.fenced(1)
        history = await handle.fetch_history()
        assert len(packs) > 20
        packs.clear()
        await Replayer(workflows=workflows.ALL, workflow_runner=workflow_runner()).replay_workflow(history)
        assert len(packs) < 10, "responses to registrations, and what the last task brings"

    monkeypatch.setattr(image, "compressed", count)
    run(temporal_server, task_queue, scene)


def test_terminated_controller_is_recovered_from_the_nodes_images(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    async def scene(it: Scene) -> None:
        handle = await it.up()
        one, two, three = it.members
        await one.submit(handle, topic("t"))
        await until(lambda: all(member.pair == one.pair for member in it.members))
        before = await it.state()
        await handle.terminate("lost")
        handle = await it.controller()
        for member in (one, two):
            reply = await it.join(member, it.whole(member))
            assert reply["results"][0][0]["error"] == 7 and reply["awaited"], "node 3 is still awaited"
        assert (await two.submit(handle, topic("u")))["results"][0][0]["error"] == 102
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update("recover_without", {"node": 2})
        reply = await it.join(three, it.whole(three))
        assert not reply["results"][0][0].get("error") and reply["generation"] == 2
        after = await it.state()
        assert after.topics["t"].id == before.topics["t"].id
        assert after.next_producer_id > before.next_producer_id
        await until(lambda: all(member.pair == after.pair for member in it.members))
        assert [each.leader for each in after.topics["t"].partitions] == [1, 2, 3]

    run(temporal_server, task_queue, scene)


def test_recover_without_gives_up_a_node(temporal_server: TemporalServer, task_queue: str, recorded: Recorder) -> None:
    async def scene(it: Scene) -> None:
        handle = await it.up()
        one, two, three = it.members
        await one.submit(handle, topic("t"))
        await until(lambda: all(member.pair == one.pair for member in it.members))
        await handle.terminate("lost")
        handle = await it.controller()
        for member in (one, two):
            await it.join(member, it.whole(member))
        # The one that has not come is asked for its image.
        await until(lambda: three.register_again > 0)
        found = await handle.execute_update("recover_without", {"node": 3})
        assert (found["phase"], found["generation"]) == ("serving", 2)
        state = await it.state()
        assert state.alive == (1, 2) and state.topics["t"].partitions[2].leader == -1
        # It comes later, with the old generation, and takes over what there is.
        reply = await it.join(three, it.whole(three))
        assert reply["generation"] == 2 and three.pair[0] == 2
        assert (await it.state()).topics["t"].partitions[2].leader == 3
        await recorded("cluster-recovered-without", it.client, it.name)

    run(temporal_server, task_queue, scene)


def test_restored_database_is_detected_and_recovered(own_temporal_server: TemporalServer, task_queue: str) -> None:
    server = own_temporal_server
    members = [FakeMember(node) for node in (1, 2, 3)]
    whole: dict[int, str] = {}

    async def yesterday(it: Scene) -> None:
        it.members = members
        await it.up()
        await members[0].submit(it.handle, topic("old"))
        await until(lambda: all(member.pair == members[0].pair for member in members))

    async def today(it: Scene) -> None:
        it.members = members
        it.prober = FakeProber(*members)
        it.workers[0] = await it._enter(orchestrator(it.client, it.name, it.prober.probe_node))
        for member in members:
            await it.serve(member)
        await members[1].submit(it.handle, topic("new"))
        await until(lambda: all(member.pair == members[1].pair for member in members))
        whole.update({member.node: it.whole(member) for member in members})

    async def restored(it: Scene) -> None:
        it.members = members
        it.prober = FakeProber(*members)
        it.workers[0] = await it._enter(orchestrator(it.client, it.name, it.prober.probe_node))
        assert sorted((await it.state()).topics) == ["old"]
        reply = await members[0].submit(it.handle, topic("more"))
        assert reply["results"][0][0]["error"] == 102 and reply["register"]
        for member in members:
            await it.join(member, whole[member.node])
        state = await it.state()
        assert sorted(state.topics) == ["new", "old"] and state.cluster_generation == 2

    run(server, task_queue, yesterday)
    server.stop()
    kept = server.folder / "yesterday"
    kept.mkdir()
    for file in server.folder.glob("temporal.db*"):
        shutil.copy(file, kept)
    server.start()
    run(server, task_queue, today)
    server.stop()
    for file in server.folder.glob("temporal.db*"):
        file.unlink()
    for file in kept.iterdir():
        shutil.copy(file, server.folder)
    server.start()
    run(server, task_queue, restored)


def test_temporal_outage_fences_no_node(own_temporal_server: TemporalServer, task_queue: str) -> None:
    server = own_temporal_server

    async def scene(it: Scene) -> None:
        handle = await it.up()
        await it.members[0].submit(handle, topic("t"))
        server.kill()
        await asyncio.sleep(4)  # longer than a lease's heartbeat timeout: the outage itself is what is tested
        await asyncio.to_thread(server.start)

        async def answers() -> bool:
            try:
                reply = await it.members[1].submit(handle, {"do": "next_producer_ids", "count": 1})
            except Exception:
                return False
            return not reply["results"][0][0].get("error")

        await until_true(answers, 40)
        # What leases were lost are held again, after the nodes were asked.
        await it.described(lambda found: not any(node["suspect"] for node in found["nodes"]), 40)
        await it.fenced()

    run(server, task_queue, scene)
