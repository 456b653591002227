"""The throttles of plans: has the cluster's keeper hold and release them, and reads and writes configs for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities.kafka_admin.admin import KafkaAdmin
from activities.kafka_admin.errors import AdminError, Answer, UnknownTopic
from activities.kafka_admin.pool import AdminPool
from workflows.model import names
from workflows.model.plans.running.calls import (
    HoldCall,
    HoldResult,
    ReadThrottlesCall,
    ReadThrottlesResult,
    VerifyCall,
    WriteThrottlesCall,
    WriteThrottlesResult,
)
from workflows.model.plans.running.keeper_results import ThrottleKeeperProgress, ThrottlesApplied
from workflows.model.plans.running.throttling import Current, Leases, ThrottlesLeft, leases_in, left_by
from workflows.model.throttles import LISTS, MOVE_RATE, RATES

#: Topics of one DescribeConfigs.
TOPICS_AT_ONCE = 200
KEEPER_PATIENCE = timedelta(seconds=60)
LEFT_PATIENCE, LEFT_PAUSE = 5.0, 0.5  # seconds for which a throttle that seems to be left is read again, and how often


class ThrottleSteps:
    """The activities of throttles of one cluster."""

    def __init__(
        self,
        pool: AdminPool,
        client: Client,
        closed: Callable[[list[str]], Awaitable[list[str]]],
        copying: Callable[[str, Sequence[str]], Awaitable[set[str]]],
    ) -> None:
        """`closed` returns those of some workflow ids without an open run, `copying` those of such plans whose lanes
        are open.
        """
        self._pool, self._client, self._closed, self._copying = pool, client, closed, copying

    async def hold(self, call: HoldCall) -> HoldResult:
        """Return once the keeper has set the throttles; it is started if there is none. Raises RPCError."""
        return await self._tell("hold", call)

    async def release(self, call: HoldCall) -> HoldResult:
        """Return once the keeper has restored the values from before. Raises RPCError."""
        return await self._tell("release", call)

    async def _tell(self, update: str, call: HoldCall) -> HoldResult:
        begin: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            names.THROTTLE_KEEPER,
            id=names.throttle_keeper_id(call.cluster),
            task_queue=names.plans_queue(call.cluster),
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"the throttles of {call.cluster}'s plans",
        )
        argument = {"holder": call.holder, "rates": call.rates, "entries": call.entries}
        found: ThrottlesApplied = await self._client.execute_update_with_start_workflow(
            update, argument, start_workflow_operation=begin, result_type=ThrottlesApplied, rpc_timeout=KEEPER_PATIENCE
        )
        return HoldResult(found.left_out, found.rejected)

    async def read(self, call: ReadThrottlesCall) -> ReadThrottlesResult:
        """Read the configs that are set on brokers and topics. Raises `NoResponse` if no broker responds."""
        closed = await self._closed(call.holders)
        if closed:
            try:
                copying = await self._copying(call.cluster, closed)
            except RPCError:
                copying = set(closed)  # Unknown: what they hold is released after a later read.
            closed = [each for each in closed if each not in copying]
        rates: dict[str, dict[str, str]] = {}
        silent: list[str] = []
        registered = set((await self._pool.run(KafkaAdmin.cluster))[1])
        for node in call.nodes:
            if int(node) not in registered:
                silent.append(node)
                continue
            try:
                found = await self._pool.run(_overrides("broker", [node], (*RATES, MOVE_RATE)))
            except AdminError:
                silent.append(node)
            else:
                rates |= found
        lists: dict[str, dict[str, list[str]]] = {}
        there = set(await self._pool.run(KafkaAdmin.topics)) if call.topics else set()
        asked = [topic for topic in call.topics if topic in there]
        for at in range(0, len(asked), TOPICS_AT_ONCE):
            found = await self._pool.run(_overrides("topic", asked[at : at + TOPICS_AT_ONCE], LISTS))
            lists |= {
                topic: {key: [each for each in value.split(",") if each] for key, value in row.items()}
                for topic, row in found.items()
            }
        # A broker may not know a new topic yet: the controller says which are deleted when its configs are written.
        return ReadThrottlesResult(rates, lists, silent, closed)

    async def left(self, call: VerifyCall, topics: Sequence[str]) -> ThrottlesLeft:
        """Return which throttles a plan has left behind, and all that are set on its brokers and topics.

        Brokers may return configs from before the last write: what seems to be left is read again for a while. Raises
        RPCError, `NoResponse`.
        """
        until = time.monotonic() + LEFT_PATIENCE
        while True:
            leases = await self._leases(call.cluster)
            if leases.idle and not call.throttled:
                return ThrottlesLeft()
            nodes = [str(node) for node in call.brokers]
            read = await self.read(ReadThrottlesCall(call.cluster, nodes, sorted(topics), []))
            now = Current(read.rates, read.lists, tuple(read.silent))
            found = left_by(call.holder, leases, now)
            if not found.left or time.monotonic() >= until:
                return found
            await asyncio.sleep(LEFT_PAUSE)

    async def _leases(self, cluster: str) -> Leases:
        keeper = self._client.get_workflow_handle(names.throttle_keeper_id(cluster))
        try:
            progress = await keeper.query("progress", result_type=ThrottleKeeperProgress, rpc_timeout=KEEPER_PATIENCE)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return Leases()  # No plan has ever held throttles.
            raise
        return leases_in(progress)

    async def write(self, call: WriteThrottlesCall) -> WriteThrottlesResult:
        """Write configs, each broker's and each topic's in one request; the keeper repeats what fails."""
        grouped: dict[tuple[str, str], list[list[Any]]] = {}
        for row in call.changes:
            grouped.setdefault((str(row[0]), str(row[1])), []).append(row)
        written: list[list[Any]] = []
        failed: dict[str, str] = {}
        gone: list[str] = []
        rejected: list[str] = []
        for (kind, name), rows in grouped.items():
            values = {str(key): (str(operation), value) for _, _, key, operation, value in rows}
            try:
                await self._pool.run(_change(kind, name, values))
            except UnknownTopic as error:
                gone.append(name)
                failed[f"{kind} {name}"] = str(error)
            except AdminError as error:
                failed[f"{kind} {name}"] = str(error)
                rejected += [f"{kind} {name}"] if error.answer is Answer.FINAL else []
            else:
                written += rows
        return WriteThrottlesResult(written, failed, gone, rejected)


def _overrides(
    kind: str, names_: list[str], keys: tuple[str, ...]
) -> Callable[[KafkaAdmin], dict[str, dict[str, str]]]:
    return lambda admin: admin.overrides(kind, names_, keys)


def _change(kind: str, name: str, values: dict[str, tuple[str, str | None]]) -> Callable[[KafkaAdmin], None]:
    return lambda admin: admin.change_configs(kind, {name: values})
