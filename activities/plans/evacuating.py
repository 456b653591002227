"""The activities that empty a log directory: its cordon (KIP-1066), the plan of a round, and the certificate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

from activities.kafka_admin.pool import AdminPool
from activities.kafka_admin.reader import ClusterReader
from activities.plans.store import PlanStore
from workflows.model.plans import document
from workflows.model.plans.generate.drain import drain
from workflows.model.plans.generate.layout import PlanRefused
from workflows.model.plans.running import packing
from workflows.model.plans.running.calls import (
    MOST_PROBLEMS,
    CordonResult,
    DirectoryCall,
    DrainResult,
    VerifyResult,
)
from workflows.model.plans.values import ClusterView, Disk
from workflows.model.plans.verify import drained

CORDON = "cordoned.log.dirs"


class EvacuationSteps:
    """The activities of directories that are being emptied, of one cluster."""

    def __init__(
        self, pool: AdminPool, reader: ClusterReader, store: PlanStore, searchable: Callable[[], Awaitable[bool]]
    ) -> None:
        self._pool, self._reader, self._store, self._searchable = pool, reader, store, searchable

    async def read_cordon(self, call: DirectoryCall) -> CordonResult:
        """Return whether the broker knows cordons, and whether the directory has one. Raises `NoResponse`."""
        found = await self._pool.run(lambda admin: admin.known_config("broker", str(call.broker), CORDON))
        if found is None:
            return CordonResult(False, message=f"it does not know {CORDON}")
        entries = [each.strip() for each in found.split(",") if each.strip()]
        return CordonResult(True, call.path in entries or "*" in entries)

    async def set_cordon(self, call: DirectoryCall) -> CordonResult:
        """Set or remove the directory's cordon; repeating it changes nothing. Raises `AdminError`."""
        node = str(call.broker)
        change: tuple[str, str | None] = ("APPEND", call.path)
        if not call.cordoned:
            found = await self._pool.run(lambda admin: admin.overrides("broker", [node], (CORDON,)))
            left = [each for each in found[node].get(CORDON, "").split(",") if each.strip() not in ("", call.path)]
            # An empty list would stay as a config of its own.
            change = ("SUBTRACT", call.path) if left else ("DELETE", None)
        changes = {node: {CORDON: change}}
        await self._pool.run(lambda admin: admin.change_configs("broker", changes))
        return CordonResult(True, call.cordoned)

    async def plan(self, call: DirectoryCall) -> DrainResult:
        """Return the plan of the next round, stored; none for an empty directory. Raises `AdminError`."""
        view = await self._reader.view()
        result = await asyncio.to_thread(self._planned, call, view)
        return replace(result, searchable=await self._searchable())

    def _planned(self, call: DirectoryCall, view: ClusterView) -> DrainResult:
        try:
            found = drain(view, call.broker, call.path)
        except PlanRefused as refused:
            return DrainResult(reasons=list(refused.reasons[:MOST_PROBLEMS]))
        if found.nothing_to_do:
            return DrainResult()
        text = document.to_text(found.document)
        packed = packing.pack(text)
        return DrainResult(
            self._store.put(text),
            packed if len(packed) <= packing.LARGEST_PACKED else "",
            found.bytes,
            len(found.document.partitions),
        )

    async def verify(self, call: DirectoryCall) -> VerifyResult:
        """Certify that nothing is left in the directory. Raises `AdminError`."""
        view = await self._reader.view()
        found = drained(view, Disk(call.broker, call.path))
        text = json.dumps(
            {
                "version": 1,
                "cluster_id": view.cluster_id,
                "broker": call.broker,
                "directory": call.path,
                "safe_to_pull": found.ok,
                "problems": list(found.problems),
            },
            indent=1,
        )
        name = await asyncio.to_thread(self._store.put, text + "\n")
        return VerifyResult(
            found.ok,
            len(found.rows),
            list(found.problems[:MOST_PROBLEMS]),
            len(found.problems),
            str(self._store.path(name)),
        )
