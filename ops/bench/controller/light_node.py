"""A node without logs for the controller's benchmark.

It runs as `python -m ops.bench.controller.light_node CLUSTER NODE PORT FOLDER`.

It registers, sends batches of commands, receives images and holds its lease by a node's own code, and as a leader adds
every registered follower to the ISR at once. It responds to probes of its incarnation on PORT, and stores its metadata
in FOLDER. TEMPORAL_ADDRESS is the server's address.

It reads commands as JSON lines from standard input, and prints events as JSON lines: {"led": {node: partitions},
"behind": partitions out of sync or without directories, ...} after each image, {"response": seconds} for a command,
{"registered": node}.
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
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from activities.controller.batching import GaveUp, Rejected
from activities.controller.cluster_link import ClusterLink
from activities.node.runtime import LEASE_THROTTLE
from activities.temporal.client import TemporalClient
from activities.temporal.client_state import ClientHealth
from storage_node.metadata.check import MetadataCheck
from storage_node.model.command_rows import decode as decode_command
from storage_node.model.commands import AlterPartitions, AssignDirectories, IsrChange, Registration, ReplicaDirectory
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage, decode, decode_whole
from storage_node.model.metadata import DirectoryRegistration
from workflows.model import calls, names

#: Rows of one command: as a node's AlterPartitionManager sends them.
BATCH = 2000
#: Seconds between an image and the ISR changes, as long as a node takes to notice that a follower has caught up.
LOOK = 0.25
#: Seconds for the response to an administrator's command.
PATIENCE = 60.0
BEAT = 0.5

_SIZE = struct.Struct(">i")
_CORRELATION = struct.Struct(">hhi")


class LightNode:
    """The part of a node that `ClusterLink` uses, and a leader's requests to the controller."""

    def __init__(self, cluster: str, number: int, port: int, folder: Path) -> None:
        self.id, self.cluster, self.port = number, cluster, port
        self.incarnation = secrets.token_hex(8)
        self.file = folder / f"light-{number}"
        self.metadata = SimpleNamespace(image=ClusterImage())
        self.metadata_check = MetadataCheck(self.metadata)  # type: ignore[arg-type]  # it reads only the image
        self.directory = f"{number:022}"
        self.changed = asyncio.Event()
        self._printing = threading.Lock()
        self._loop = asyncio.get_running_loop()
        if self.file.exists():
            self.metadata.image = decode_whole(self.file.read_text())
        self.link = ClusterLink(cluster, self, self.connected, lambda: self.say({"registered": self.id}))  # type: ignore[arg-type]
        self._temporal = TemporalClient(f"node-{number}", ClientHealth(f"node {number}"))

    def say(self, what: Mapping[str, Any]) -> None:
        """Print an event for the parent process, as one line also beside the thread that applies images."""
        line = json.dumps({"node": self.id, "at": time.monotonic(), **what})
        with self._printing:
            print(line, flush=True)

    async def connected(self) -> Client:
        """Return the Temporal client."""
        return await self._temporal.get()

    # --- used by `ClusterLink`

    def registration(self, *, with_image: bool = True) -> Registration:
        """Return the registration, as `Node.registration`."""
        image: ClusterImage = self.metadata.image
        directories = (DirectoryRegistration(self.directory, "/light"),)
        text = image.encode() if image.version and with_image else ""
        where = ("127.0.0.1", self.port)
        return Registration(
            self.id,
            self.incarnation,
            *where,
            directories,
            known_cluster_generation=image.cluster_generation,
            known_version=image.version,
            image=text,
            cluster=image.cluster,
        )

    def apply_images(self, texts: Iterable[str], _patience: float | None = None) -> tuple[int, int]:
        """Apply images, as `Node.apply_images`; called by several threads, one at a time."""
        before: ClusterImage = self.metadata.image
        image = before
        for text in texts:
            message = decode(text)
            age, since = message.pair, message.since
            if age < image.pair or (age == image.pair and since != image.version):
                continue
            if not since or (age[0] == image.cluster_generation and image.version >= since):
                image = image.after(message)
        if image is not before:
            self.metadata.image = image
            # Atomically, because the benchmark may kill the process at any time.
            beside = self.file.with_name(f"{self.file.name}.new")
            beside.write_text(image.encode())
            beside.replace(self.file)
            partitions = [each for topic in image.topics.values() for each in topic.partitions]
            led = Counter(each.leader for each in partitions)
            behind = sum(len(each.isr) < len(each.replicas) or "" in each.directories for each in partitions)
            self.say({"version": image.version, "led": led, "partitions": len(partitions), "behind": behind})
            self._loop.call_soon_threadsafe(self.changed.set)
        return image.pair

    # --- requests of the controller

    @activity.defn(name=calls.APPLY_IMAGE)
    async def apply_image(self, call: calls.ImageCall) -> calls.ImageResult:
        """Apply the images that the controller sends."""
        generation, version = await asyncio.to_thread(self.apply_images, call.images)
        if call.register:
            self.link.register_again()
        else:
            self.link.retry_registration()
        return calls.ImageResult(generation, version, self.incarnation)

    @activity.defn(name=calls.HOLD_LEASE)
    async def hold_lease(self, call: calls.LeaseCall) -> None:
        """Hold the lease while the process runs."""
        while True:
            activity.heartbeat(self.incarnation)
            await asyncio.sleep(BEAT)

    async def respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond to a probe of the incarnation; the port receives no other request."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
            frame = await reader.readexactly(size)
            _, _, correlation = _CORRELATION.unpack_from(frame)
            body = json.dumps({"node": self.id, "incarnation": self.incarnation}).encode()
            writer.write(_SIZE.pack(_SIZE.size + len(body)) + _SIZE.pack(correlation) + body)
            await writer.drain()
        writer.close()

    # --- requests to the controller

    async def lead(self) -> None:
        """Add all registered followers to the ISRs of its partitions, and report the directories of its replicas."""
        while True:
            await self.changed.wait()
            self.changed.clear()
            await asyncio.sleep(LOOK)
            for command in (self._joins(), self._places()):
                if command is not None:
                    with contextlib.suppress(GaveUp, Rejected):
                        await self.link.submit(command, PATIENCE)
                    self.changed.set()

    def _joins(self) -> AlterPartitions | None:
        image: ClusterImage = self.metadata.image
        live = {node.node: node.broker_epoch for node in image.live_nodes()}
        rows = []
        for topic in image.topics.values():
            for each in topic.partitions:
                if each.leader == self.id and len(each.isr) < len(each.replicas):
                    wanted = [*each.isr, *(node for node in each.replicas if node in live and node not in each.isr)]
                    if len(wanted) > len(each.isr):
                        members = tuple((node, live.get(node, -1)) for node in wanted)
                        tp = TopicPartition(topic.name, each.index)
                        rows.append(IsrChange(tp, topic.id, each.leader_epoch, each.partition_epoch, members))
        return AlterPartitions(self.id, tuple(rows[:BATCH])) if rows else None

    def _places(self) -> AssignDirectories | None:
        image: ClusterImage = self.metadata.image
        rows = [
            ReplicaDirectory(TopicPartition(topic.name, each.index), topic.id, self.directory, 0)
            for topic in image.topics.values()
            for each in topic.partitions
            if self.id in each.replicas and each.directory_of(self.id) is None
        ]
        return AssignDirectories(self.id, tuple(rows[:BATCH])) if rows else None

    async def obey(self) -> None:
        """Send the commands from standard input to the controller; exit at its end."""
        reader = asyncio.StreamReader(limit=1 << 24)
        await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            command = json.loads(line)
            began = time.monotonic()
            try:
                results = await self.link.submit(decode_command(command), PATIENCE)
                error = next((row.get("message", "?") for row in results if row.get("error")), "")
            except (GaveUp, Rejected) as failure:
                error = str(failure)
            self.say({"response": time.monotonic() - began, "do": command["do"], "error": error})
        os._exit(0)

    async def run(self) -> None:
        """Run until standard input ends."""
        connecting = asyncio.create_task(self._temporal.run())
        client = await self.connected()
        await asyncio.start_server(self.respond, "127.0.0.1", self.port)
        short: list[Callable[..., Any]] = [self.apply_image, self.hold_lease]
        worker = Worker(
            client,
            task_queue=names.node_queue(self.cluster, self.id),
            activities=short,
            max_heartbeat_throttle_interval=LEASE_THROTTLE,
        )
        async with asyncio.TaskGroup() as group:
            link = (self.link.send_updates(), self.link.keep_registered(), self.link.keep_metadata_equal())
            for work in (worker.run(), *link, self.lead(), self.obey()):
                group.create_task(work)
        connecting.cancel()


async def _main(cluster: str, number: str, port: str, folder: str) -> None:
    await LightNode(cluster, int(number), int(port), Path(folder)).run()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level="WARNING")
    asyncio.run(_main(*sys.argv[1:]))
