"""A node without logs, as the controller sees it: `python -m ops.bench.light_node CLUSTER NODE PORT FOLDER`.

It talks to the controller as a node does, by the same code (registrations, batches of commands, pushes, its lease), and
leads what the metadata gives it: every registered follower is in sync at once. It responds to probes of its incarnation
at its port, and keeps its metadata in FOLDER. TEMPORAL_ADDRESS is the server's address.

It reads commands as JSON lines from standard input, and reports events as JSON lines: {"led": {node: partitions},
"behind": partitions that are not whole, ...} after each image, {"answered": seconds} for a command, {"registered":
node}.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from activities.batching import GaveUp, Rejected
from activities.client_state import ClientHealth
from activities.cluster_link import ClusterLink
from activities.node_runtime import LEASE_THROTTLE
from activities.temporal_client import TemporalClient
from storage_node.metadata import ClusterImage, decode_row
from storage_node.metadata_check import MetadataCheck
from storage_node.ports import DirectoryRegistration, Registration
from workflows.model import calls, names

#: Rows of one command: as a node's IsrReporter sends them.
BATCH = 2000
#: Seconds between two looks at what it leads, as long as the node takes to see that a follower has caught up.
LOOK = 0.25
#: Seconds for the response to an administrator's command.
PATIENCE = 60.0
BEAT = 0.5

_SIZE = struct.Struct(">i")
_CORRELATION = struct.Struct(">hhi")


class LightNode:
    """What `ClusterLink` needs of a node, and the rest of its work."""

    def __init__(self, cluster: str, number: int, port: int, folder: Path) -> None:
        self.id, self.cluster, self.port = number, cluster, port
        self.incarnation = secrets.token_hex(8)
        self.file = folder / f"light-{number}"
        self.metadata = SimpleNamespace(image=ClusterImage())
        self.metadata_check = MetadataCheck(self.metadata)  # type: ignore[arg-type]  # it reads the image alone
        self.directory = f"{number:022}"
        self.changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self.file.exists():
            self.metadata.image = ClusterImage().apply(decode_row(self.file.read_text()))
        self.link = ClusterLink(cluster, self, self.connected, lambda: self.say({"registered": self.id}))  # type: ignore[arg-type]
        self._temporal = TemporalClient(f"node-{number}", ClientHealth(f"node {number}"))

    def say(self, what: Mapping[str, Any]) -> None:
        """Write a line to the process that started this one."""
        print(json.dumps({"node": self.id, "at": time.monotonic(), **what}), flush=True)

    async def connected(self) -> Client:
        """The one client."""
        return await self._temporal.get()

    # --- what the link needs

    def registration(self, *, with_image: bool = True) -> Registration:
        """As `Node.registration`."""
        image: ClusterImage = self.metadata.image
        directories = (DirectoryRegistration(self.directory, "/light"),)
        text = image.encode() if image.version and with_image else ""
        where = ("127.0.0.1", self.port)
        return Registration(self.id, self.incarnation, *where, directories, image.generation, image.version, text)

    def apply_images(self, texts: Iterable[str], _patience: float | None = None) -> tuple[int, int]:
        """As `Node.apply_images`; called from several threads, one at a time."""
        before: ClusterImage = self.metadata.image
        image = before
        for text in texts:
            row = decode_row(text)
            age, since = (row["generation"], row["version"]), row["from"]
            if age < image.age or (age == image.age and since != image.version):
                continue
            if not since or (age[0] == image.generation and image.version >= since):
                image = image.apply(row)
        if image is not before:
            self.metadata.image = image
            # Atomically, as a node does: it is killed at any moment.
            beside = self.file.with_name(f"{self.file.name}.new")
            beside.write_text(image.encode())
            beside.replace(self.file)
            partitions = [each for topic in image.topics.values() for each in topic.partitions.values()]
            led = Counter(each.leader for each in partitions)
            behind = sum(len(each.isr) < len(each.replicas) or "" in each.directories for each in partitions)
            self.say({"version": image.version, "led": led, "partitions": len(partitions), "behind": behind})
            self._loop.call_soon_threadsafe(self.changed.set)
        return image.age

    # --- what the controller requests

    @activity.defn(name=calls.APPLY_IMAGE)
    async def apply_image(self, call: calls.ImageCall) -> calls.ImageResult:
        """Apply a push."""
        generation, version = await asyncio.to_thread(self.apply_images, call.images)
        if call.register:
            self.link.register_again()
        else:
            self.link.heard()
        return calls.ImageResult(generation, version, self.incarnation)

    @activity.defn(name=calls.HOLD_LEASE)
    async def hold_lease(self, call: calls.LeaseCall) -> None:
        """Hold the lease for as long as the process lives."""
        while True:
            activity.heartbeat(self.incarnation)
            await asyncio.sleep(BEAT)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond to a probe of its incarnation; no other call comes."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
            frame = await reader.readexactly(size)
            _, _, correlation = _CORRELATION.unpack_from(frame)
            body = json.dumps({"node": self.id, "incarnation": self.incarnation}).encode()
            writer.write(_SIZE.pack(_SIZE.size + len(body)) + _SIZE.pack(correlation) + body)
            await writer.drain()
        writer.close()

    # --- what it does by itself

    async def lead(self) -> None:
        """Add all registered followers to the ISRs that it leads, and report the directories of its replicas."""
        while True:
            await self.changed.wait()
            self.changed.clear()
            await asyncio.sleep(LOOK)
            for command in (self._joins(), self._places()):
                if command is not None:
                    with contextlib.suppress(GaveUp, Rejected):
                        await self.link.submit(command, PATIENCE)
                    self.changed.set()

    def _joins(self) -> dict[str, Any] | None:
        image: ClusterImage = self.metadata.image
        live = {node.node: node.broker_epoch for node in image.live_nodes()}
        rows = []
        for topic in image.topics.values():
            for each in topic.partitions.values():
                if each.leader == self.id and len(each.isr) < len(each.replicas):
                    wanted = [*each.isr, *(node for node in each.replicas if node in live and node not in each.isr)]
                    if len(wanted) > len(each.isr):
                        members = [[node, live.get(node, -1)] for node in wanted]
                        row = [topic.name, each.partition, topic.id, each.leader_epoch, each.partition_epoch, members]
                        rows.append(row)
        return {"do": "alter_partitions", "node": self.id, "partitions": rows[:BATCH]} if rows else None

    def _places(self) -> dict[str, Any] | None:
        image: ClusterImage = self.metadata.image
        rows = [
            [topic.name, each.partition, topic.id, self.directory, 0]
            for topic in image.topics.values()
            for each in topic.partitions.values()
            if self.id in each.replicas and each.directory_of(self.id) is None
        ]
        return {"do": "assign_directories", "node": self.id, "replicas": rows[:BATCH]} if rows else None

    async def obey(self) -> None:
        """What comes on standard input."""
        reader = asyncio.StreamReader(limit=1 << 24)
        await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            command = json.loads(line)
            began = time.monotonic()
            try:
                results = await self.link.submit(command, PATIENCE)
                error = next((row.get("message", "?") for row in results if row.get("error")), "")
            except (GaveUp, Rejected) as refused:
                error = str(refused)
            self.say({"answered": time.monotonic() - began, "do": command["do"], "error": error})
        os._exit(0)

    async def run(self) -> None:
        """Until standard input ends."""
        connecting = asyncio.create_task(self._temporal.run())
        client = await self.connected()
        await asyncio.start_server(self.answer, "127.0.0.1", self.port)
        short: list[Callable[..., Any]] = [self.apply_image, self.hold_lease]
        worker = Worker(
            client,
            task_queue=names.node_queue(self.cluster, self.id),
            activities=short,
            max_heartbeat_throttle_interval=LEASE_THROTTLE,
        )
        async with asyncio.TaskGroup() as group:
            link = (self.link.send_updates(), self.link.keep_registered(), self.link.keep_agreed())
            for work in (worker.run(), *link, self.lead(), self.obey()):
                group.create_task(work)
        connecting.cancel()


async def _main(cluster: str, number: str, port: str, folder: str) -> None:
    await LightNode(cluster, int(number), int(port), Path(folder)).run()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level="WARNING")
    asyncio.run(_main(*sys.argv[1:]))
