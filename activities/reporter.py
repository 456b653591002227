"""Telling the controller where this node's replicas are (AssignReplicasToDirs), behind everything that matters more.

A swap never waits for it. What the controller does not take now is told again; after a registration the node compares
what the metadata says with what it holds, so that a report lost with the process is made up for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from storage_node.errors import RequestTimedOut
from storage_node.ports import Controller, ReplicaDirectory
from storage_node.types import TopicPartition

log = logging.getLogger(__name__)

PATIENCE = 10.0  # seconds for one report
PAUSE = 1.0  # seconds before a report that got no answer is made again
AT_MOST = 1000  # replicas in one report


class DirectoryReporter:
    """Lives on the client's event loop. `where` answers where replicas are now, without those that are gone."""

    def __init__(
        self,
        controller: Controller,
        where: Callable[[Iterable[TopicPartition]], Sequence[ReplicaDirectory]],
    ) -> None:
        self._controller, self._where = controller, where
        self._due: dict[TopicPartition, None] = {}
        self._wake = asyncio.Event()

    def note(self, partitions: Iterable[TopicPartition]) -> None:
        """These replicas are to be reported."""
        self._due.update(dict.fromkeys(partitions))
        self._wake.set()

    async def run(self) -> None:
        """Report what is due, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                now = list(self._due)[:AT_MOST]
                for tp in now:
                    del self._due[tp]
                if not await self._report(now):
                    self._due = dict.fromkeys(now) | self._due
                    await asyncio.sleep(PAUSE)

    async def _report(self, partitions: Sequence[TopicPartition]) -> bool:
        replicas = self._where(partitions)
        if not replicas:
            return True
        try:
            results = await self._controller.assign_directories(replicas, timeout=PATIENCE)
        except RequestTimedOut:
            return False
        for replica, result in zip(replicas, results, strict=False):
            if result.error:
                log.warning("the controller does not record where %s is: %s", replica.partition, result.message)
        return True
